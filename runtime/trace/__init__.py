"""Run a program and write its ATen calls into a ``torch.fx`` graph.

``trace_level`` records a call as a node, ``trace_inputs`` what calls take: placeholders and
constants. ``graph_capture`` runs a program at such a level and returns a module, and ``make_fx`` is
its front door. ``symbols`` has sizes that are symbols and the guards under which a graph holds,
``shape_environment`` decides conditions on them, ``provenance`` has the user's line behind a node.
``random_states``, ``number_reads`` and ``outside`` watch what a program does beside ATen calls. The
package imports ``tape``, ``rules`` and ``seam``. Start with ``graph_capture.py``.
"""
