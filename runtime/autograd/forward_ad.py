"""Differentiates eager code in forward mode, with the names of ``torch.autograd.forward_ad``.

    with dual_level():
        y = make_dual(x, t).sin()
        unpack_dual(y).tangent          # t * x.cos()

Inside a dual level, :func:`make_dual` gives a tensor a tangent. Every op computes the tangents of
its results. :func:`unpack_dual` returns them. At the end of the level all tangents are dropped, and
every tensor is its primal. A custom Function inside a level runs by its ``jvp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..errors import NestedTensor
from ..seam.call_types import Arguments
from ..seam.levels import Value
from ..seam.scope import is_floating
from ..session.dual import DualSession, fwd_grad_enabled, laid_out_like, unshared
from ..session.leaf import as_leaf
from ..session.tensor import SESSION
from ..tape.running import (
    FORWARD,
    computes_tangents,
    current_dual,
    current_stand_in,
    stand_in,
    step_down,
)
from ..torch_private.mode_stacks import DecoratorContextManager
from ..torch_private.native_autograd import is_forward_enabled, set_forward_enabled
from .function import TANGENT_NOT_WRITTEN, rule
from .function_arguments import position_of
from .function_node import as_outputs
from .function_recording import record

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]

_is_fwd_grad_enabled = is_forward_enabled
_set_fwd_grad_enabled = fwd_grad_enabled


class UnpackedDualTensor(NamedTuple):
    """The result of :func:`unpack_dual`. ``tangent`` is None for a tensor without one."""

    primal: torch.Tensor
    tangent: torch.Tensor | None


def current_level() -> int:
    """Return the number of this thread's dual level, or -1."""
    if current_dual() is None:
        return -1
    return 0


def enter_dual_level() -> int:
    """Begin a dual level of this thread and return its number, as
    ``torch.autograd.forward_ad.enter_dual_level``. Levels do not nest: raise inside of one."""
    if FORWARD.dual is not None:
        raise RuntimeError("Nested forward mode AD is not supported at the moment")
    if current_stand_in() is not None:
        raise RuntimeError(
            "forward mode inside per_sample is not possible: "
            "use per_sample_grads, which nests with jvp"
        )
    FORWARD.dual = DualSession(SESSION)
    stand_in(FORWARD.dual)
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """End the dual level of this thread and drop its tangents, as
    ``torch.autograd.forward_ad.exit_dual_level``."""
    dual = FORWARD.dual
    if level is None:
        level = current_level()
    if level < 0:
        raise RuntimeError("Dual level must be a positive number.")
    if dual is None or level != 0:
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. "
            f"Level {level} is not open."
        )
    FORWARD.dual = None
    step_down()
    dual.tangents.close()


class dual_level(DecoratorContextManager):
    """Open a dual level for a ``with`` block or, as a decorator, for a function. The semantics are
    those of ``torch.autograd.forward_ad.dual_level``.

    >>> with dual_level():
    ...     x = make_dual(torch.tensor([1.0, 2.0]), torch.ones(2))
    ...     unpack_dual(x * x).tangent
    tensor([2., 4.])
    """

    def __enter__(self) -> int:  # type: ignore[override]
        return enter_dual_level()

    def __exit__(self, *exc: object) -> None:
        exit_dual_level()


def _check_level(level: int | None, what: str) -> int:
    """Return the number of the level that ``level`` names, None for the open one. Raise if there
    can be no such level: the only number is 0."""
    if level not in (None, 0, -1):
        raise RuntimeError(f"Invalid level given to {what}")
    if level is None:
        return current_level()
    return level


def make_dual(tensor: torch.Tensor, tangent: torch.Tensor, *, level: int | None = None) -> Any:
    """Return a view of ``tensor`` that carries ``tangent``, as
    ``torch.autograd.forward_ad.make_dual``.

    ``tangent`` must have the shape of ``tensor``. It is copied if its memory layout differs, so
    that every view of the dual tensor has a view of the tangent. ``RuntimeError`` for another dtype
    or device (torch accepts them) and for a value of a transform, where ``runtime.func.jvp`` is to
    be used. Plain tensors are wrapped.
    """
    dual = current_dual()
    if _check_level(level, "_make_dual") < 0 or dual is None:
        raise RuntimeError(
            "Trying to create a dual Tensor for forward AD but no level exists, "
            "make sure to enter_dual_level() first."
        )
    _refuse_no_float(tensor, "primal")
    _refuse_no_float(tangent, "tangent")
    if isinstance(tensor, Value) and tensor._level is not SESSION:
        raise RuntimeError(
            f"make_dual: the primal is a value of {tensor._level.what}; forward_ad works on "
            "tensors of level zero. Inside a transform of runtime.func use runtime.func.jvp."
        )
    primal: Any = as_leaf(tensor)
    moving: Any = as_leaf(tangent)
    _refuse_unfit_tangent(dual, primal, moving)
    # the primal itself gets no tangent: it may be used as a constant beside the dual tensor
    dual_tensor: Any = torch.ops.aten.alias.default(primal)
    dual.tangents.put(dual_tensor._inner, laid_out_like(moving, primal._inner))
    return dual_tensor


def _refuse_no_float(tensor: torch.Tensor, name: str) -> None:
    """Raise unless ``tensor`` is a dense tensor of real or complex numbers."""
    if tensor.is_nested:
        raise NestedTensor
    if not is_floating(tensor):
        raise ValueError(
            f"Expected {name} to be floating point or complex, but got: {tensor.dtype}"
        )


def _refuse_unfit_tangent(dual: DualSession, primal: torch.Tensor, moving: Value) -> None:
    """Raise unless ``moving`` can become the tangent of ``primal``."""
    tangents = dual.tangents
    if tangents.of(primal) is not None:
        raise RuntimeError(
            "Making a dual Tensor based on a Tensor that already has a forward gradient at "
            "the same level 0 is not supported."
        )
    if moving._level is SESSION and tangents.of(moving) is not None:
        raise RuntimeError(
            "Setting a forward grad that itself has a forward gradient at the same "
            "level 0 is not supported."
        )
    if primal.shape != moving.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original "
            f"Tensor, this is not supported. The tensor is of size {list(primal.shape)}, "
            f"its tangent of size {list(moving.shape)}."
        )
    if primal.dtype is not moving.dtype or primal.device != moving.device:
        raise RuntimeError(
            f"make_dual: a tensor of dtype {primal.dtype} on {primal.device} "
            f"cannot have a tangent of dtype {moving.dtype} on {moving.device}; "
            "convert the tangent with tangent.to(tensor)."
        )


def unpack_dual(tensor: torch.Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the primal, a view of ``tensor`` without tangent, and the tangent or None, as
    ``torch.autograd.forward_ad.unpack_dual``. Without a dual level: ``tensor`` itself and None."""
    dual = current_dual()
    if _check_level(level, "_fw_primal") < 0 or dual is None:
        return UnpackedDualTensor(tensor, None)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            "_unpack_dual(): argument 'dual' (position 1) must be Tensor, "
            f"not {type(tensor).__name__}"
        )
    if not isinstance(tensor, Value) or tensor._level is not SESSION:
        return UnpackedDualTensor(tensor, None)
    tangent = dual.tangents.of(tensor) if is_forward_enabled() else None
    # a view takes the tangent of its base along, unless it says that it has none
    primal: Any = torch.ops.aten.alias.default(tensor)
    dual.tangents.put(primal._inner, None)
    return UnpackedDualTensor(primal, tangent)


# --- custom Functions -----------------------------------------------------------------------------
#
# The rule of the session for a custom Function, while a dual level is active.


@rule(DualSession)
def _push(dual: DualSession, cls: type, args: tuple[object, ...]) -> tuple[Any, Any]:
    """Run ``forward`` on the tape with forward mode off. Then compute the tangents of its outputs
    by the ``jvp`` staticmethod."""
    enabled = is_forward_enabled()
    level = dual.session
    tangents = _tangents_of(dual, args)
    # to see afterwards whether `jvp` has written to the tangent of an input
    versions = [None if tangent is None else tangent._version for tangent in tangents]
    set_forward_enabled(False)
    try:
        output, outputs, ctx = record(level, cls, args)
        if any(tangent is not None for tangent in tangents):
            out_tangents: Sequence[Any] = ctx.push(args, outputs, tangents)
            for value, out, tangent in zip(as_outputs(output), outputs, out_tangents, strict=True):
                source = position_of(out, args)
                if source is not None and position_of(out, ctx.dirty_tensors) is not None:
                    _check_write(tangents[source], versions[source], tangent)
                # that of a view must share memory with the input's tangent, any other must not
                elif tangent is not None and not _check_view(value, tangent, args, tangents):
                    tangent = unshared(tangent, tangents)
                if ctx.differentiates(out):
                    _put_tangent(dual, value, tangent)
    finally:
        set_forward_enabled(enabled)
    # only now: `differentiates` above reads them
    ctx.forget_marks()
    return output, ctx


def _put_tangent(dual: DualSession, value: object, tangent: object) -> None:
    """Give an output its tangent, if it is a value of the session."""
    if not isinstance(value, Value) or value._level is not dual.session:
        return
    if tangent is not None:
        tangent = laid_out_like(tangent, value._inner)
    dual.tangents.put(value._inner, tangent)


def _tangents_of(dual: DualSession, args: Sequence[object]) -> list[torch.Tensor | None]:
    """Return the tangent of each argument. None without one, and while forward mode is off."""
    if not computes_tangents(0):
        return [None] * len(args)
    tangents: list[Any] = []
    for argument in args:
        if isinstance(argument, Value) and argument._level is dual.session:
            tangents.append(dual.tangents.of(argument))
        else:
            tangents.append(None)
    return tangents


def _check_write(before: torch.Tensor | None, version: int | None, tensor: object) -> None:
    """Check an input that ``forward`` wrote to. Its tangent must have been written to as well, so
    that both keep their aliases."""
    if before is None:
        return
    if before._version == version:
        raise RuntimeError(TANGENT_NOT_WRITTEN)
    if tensor is not before:
        raise RuntimeError(
            "An inplace custom Function is not returning the forward mode gradients as-is. "
            "For an input that forward writes to (mark_dirty), "
            "jvp must return the very tangent that it was given."
        )


def _check_view(
    value: torch.Tensor, tensor: torch.Tensor, args: Arguments, tangents: Sequence[Any]
) -> bool:
    """Check an output that is a view of an input. Its tangent must be a view of that
    input's tangent."""
    view = getattr(value, "_view", None)
    if view is None or view.creation != "function":
        return False
    tangent_view = None
    if isinstance(tensor, Value):
        tangent_view = tensor._view
    if tangent_view is None:
        raise RuntimeError(
            "A custom Function's forward is returning a view (or an input as-is) but the jvp "
            "is not returning a view."
        )
    for argument, tangent in zip(args, tangents, strict=True):
        if tangent is None or not _shows(argument, view.base):
            continue
        # no view has a view for its base, so a tangent that is one stands for its own base
        if tangent._view is None:
            base, what = tangent, "the given grad input"
        else:
            base, what = tangent._view.base, "the same base as the given grad input"
        if tangent_view.base is not base:
            raise RuntimeError(
                "A custom Function is returning a view but the jvp is not "
                f"returning a view of {what}."
            )
    return True


def _shows(value: Value, base: object) -> bool:
    """Return whether ``value`` is ``base`` or a view of it."""
    return value is base or (value._view is not None and value._view.base is base)
