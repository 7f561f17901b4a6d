"""Measure what a version of torch does, as facts that can be written down and compared.

``probes`` has questions that no signature answers. ``torch_facts`` gathers facts and names those
that differ. ``python -m gen facts`` is the door. The package imports ``runtime``, whose records and
names say what to ask; ``without_runtime`` has what it needs where that import fails. Start with
``torch_facts.py``.
"""
