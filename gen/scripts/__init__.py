"""Write stand-alone programs: what a cell of the matrix does to one sample, as text that needs
torch alone.

``failures`` chooses the program for the failure of a case, ``standalone`` puts it together and runs
it once, ``stages`` writes transforms and what is right in their place, ``tracer`` records the calls
of a function, ``python_values`` writes values. The package imports ``checks``. Start with
``standalone.py``.
"""
