"""Faults of ``torch.compile`` for `gen audit --rules`: each place of the compiler where a mistake
would be silent, and the mistakes that can be made there.

    from gen.targets.compiler_faults import places

    places.rules()                                  # "forward graph", "guard TENSOR_MATCH", …
    with places.planted(target, "aliases compiler", "separate"):
        …                                           # arguments that share memory are taken apart

Start with ``places``. ``graph_edits`` changes the graphs that AOTAutograd hands to its backend,
``stage_faults`` what Dynamo and AOTAutograd do around these. It imports ``gen.targets.faults`` and
torch's compilers by ``gen.torch_private``.
"""
