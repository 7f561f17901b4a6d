"""Find the state of Python's on which a program depends, as one graph of objects.

    rate = 0.1

    class Trainer:
        def step(self, x):
            self.steps += 1
            return x * rate

The graph of ``Trainer().step`` has a node for the object, one for its class, one for the globals of
the module. A node knows what its object had when the program came to it. So a call can ask whether
that is still so, and a capture what the program has changed.

From the ground: ``values`` (what is the same), ``nodes``, ``dictionary_items`` and ``contents``
(what an object has, by kind), ``object_kinds`` (the table of kinds), ``trusted`` (whose code is not
followed), ``iterators``, ``code_names``, ``switches``, ``library_names``, ``object_graph``,
``entry_hook`` (what the program enters), ``state_guard`` (what a call compares), ``declared`` (what
the user says the state is), ``program_state`` (one capture). ``summary`` is for reports and errors.
``closed_over`` has the tensors that a program closes over, ``reads`` single questions. The package
imports ``trace`` and ``session``, and no other room of ``aot``. Start with ``object_graph.py``.
"""
