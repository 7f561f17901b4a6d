"""Reverse mode: record calls as nodes, and run the nodes backwards.

A *tape* is the graph of one level that records. It imports ``rules`` and ``seam``. Start with
``nodes.py`` and ``grad_level.py``, which makes a node for each call; ``engine.py`` runs the
backward pass. ``saved.py`` keeps tensors from forward to backward, ``view_history.py`` and
``inplace.py`` follow writes through views.
"""
