"""Gradients of a loss for each sample of a batch, in factors. See ``docs/per_sample.md``."""

from .context import per_sample
from .function import per_sample_grads
from .grads import PerSampleGrads

__all__ = ["PerSampleGrads", "per_sample", "per_sample_grads"]
