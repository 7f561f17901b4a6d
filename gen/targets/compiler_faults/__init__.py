"""Faults of ``torch.compile`` for `gen audit --rules`: each place of the compiler where a mistake
would be silent, and the mistakes that can be made there.

    from gen.targets.compiler_faults import compiler_rules

    compiler_rules.rules()              # "forward_graph graph", "TENSOR_MATCH guard", …
    with compiler_rules.planted(target, "shared_arguments arguments", "separate"):
        …                               # arguments that share memory are taken apart

Start with ``compiler_rules``. ``graph_faults`` changes the graphs that AOTAutograd hands to its
backend, ``stage_faults`` what Dynamo and AOTAutograd do around these. It imports
``gen.targets.faults`` and torch's compilers by ``gen.torch_private``.
"""
