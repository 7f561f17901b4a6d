"""A grammar of programs with a state in Python: where a value is, how a program comes to it, how it
changes, and when.

``paths``      how a program comes to a value: the rows of the matrix
``holders``    where it is: axis ``holder``
``changes``    what it is, and how it becomes another one: axis ``change``
``moments``    when it changes, and which calls there are: axis ``moment``
``ways``       more rows, and ``more_changes`` those that their programs make
``grammar``    the text of a program of four parts

Each part fits each other part, so each cell is a program. The parts import nothing but Python's
own library. Start with ``grammar.py``.

``hooks`` has rows of family ``boundaries``, where hooks and members change between calls.
"""
