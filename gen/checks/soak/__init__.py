"""Drawn cells: op × dtype × layout × sample × nesting beyond what the matrix lists.

:mod:`draws` says what can be drawn, :mod:`trial` runs one draw, :mod:`search` draws, shrinks what
fails and groups it by cause."""
