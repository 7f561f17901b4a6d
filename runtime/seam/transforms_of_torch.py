"""Refuses a transform of this package inside of one of torch's own.

    torch.func.grad(lambda x: runtime.func.jvp(f, (x,), (t,))[1].sum())(x)    # RuntimeError

The calls of a program go to the levels of this package, where torch's transforms see none of them.
The gradient above would be zero. So would be that of ``runtime.func.grad(f)(c)`` there, where ``c``
is a tensor from outside: torch wraps each result, and the level does not know it as its own.
The other nesting works: torch's transforms run as any other code inside of a level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NoReturn

import torch

from ..errors import called_from
from ..torch_private.functorch_state import (
    from_functional_tensor,
    get_unwrapped,
    innermost_transform,
    is_functional_tensor,
    is_functorch_wrapped,
    sync_functional,
    unwrap_if_dead,
)
from ..torch_private.native_autograd import unpack_dual
from .ambient import Ambient

innermost_of_torch: Callable[[], object] = innermost_transform
"""The innermost transform of torch's own that runs, or None."""


class Wrapping(Ambient):
    """``depth``: how many differentiating transforms of torch itself this thread runs. The drop-in
    counts them. Torch takes a transform off its stack while that hands a call on, so a level cannot
    ask the stack whether the call came through one."""

    depth: int = 0


WRAPPING = Wrapping()


def wraps_tensors() -> bool:
    """Return whether this thread runs a transform of torch itself that wraps tensors where Python
    does not see it. Such a tensor cannot become a value in place."""
    return WRAPPING.depth > 0


class DualLevelOfTorch:
    """Torch's own forward mode. ``variables``: those of its module, of which one is the number of
    the level that is open. The drop-in sets them, since it replaces the module's own answer."""

    variables: Mapping[str, int] = MappingProxyType({"_current_level": -1})


def transform_of_torch() -> bool:
    """Return whether a transform of torch itself is running."""
    return innermost_of_torch() is not None or DualLevelOfTorch.variables["_current_level"] >= 0


def has_tangent_of_torch(tensor: object) -> bool:
    """Return whether torch's own forward mode has a tangent for ``tensor``."""
    if DualLevelOfTorch.variables["_current_level"] < 0 or not isinstance(tensor, torch.Tensor):
        return False
    return unpack_dual(tensor, level=0)[1] is not None


def of_returned_transform(t: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of a tensor that belonged to a transform of torch itself which has
    returned. Any other tensor as it is, and a batch, whose tensor has another shape."""
    if not (is_functorch_wrapped(t) or is_functional_tensor(t)):
        return t
    while is_of_returned_transform(t):
        if is_functional_tensor(t):
            sync_functional(t)  # else writes that it has put off would be lost
            inner = from_functional_tensor(t)
        else:
            inner = unwrap_if_dead(t)
        if inner is t:  # a batch
            break
        t = inner
    return t


def is_of_returned_transform(tensor: object) -> bool:
    """Return whether ``tensor`` belonged to a transform of torch itself which has returned."""
    if not isinstance(tensor, torch.Tensor):
        return False
    # a result of a call with a functional tensor is one, too, and is of no transform
    if not (is_functorch_wrapped(tensor) or is_functional_tensor(tensor)):
        return False
    return innermost_of_torch() is None


def refuse_value_of_torch(tensor: object, *, line: bool = True) -> None:
    """Raise if ``tensor``, an argument of a transform, belongs to a transform of torch itself.
    ``line``: the message names the user's line, which no caller adds."""
    if not isinstance(tensor, torch.Tensor):
        return
    if not transform_of_torch():
        return
    # also a tensor from outside of torch's transform: it wraps the results of each call
    if innermost_of_torch() is not None or has_tangent_of_torch(tensor):
        _refuse("a transform of this package runs", line=line)


def refuse_wrapped(tensor: torch.Tensor) -> None:
    """Raise if ``tensor``, which becomes a tensor of the session, is wrapped by a transform of
    torch's own, which would lose it."""
    if is_functorch_wrapped(tensor) and innermost_of_torch() is not None:
        _refuse("a value of a transform becomes a runtime tensor")


def without_wrappers(t: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of ``t``, a new tensor that torch's transforms have wrapped."""
    while is_functorch_wrapped(t):
        t = get_unwrapped(t)
    return t


def _refuse(what: str, *, line: bool = True) -> NoReturn:
    """Raise: ``what`` happens inside of a transform that does not see it. ``line``: the message
    names the user's line."""
    where = ""
    if line:
        where = f" It happened{called_from()}"
    raise RuntimeError(
        f"{what} inside of one of torch's own (torch.func, torch.vmap, torch.autograd.forward_ad), "
        "which does not see its calls. Take both from runtime, or run the program under "
        f"runtime.dropin.{where}"
    )


def refuse_tangent_of_torch(tensor: object) -> None:
    """Raise if ``tensor`` has a tangent by torch's own forward mode, which gradients would lack."""
    if has_tangent_of_torch(tensor):
        raise RuntimeError(
            "the gradient of a tensor is asked for that has a tangent by torch's own forward mode "
            "(torch.autograd.forward_ad, torch.autograd.functional). The gradient would lack its "
            "tangent. Use runtime.autograd for both, or run the program under runtime.dropin. "
            f"It happened{called_from()}"
        )
