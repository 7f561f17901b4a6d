"""Autograd and composable function transforms over torch's kernels, in Python that one can read and change."""

from . import rules as rules
from .session import Tensor, tensor, unwrap, wrap

from . import autograd, func  # isort: skip
from .dropin.intercept import intercept_torch_autograd  # isort: skip

intercept_torch_autograd()

__all__ = ["Tensor", "autograd", "func", "tensor", "unwrap", "wrap"]
