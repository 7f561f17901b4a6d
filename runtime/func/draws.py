"""Run the random ops of a ``vmap``, as its ``randomness=`` says.

``"error"`` refuses them, ``"same"`` draws once for all elements, and ``"different"`` draws once per
element: ``vmap(lambda x: x + torch.rand(2), randomness="different")(torch.zeros(3))`` draws six
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ..errors import BatchingError
from ..rules.ops import INPLACE, Op, generator_of, op_of
from ..rules.record import RECORDS
from ..seam.call_types import Arguments, BatchFlags, Keywords
from ..seam.dispatch import hand_over, innermost
from ..seam.keys import VIEWS, reopen_keys
from ..seam.passing_on import BELOW, SNAPSHOT, passing_on
from ..seam.scope import lifted, scope_outside
from ..torch_private.dispatcher import (
    DispatchKeySet,
    OpOverload,
    has_kernel_for_key,
    is_excluded,
    key_named,
    set_excluded,
    without_keys,
)
from ..torch_private.functorch_state import enter_vmap_mode, leave_vmap_mode
from ..torch_private.mode_stacks import (
    TorchDispatchMode,
    dispatch_mode_at,
    number_of_dispatch_modes,
    without_innermost_mode,
)
from ..trace.error_lines import name_line
from . import element_check

_UNSAID = (
    "vmap: called random operation while in randomness error mode. Say with randomness='same' "
    "or 'different' whether the elements of the batch share a draw, or draw outside of vmap."
)


class DrawError(BatchingError):
    """Raised for a draw inside of ``vmap`` under ``randomness="error"``, which is the default."""

    def __init__(self, message: str = _UNSAID) -> None:
        super().__init__(message)


class Batch(Protocol):
    """What a random op needs of its batch level. ``func/batch.py`` has the level."""

    number: int
    size: int
    randomness: str

    def physical(self, args: object) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the physical tensors of a call, and which arguments were batched."""

    def element(self, physical: list[object], batched: BatchFlags, b: int) -> list[Any]:
        """List the arguments of element ``b``."""

    def wrap(self, inner: torch.Tensor, /) -> Any:
        """Return a tensor that has the batch in front as a value of the level."""

    def spread(self, tensor: torch.Tensor) -> Any:
        """Return a tensor that all elements share as a batch."""

    def valued(self, result: object) -> Any:
        """Return the results of an op as values of the level."""

    def lowered_kwargs(self, kwargs: dict[str, object]) -> dict[str, Any]:
        """Return keyword arguments with the tensors that values of the level hold."""


def is_random(op: Op, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Return whether this call draws random numbers. An op with a ``training`` flag draws only in
    training."""
    if torch.Tag.nondeterministic_seeded not in op.func.tags and (
        op.record is None or not op.record.draws
    ):
        return False
    at = op.positions.get("training", op.positions.get("train"))
    return at is None or op.argument(at, args, kwargs) is not False


def _refuse_same(op: Op) -> None:
    """Raise: one draw for all elements would have to be of several distributions."""
    raise BatchingError(
        f"vmap: {op.func} draws from distributions that differ between the elements of the batch, "
        "which randomness='same' cannot do. Use randomness='different', or draw outside of vmap."
    )


def draw(level: Batch, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> Any:
    """Run a random op on batched values, with one draw per element or one draw for all, as
    ``randomness`` says."""
    if level.randomness == "error":
        raise DrawError()
    by_shape = op.record.draws == "shape"  # type: ignore[union-attr]
    if not by_shape:
        element_check.check(op, args, kwargs)
    physical, batched = level.physical(args)
    kwargs = level.lowered_kwargs(kwargs)
    if level.randomness == "same":
        if not by_shape:
            _refuse_same(op)
        return op.func(*level.element(physical, batched, 0), **kwargs)
    return level.valued(op.record.batch(op.func, level.size, batched, physical, kwargs))  # type: ignore[union-attr,misc]


def fill(level: Batch, op: Op, args: Sequence[Any], kwargs: dict[str, object]) -> Any:
    """Run a random op that overwrites its first argument, as ``x.bernoulli_(parameter)`` does.
    ``randomness`` decides how often it draws."""
    if level.randomness == "error":
        raise DrawError()
    target, *parameters = args
    # expanded while both are logical, since the batch comes before all other dimensions
    parameters = [
        parameter.expand(target.shape) if isinstance(parameter, torch.Tensor) else parameter
        for parameter in parameters
    ]
    (inner, *parameters), batched = level.physical([target, *parameters])
    if level.randomness == "different":
        op.func(inner, *parameters, **kwargs)
    elif any(batched[1:]):
        _refuse_same(op)
    else:
        # one draw in the shape of an element, for all elements
        inner.copy_(op.func(inner.new_empty(target.shape), *parameters, **kwargs))
    return target


def with_one_draw(op: Op, calls: list[tuple[list[object], dict[str, object]]]) -> list[object]:
    """Run the op once per element, each time from the same state of the generator. ``calls``:
    (arguments, options) of each element. ``BatchingError`` for an op that is known to draw
    from what its arguments say."""
    if op.record is not None and op.record.draws == "values":
        _refuse_same(op)
    from ..trace.regions import traced  # here, since traces import sympy

    if traced(*calls[0]):
        raise BatchingError(
            f"vmap: with randomness='same', {op.func} runs for each element "
            "from the same state of the generator, and a graph sets no state. "
            "Use randomness='different', or draw outside of vmap."
        )
    generator = generator_of(*calls[0])
    state = generator.get_state()
    results = []
    for element, options in calls:
        generator.set_state(state)
        results.append(op.func(*element, **options))
    return results


_refusals = torch.library.Library("aten", "IMPL", "VmapMode")
_VMAP_MODE = DispatchKeySet(key_named("VmapMode"))


def _raise_in_vmap_mode(op: Op) -> None:
    """Make an ATen op raise under the dispatcher's key ``VmapMode``. ATen itself does so for
    most ops that draw."""

    def kernel(*args: object, **kwargs: object) -> object:
        # dropout outside of training draws nothing
        if is_random(op, args, kwargs):
            raise DrawError()
        with without_keys(_VMAP_MODE):
            return op.func(*args, **kwargs)

    _refusals.impl(op.func, kernel)


# ops that draw and have no record of their own: in-place forms of ops that have one
_WITHOUT_RECORD = (torch.ops.aten.rrelu_with_noise_.default,)
for _func in (*(func for func, record in RECORDS.items() if record.draws), *_WITHOUT_RECORD):
    if _func.namespace == "aten" and not has_kernel_for_key(_func._name, "VmapMode"):
        _raise_in_vmap_mode(op_of(_func))


class Randomness:
    """Handles random ops without a batched argument. No level sees such a call.

    "error": the dispatcher's own vmap key makes these ops raise and costs other ops nothing.
    "different": a mode draws once per element."""

    def __init__(self, level: Batch) -> None:
        self.randomness = level.randomness
        self.mode = DrawPerElement(level) if level.randomness == "different" else None

    def __enter__(self) -> None:
        if self.randomness == "error":
            enter_vmap_mode()
        elif self.mode is not None:
            self.mode.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, kind: object, error: object, tb: Any) -> None:
        """Leave what was entered. Replace the error of the dispatcher's key by a ``DrawError``."""
        if self.mode is not None:
            self.mode.__exit__(kind, error, tb)  # type: ignore[no-untyped-call]
        elif self.randomness == "error":
            leave_vmap_mode()
            # the error of the dispatcher's key says nothing of randomness=, nor where the draw is
            if isinstance(error, RuntimeError) and "random operations inside of vmap" in str(error):
                refusal = DrawError()
                name_line(refusal, tb)
                raise refusal from error


_DRAWING: dict[Op, bool] = {}  # answers of `_draws_or_fills`


def _draws_or_fills(op: Op) -> bool:
    """Return whether an op may draw, or returns a buffer that is not filled yet. Such a buffer must
    differ per element: the draws of composite ops (dropout) may fill it."""
    answer = _DRAWING.get(op)
    if answer is None:
        record = op.record
        filled_later = record is not None and (record.unfilled or bool(record.draws))
        answer = _DRAWING[op] = torch.Tag.nondeterministic_seeded in op.func.tags or filled_later
    return answer


class DrawPerElement(TorchDispatchMode):
    """Makes a random op without batched arguments (``torch.rand(3)``) return a batch of draws. Used
    under ``randomness="different"``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every call passes through a wrapper that costs more than the dispatch

    def __init__(self, level: Batch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.level = level

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Run a call in the mode, see :meth:`_run`."""
        before = is_excluded(VIEWS)
        reopen_keys(func)
        set_excluded(VIEWS, True)  # the dispatcher has already counted a write to a plain tensor
        try:
            return self._run(func, args, kwargs or {})
        finally:
            # `.data` of a plain tensor calls this without the dispatcher, which would do it
            set_excluded(VIEWS, before)

    def _run(self, func: Any, args: Sequence[object], kwargs: dict[str, object]) -> Any:
        """Run a call below the mode: as a draw per element, or as it is."""
        level = self.level
        inner = innermost(args, None)
        op = op_of(func)
        draws = _draws_or_fills(op)
        belongs_to_inner = inner is not None and inner.number > level.number
        if belongs_to_inner and (draws or op.composite):
            with self:  # a rule of an inner level may draw from tensors that all elements share
                return hand_over(inner, func, args, kwargs)
        # a batched argument: the level itself decides how often the op draws
        is_batched = inner is not None and inner.number == level.number
        if not draws or is_batched:
            return func(*args, **kwargs)
        if op.kind is INPLACE:
            raise RuntimeError(
                "vmap: Cannot ask for different inplace randomness on an unbatched tensor: "
                f"{func} fills one that all elements of the batch share. Make it from a batched "
                "tensor, with empty_like or new_empty, or use the out-of-place form."
            )
        # else an outer mode lifts what it draws to the inner levels, and the batch
        # stands around these
        with scope_outside(level):  # type: ignore[arg-type]
            results = self._draw(op, args, kwargs)
        return lifted(results, level.number, given=args)

    def _draw(self, op: Op, args: Arguments, kwargs: Mapping[str, object]) -> object:
        """Return the results of a call without batched arguments, as values of the level."""
        level, func, record = self.level, op.func, op.record
        if not any(isinstance(argument, torch.Tensor) for argument in args):
            # a factory: the batch dimension goes before its size
            if record is not None and record.batch is not None:
                return level.wrap(
                    record.batch(func, level.size, (False,) * len(args), args, kwargs)
                )
            # randperm, normal(0.0, 1.0, size)
            return level.wrap(torch.stack([func(*args, **kwargs) for _ in range(level.size)]))
        # No argument is batched (``torch.bernoulli(p)`` of a closed-over ``p``), so no level
        # would see the call.
        spread = [
            level.spread(argument) if isinstance(argument, torch.Tensor) else argument
            for argument in args
        ]
        return func(*spread, **kwargs)


@contextmanager
def without_draws(level: Batch) -> Iterator[None]:
    """Run the body of a ``with`` block, which draws nothing, outside of the
    :class:`DrawPerElement` of ``level`` if that mode is innermost. The mode costs each ATen call
    more than a small kernel does."""
    count = number_of_dispatch_modes()
    mode: Any = dispatch_mode_at(count - 1) if count else None
    if not isinstance(mode, DrawPerElement) or mode.level is not level:
        yield
        return
    with without_innermost_mode():
        yield


# --- buffers of ATen's own ------------------------------------------------------------------------
#
# Under :class:`DrawPerElement` a buffer is a batch, as draws may fill it. The mean of ``ctc_loss``
# with lengths in a list fills one with the lengths, in C++, which finds no memory there.

_ctc_loss = torch.ops.aten.ctc_loss.IntList
_pass_on_ctc_loss = passing_on(_ctc_loss)
_MEAN = 1  # of `reduction`


def _ctc_loss_in_mode(
    keys: DispatchKeySet,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Any:
    """Compute the mean of ``ctc_loss`` of the losses, under the mode. All other calls are left to
    ATen."""
    arguments = (log_probs, targets, lengths, target_lengths, blank)
    modes = map(dispatch_mode_at, range(number_of_dispatch_modes()))
    if reduction != _MEAN or not any(isinstance(mode, DrawPerElement) for mode in modes):
        return _pass_on_ctc_loss(keys & BELOW, *arguments, reduction, zero_infinity)
    losses = _ctc_loss(*arguments, 0, zero_infinity)
    labels = torch.tensor(target_lengths, dtype=losses.dtype, device=losses.device)
    return (losses / labels.clamp_min(1)).mean()


_KERNELS = torch.library.Library("aten", "IMPL")
_KERNELS.impl("ctc_loss.IntList", _ctc_loss_in_mode, SNAPSHOT.name, with_keyset=True)
