"""Autograd and composable function transforms over torch's kernels, in Python that one can read and change."""

from . import rules as rules
from .tensor import Tensor, tensor, unwrap, wrap

from . import autograd, func  # isort: skip
from . import nested as nested  # isort: skip
from . import subclasses as subclasses  # isort: skip
from . import composite as composite  # isort: skip
from . import direct as direct  # isort: skip
from . import recurrent as recurrent  # isort: skip
from .dropin.meeting import meet  # isort: skip

meet()

__all__ = ["Tensor", "autograd", "func", "tensor", "unwrap", "wrap"]
