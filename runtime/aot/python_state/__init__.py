"""Find the Python state that a captured program reads: attributes, globals, items of containers.

``reader`` follows the bytecode of a program, ``paths`` says how it came to an object, ``reads``
turns what it found into questions that every call asks again. ``closed_over`` has the tensors that
it found so, ``known_state`` notices state that is written or drawn. The package imports ``trace``
and ``session``, and no other room of ``aot``. Start with ``reader.py``.
"""
