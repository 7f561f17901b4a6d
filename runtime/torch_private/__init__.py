"""Name every private part of torch that the runtime uses, once, with what it is for.

A private name can be another one in the next version of torch. So all of them are here, and
``tests/runtime/torch_private`` holds that they are nowhere else. The drop-in alone names those that
it replaces. ``gen/facts`` writes down what kind of object each is in each version.

The modules are by subject. A name is bound when its module is imported, so a call costs one
look-up. What the drop-in replaces and others call is a function that looks it up. This is below
the ground floor: it imports torch alone. Start with ``dispatcher.py``; ``symbolic_shapes.py`` is
slow to import.
"""
