"""Reverse mode: record calls as nodes, and run the nodes backwards.

A *tape* is the graph of one level that records. It imports ``rules`` and ``seam``. Start with
``nodes.py`` and ``grad_level.py``, which makes a node for each call; ``op_nodes.py`` has these.
``engine.py`` starts backward passes, and ``graph_task.py`` runs one. ``saved.py`` keeps tensors
from forward to backward, ``view_history.py`` and ``inplace.py`` follow writes through views.
"""
