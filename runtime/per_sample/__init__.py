"""Compute the gradients of a loss for each sample of a batch, in factors. See
``docs/per_sample.md``.

There are two ways in. ``context`` has ``per_sample``, around ordinary code: ``batch_session``
follows where the samples lie, by ``sample_states``. ``per_sample_grads`` takes a loss of one
sample, which ``sample_level`` runs for the whole batch. Both note the ``uses`` of parameters, of
which ``terms`` makes gradients, and ``grads`` answers questions about these. The package imports
``rules.samples``, ``session`` and what lies below. Start with ``grads.py``.
"""

from .context import per_sample
from .grads import PerSampleGrads
from .per_sample_grads import per_sample_grads

__all__ = ["PerSampleGrads", "per_sample", "per_sample_grads"]
