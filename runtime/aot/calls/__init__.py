"""Run a captured program as a function: arguments in, results of the graph out, one node on the
tape.

``compiled_function`` chooses among the programs of a function; ``guards`` makes and compiles the
test whether a program fits its arguments; ``compiled_program`` is one call of one program,
``backward_calls`` its backward pass. The package imports ``capture``, ``partition``, ``compilers``,
``python_state`` and ``cache``. Start with ``compiled_function.py``.
"""
