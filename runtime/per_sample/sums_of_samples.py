"""Follow sums and means over the samples through the functions that a program computes of them: the
loss is one.

``losses.sum() / 8`` with 8 samples is refused, since it may be a mean. ``(losses * mask).sum() /
mask.sum()`` is a mean over the tokens of all samples, and the gradients are those of the means of
each sample's own tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..rules.ops import FUNCTIONAL, Op
from ..rules.samples.places import Mixed, Multiple, Placed, Pooled, Tensor
from ..seam.levels import Value
from ..session.tensor import SESSION
from ..tape.values import edge_of
from .boundary_nodes import Pool
from .followed_calls import FollowedCall
from .states import equal
from .uses import unflattened, writes_to

# functions that are linear in each tensor
_LINEAR = frozenset(
    (
        *("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "neg"),
        *("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar"),
        *("clone", "copy", "_to_copy", "detach", "alias"),
        *("view", "_unsafe_view", "squeeze", "unsqueeze", "expand", "sum", "mean", "stack"),
    )
)


def state_of_function(call: FollowedCall, reduction: str | None, size: int | None) -> Pooled:
    """Return the state of a function of sums or means over the samples. ``Mixed`` if it is not
    linear. ``reduction``, ``size``: those of the session."""
    op = call.op
    own = _own_after(call)
    if own is not None:
        return Pooled(own=own)
    pooled = [state for state in call.states if isinstance(state, Pooled)]
    if not _is_linear(op, len(pooled)):
        raise Mixed(
            "it is not linear in a sum or mean over the samples, so the loss is no sum of "
            "those of the samples. Compute it of each sample, before the sum or mean"
        )
    if not all(equal(p.factor, pooled[0].factor) for p in pooled[1:]):
        raise Mixed(
            "it adds a sum and a mean over the samples. "
            "Say which the gradients are of by reduction='sum' or 'mean'"
        )
    # a sum that the program divides by the number of samples is a mean of its own making
    if reduction is None and op.base_name.rstrip("_") in ("mul", "div"):
        assert size is not None
        refuse_number_of_samples(op.base_name, call.flat, pooled[0].is_sum, size)
    return Pooled(pooled[0].factor, multiple=_multiple(call))


def _is_linear(op: Op, pooled: int) -> bool:
    """Return whether an op is linear in its arguments, of which ``pooled`` are sums or means."""
    name = op.func.name().removeprefix("aten::")
    # the product of two sums is not linear
    return name in _LINEAR and not (pooled > 1 and name.startswith(("mul", "div")))


def refuse_number_of_samples(
    name: str, arguments: Sequence[object], is_sum: bool, size: int
) -> None:
    """Raise ``Mixed`` if a sum over the samples is divided by a multiple of their number, or a mean
    is multiplied with one.

    Example: ``losses.sum() / 4`` with a batch of 4 is their mean, or a sum with a weight. ``name``:
    the name of the op, ``arguments``: its arguments."""
    divides = name.startswith("div")
    how = "divided by" if divides else "multiplied with"
    what, instead = "mean", "sum()"
    if is_sum:
        what, instead = "sum", "mean()"
    for number in _numbers(arguments):
        factor = number
        if divides != is_sum:  # a sum times 1 / 4 is divided by 4
            factor = 1 / number
        if _is_multiple(factor, size):
            raise Mixed(
                f"a {what} over {size} samples is {how} {number:g}, which may be their number. "
                f"Use {instead}, or say which the gradients are of by reduction='sum' or 'mean'"
            )


def _is_multiple(number: float, size: int) -> bool:
    """Return whether ``number`` is a multiple of ``size``, as far as its digits tell."""
    if not math.isfinite(number):
        return False
    near = round(number)
    return near >= size and near % size == 0 and math.isclose(number, near, rel_tol=1e-6)


def _numbers(arguments: Sequence[object]) -> list[float]:
    """Return the magnitudes of the numbers among ``arguments``, without zeros."""
    magnitudes: list[float] = []
    for argument in arguments:
        number: object = argument
        if type(argument) is torch.Tensor and argument.numel() == 1 and not argument.is_complex():
            number = argument.item()
        if isinstance(number, (int, float)) and number:
            magnitudes.append(abs(float(number)))
    return magnitudes


# --- sums of constants ----------------------------------------------------------------------------
#
# ``(losses * mask).sum() / mask.sum()`` is a mean over the tokens of all samples. Alone, a sample
# divides by the sum of its own mask. So a sum of constants keeps the sums of the samples.


def with_own_sums(call: FollowedCall, placed: Placed, pooled: Pooled, out: object) -> Pooled:
    """Return the state ``pooled`` of ``out``, with the sums of the samples if it is one number, a
    sum of constants. ``placed``: see :meth:`.FollowedCall.placed`."""
    if call.op.base_name != "sum" or not placed.size or not pooled.is_sum:
        return pooled
    if not isinstance(out, torch.Tensor) or out.dim() or edge_of(out) is not None:
        return pooled
    by_sample = placed.places["self"].split_gradient(placed.args["self"], placed.size)
    return Pooled(own=by_sample.flatten(1).sum(1))


def _own_after(call: FollowedCall) -> Tensor | None:
    """Return the sums of the samples after a function of one sum of constants and of numbers, such
    as ``mask.sum().clamp(min=1)``. None if the call is another one."""
    own: Tensor | None = None
    arguments: list[object] = []
    for argument, state in zip(call.flat, call.states, strict=True):
        if isinstance(state, Pooled):
            if state.own is None or own is not None:
                return None
            argument = own = state.own
        elif state is not None or (isinstance(argument, torch.Tensor) and argument.dim()):
            return None
        arguments.append(argument)
    if torch.Tag.pointwise not in call.op.func.tags and call.op.base_name not in _COPIES:
        return None
    args, kwargs = unflattened(arguments, call.layout)
    result: Tensor = call.op.func(*args, **kwargs)
    return result


_COPIES = ("_to_copy", "clone", "detach", "alias")


# --- sums of losses that are divided by sums of constants -----------------------------------------


def own_denominator(call: FollowedCall) -> Tensor | None:
    """Return the sums of the samples by which a call divides a multiple of the sum of their losses.
    None if the call is another one."""
    if call.op.func is not torch.ops.aten.div.Tensor:
        return None
    losses, constants = call.states
    if not isinstance(losses, Pooled) or not isinstance(constants, Pooled):
        return None
    if not losses.is_sum or losses.multiple is None:
        return None
    if _before_note(_origin(losses.multiple, call.flat[0])) is None:
        return None
    return constants.own


def divided_by_own(call: FollowedCall, own: Tensor) -> tuple[object, Pooled]:
    """Return a multiple of the sum of the losses, divided by a sum of constants of which each
    sample has ``own``, and its state."""
    multiple = call.states[0].multiple  # type: ignore[attr-defined]
    losses, constants = call.flat
    origin = _before_note(_origin(multiple, losses))
    # from before the node that notes a sum, since this is a mean
    losses = SESSION.record(torch.ops.aten.mul.Tensor, (origin, multiple.number), {})
    outs = SESSION.record(call.op.func, (losses, constants), {})
    return outs, Pooled(torch.where(own != 0, SESSION.lowered(constants) / own, 0.0))


def _origin(multiple: Multiple, value: object) -> Any:
    """Return the sum of which ``value`` is a multiple. None if it was written to since."""
    if multiple.of is None:
        return value
    if writes_to(multiple.of).number != multiple.writes:
        return None
    return multiple.of


def _before_note(value: Any) -> Any:
    """Return ``value`` with the history before its last node. None if that does not note a sum."""
    if not isinstance(value, Value):
        return None
    edge = edge_of(value)
    if edge is None or not isinstance(edge[0], Pool):
        return None
    return SESSION.wrap(value._inner, edge[0].edges[0])


def _multiple(call: FollowedCall) -> Multiple | None:
    """Return of what sum a call computes a multiple, and which. None if it is another call."""
    if call.op.kind is not FUNCTIONAL or call.op.base_name not in ("mul", "div", "neg"):
        return None
    of: Any = None
    numbers: list[float] = []
    for argument, state in zip(call.flat, call.states, strict=True):
        if isinstance(argument, (int, float)):
            numbers.append(argument)
        elif isinstance(state, Pooled) and state.multiple is not None and of is None:
            of = _origin(state.multiple, argument)
            former = state.multiple.number
        else:
            return None
    if not isinstance(of, Value):
        return None
    if call.op.base_name == "neg":
        numbers = [-1.0]
    elif call.op.base_name == "div":  # no number is divided by a sum
        numbers = [1 / number for number in numbers]
    return Multiple(of, math.prod([former, *numbers]), writes_to(of).number)
