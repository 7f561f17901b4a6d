"""Autograd and composable function transforms over torch's kernels, in Python that one can
read and change."""

from typing import TYPE_CHECKING

from . import rules as rules
from .session import Tensor, tensor, unwrap, wrap

from . import autograd, func  # isort: skip
from .dropin.intercept import intercept_torch_autograd  # isort: skip

if TYPE_CHECKING:
    from .jit import jit

intercept_torch_autograd()

__all__ = ["Tensor", "autograd", "func", "jit", "tensor", "unwrap", "wrap"]


def __getattr__(name: str) -> object:
    if name != "jit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # when somebody asks for it: capture needs modules that take as long to import as all of this
    from .jit import jit

    globals()["jit"] = jit
    return jit
