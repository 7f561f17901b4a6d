"""Draw cells beyond the list: op × dtype × layout × sample × nesting.

``space`` says what can be drawn, ``trial`` runs one draw, ``search`` draws until the time is over,
shrinks what fails and groups it by cause. The package imports ``checks`` and ``scripts``. Start
with ``search.py``.
"""
