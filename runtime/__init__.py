"""Autograd and composable function transforms over torch's kernels, in Python that one can read and change."""

from . import rules as rules
from .session import Tensor, tensor, unwrap, wrap

from . import autograd, func  # isort: skip
from .dropin.meeting import meet  # isort: skip

meet()

__all__ = ["Tensor", "autograd", "func", "tensor", "unwrap", "wrap"]
