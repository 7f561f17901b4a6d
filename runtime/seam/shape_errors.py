"""Tells errors that come of shapes and types from those that come of values.

    x[5]                    # an IndexError for each x of this size
    torch.linalg.inv(x)     # an error for some x

What a capture knows of an error of the first kind a call compares, see
:class:`.user_code.LeftErrors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..torch_private.mode_stacks import without_modes
from .call_types import Kernel
from .user_code import is_capturing, note_kernel_error, noted, settle_error


def settle_if_of_shapes(
    error: Exception, func: Kernel, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Settle the error of a call, as :func:`~runtime.seam.user_code.settle_error`, if tensors
    without elements raise one, too. Then each call with such arguments would."""
    try:
        with without_modes():
            func(
                *map(_without_elements, args), **dict(map(_named_without_elements, kwargs.items()))
            )
    except NotImplementedError:  # nothing is known of tensors without elements
        return
    except Exception:
        settle_error(error)


def note_own_error(
    error: Exception, func: Kernel, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Note an error of a function of torch, ``func``, that was called in the frame which catches
    it, if the function is one of C and has raised the error itself: no frame of Python's is
    between. It is settled if plain tensors of such sizes raise one, too. Else the reason may be a
    value of the trace, which eager mode does not have."""
    at = error.__traceback__
    if at is None or at.tb_next is not None or not is_capturing():
        return
    note_kernel_error(error)
    # zeros, because a function of C may read elements, which raises for any tensor of `meta`
    try:
        with without_modes():
            func(
                *map(with_zeros, args),
                **{name: with_zeros(value) for name, value in kwargs.items()},
            )
    except NotImplementedError:  # nothing is known of such tensors
        pass
    except Exception:
        settle_error(error)
    noted(error)


def _named_without_elements(named: tuple[str, object]) -> tuple[str, object]:
    """Return a keyword argument for the device ``meta``, which a factory is told, too."""
    name, value = named
    if name == "device":
        return name, "meta"
    return name, _without_elements(value)


def _without_elements(value: object) -> object:
    """Return tensors of the same geometry on the device ``meta``, also in lists."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_elements, value))
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided or value.is_nested:
        raise NotImplementedError
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def with_zeros(value: object) -> object:
    """Return tensors of zeros of the same geometry as fake ones, also in lists."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(with_zeros, value))
    if not isinstance(value, torch.Tensor):
        return value
    is_plain = value.layout is torch.strided and not value.is_nested
    if not is_plain or value.device.type != "cpu":
        raise NotImplementedError
    zeros = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return zeros.zero_().requires_grad_(value.requires_grad)
