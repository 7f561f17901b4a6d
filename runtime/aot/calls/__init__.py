"""Run a captured program as a function: arguments in, results of the graph out, one node on the
tape.

``compiled_function`` is the function that calls the programs of a ``recipe``, which is data.
``known_programs`` finds the one for a call by generated ``guards``. ``program_capture`` captures
one. ``compiled_program`` is one call of one program, with its ``program_guard``,
``argument_changes`` and ``call_results``. ``backward_calls`` is its backward
pass, by a ``backward_graph``. The package imports ``capture``, ``partition``, ``compilers``,
``python_state`` and ``cache``. Start with ``compiled_function.py``.
"""
