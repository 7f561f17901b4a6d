"""Register the ops that move elements: views, indexing, joining, packing.

They import ``derive``, ``samples`` and ``record``. Start with ``views``;
``strided_views`` has ``as_strided``.
"""
