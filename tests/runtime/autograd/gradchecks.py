"""What the tests of gradcheck share: inputs of double precision, modes, and gradients that
a hook falsifies."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import wrap

module: Any = importlib.import_module("runtime.autograd.gradcheck")
GradcheckError: type[RuntimeError] = module.GradcheckError

FAST = pytest.mark.parametrize("fast_mode", [False, True])
BOTH_MODES: dict[str, Any] = {
    "check_forward_ad": True,
    "check_batched_grad": True,
    "check_batched_forward_grad": True,
}


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    return wrap(
        torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)) + 0.5,
        requires_grad=True,
    )


X, Z = leaf(2, 3), leaf(3, dtype=torch.complex128)


def hooked(f: Callable[..., Any], hook: Callable[[Any], Any]) -> Callable[..., Any]:
    """``f`` with a gradient that ``hook`` falsifies."""

    def g(*args: Any) -> Any:
        out = f(*args)
        out.register_hook(lambda grad: None if grad is None else hook(grad))
        return out

    return g
