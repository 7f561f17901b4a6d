"""Hold one record per ATen op: its derivative, tangent, batching rule, decomposition and per-sample
rule.

A record is written where its kind of op lies:

``elementwise``  arithmetic, special functions, activations
``shape``        views, indexing, joining, packing
``reduction``    sums, softmax, cumulative sums, sorting, counting
``linalg``       products, factorizations, solutions, spectra, Fourier transforms
``layers``       convolution, normalization, attention, recurrent layers, embeddings, losses
``tensors``      factories and copies, nested and sparse tensors, lists of them, reads of numbers

``derive`` has the helpers that make a record from one line, and the batching rules that many ops
share. ``samples`` has the parts of records for per-sample gradients. The rooms import ``seam``,
``errors`` and one another, and never a transform. Start with ``record.py``, which explains each
part of a record, then read ``elementwise/pointwise.py``. ``ops.py`` has the facts of an overload
that follow from its schema. ``docs/rules.md`` shows how to write a record.
"""

import importlib
import pkgutil

from .record import RECORDS, Record, register

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)  # each module registers its records when it is imported

__all__ = ["RECORDS", "Record", "register"]
