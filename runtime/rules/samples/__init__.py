"""Compute the parts of records for per-sample gradients.

``factors`` has the gradient of a parameter for each sample, in factors that are not multiplied.
``windows`` has those of convolutions. ``places`` says where the samples of a batch lie in a tensor.
``place_rules`` says for families of ops where they lie in the results, ``place_layers``,
``place_views``, ``place_indices`` and ``place_joins`` for single ops. ``place_table`` has the rule
of each op. They import ``derive``, ``record`` and ``ops``. The package :mod:`runtime.per_sample`
uses them. Start with ``factors``.
"""
