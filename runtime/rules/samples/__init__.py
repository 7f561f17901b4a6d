"""Compute the parts of records for per-sample gradients.

``factors`` has the gradient of a parameter for each sample, in factors that are not multiplied.
``places`` says where the samples of a batch lie in a tensor. ``place_rules``, ``place_views``,
``place_indices`` and ``place_joins`` say where they lie in the results of an op. They import
``derive``, ``record`` and ``ops``. The package :mod:`runtime.per_sample` uses them. Start with
``factors``.
"""
