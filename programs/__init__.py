"""Programs that rows of the matrix name: ops, modules and whole programs that the matrix tests like
ops of torch.

    - op: programs.boundaries.shown_twice

``ops``                                     compositions of ops, for rules that no op reaches
``layers``, ``parameters``                  uses of weights that no function of torch has
``control_flow``, ``flows``                 branches, loops and scans, by torch or by the target
``boundaries``, ``calls``, ``parts``        what compiled parts share with their caller
``graphs``, ``exports``, ``partitions``     programs that capture, export and cut graphs
``pictures``                                claims about the picture of a cut
``jits``                                    jitted functions, modules and training steps with state
``state``                                   a grammar of programs with a state in Python
``eager``, ``engines``, ``sessions``        hooks, flags, accumulation and the engine, in eager code
``families``                                nested, masked, sparse and wrapped tensors, optimizers
``functions``                               custom autograd Functions
``transforms``, ``writes``, ``draws``       nested transforms, writes, random draws
``per_sample_*``, ``sample_gradients``      gradients of each sample

A row is a function of tensors, and what is right is beside it: a row that states its truth returns
it with its results (:func:`programs.tools.beside`), and ``reference`` has slow loops for the
others. ``third_party`` has ops and modules as another package would bring them, with references of
their own.

The rows import torch, and from the generator only what every target offers
(:mod:`gen.targets.parts`) and what leaves out a sample (:mod:`gen.outcomes`). Start with
``tools.py``.
"""
