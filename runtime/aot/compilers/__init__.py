"""Make a function of a graph.

``replay`` writes the graph as straight Python, after the rewrites of ``peephole``; ``staged`` runs
it as it is the first time; ``inductor`` compiles it by torch's Inductor, which ``inductor_trial``
tries in a process of its own. ``boxed`` has the calling convention. The package imports
``capture``, ``partition`` and ``control_flow``. Start with ``replay.py`` and ``peephole.py``.
"""
