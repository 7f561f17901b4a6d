"""Name every private part of torch that the generator uses, once, with what it is for.

It is as ``runtime/torch_private``, of which the generator knows nothing: a reference does not
depend on what is tested. It imports torch alone. Start with ``loaded_with_torch.py``;
``test_helpers.py`` and ``compilers.py`` are slow to import, and are imported when they are used.
"""
