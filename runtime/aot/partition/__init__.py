"""Cut a joint graph into a forward and a backward: decide what is saved and what is computed again.

``partitions`` has the public partitions, ``recompute`` says which calls the backward may run again
and what that costs, ``network`` makes a flow network of the graph and finds its minimum cut,
``budget`` cuts for a given memory, ``halves`` makes the two modules. ``reasons`` and ``drawing``
explain a cut to people. The package imports ``capture``. Start with ``partitions.py``.
"""
