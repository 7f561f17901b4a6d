"""Refuses a transform of this package inside of one of torch's own.

    torch.func.grad(lambda x: runtime.func.jvp(f, (x,), (t,))[1].sum())(x)    # RuntimeError

The calls of a program go to the levels of this package, where torch's transforms see none of them.
The gradient above would be zero. The other nesting works: torch's transforms run as any other code
inside of a level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import called_from

_functorch = torch._C._functorch
_innermost: Callable[[], Any] = _functorch.peek_interpreter_stack  # None: no transform runs
_is_wrapped = _functorch.is_functorch_wrapped_tensor
_VMAP = _functorch.TransformType.Vmap
of_returned_transform: Callable[[torch.Tensor], torch.Tensor] = _functorch.unwrap_if_dead
"""The tensor inside of a tensor that belonged to a transform of torch's own which has returned. Any
other tensor as it is."""


class DualLevelOfTorch:
    """Torch's own forward mode. The drop-in knows where torch keeps its level, and sets
    ``is_open``."""

    is_open: Callable[[], bool] = staticmethod(lambda: False)


def transform_of_torch() -> bool:
    """Whether a transform of torch's own is running."""
    return _innermost() is not None or DualLevelOfTorch.is_open()


def has_tangent_of_torch(t: Any) -> bool:
    """Whether torch's own forward mode has a tangent for ``t``."""
    if not DualLevelOfTorch.is_open() or not isinstance(t, torch.Tensor):
        return False
    return torch._VF._unpack_dual(t, level=0)[1] is not None


def _is_of_torch(t: torch.Tensor) -> bool:
    if (innermost := _innermost()) is not None:
        # a tensor that the program closes over may be a batch, which no argument shows
        return _is_wrapped(t) or innermost.key() == _VMAP
    return has_tangent_of_torch(t)


def refuse_value_of_torch(t: Any, *, line: bool = True) -> None:
    """Raise if ``t``, an argument of a transform, belongs to a transform of torch's own. ``line``:
    the message names the user's line, which no caller adds."""
    if isinstance(t, torch.Tensor) and _is_of_torch(t):
        raise RuntimeError(
            "a transform of this package runs inside of one of torch's own (torch.func, "
            "torch.vmap, torch.autograd.forward_ad), which does not see its calls. Take both from "
            "runtime, or run the program under runtime.dropin."
            + (f" It happened{called_from()}" if line else "")
        )


def refuse_tangent_of_torch(t: Any) -> None:
    """Raise if ``t`` has a tangent by torch's own forward mode, which gradients would lack."""
    if has_tangent_of_torch(t):
        raise RuntimeError(
            "the gradient of a tensor is asked for that has a tangent by torch's own forward mode "
            "(torch.autograd.forward_ad, torch.autograd.functional). The gradient would lack its "
            "tangent. Use runtime.autograd for both, or run the program under runtime.dropin. "
            f"It happened{called_from()}"
        )
