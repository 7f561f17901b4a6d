"""Stand-alone programs: what a cell of the matrix does to one sample, as text that
needs torch alone.

:mod:`literals` writes values, :mod:`tracer` records calls, :mod:`stages` writes transforms and what
is right in their place, and :mod:`program` puts a program together and runs it once.
"""
