"""Checkpoints in a program that is captured.

A checkpoint is a region of the graph here. Its calls say whether the partition is to save their
results. So the values of the region are computed again without a second run of the function.

    checkpoint(nn.BatchNorm1d(2), x)        # eager mode updates the statistics twice

What the function writes to tensors that are older than the call, the second run writes again. Such
a function does run twice in the capture: the second time when a gradient first comes to a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from weakref import WeakSet

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..autograd.graph import saved_tensors_hooks
from ..functionalize.functional_level import FunctionalLevel
from ..functionalize.stores import WriteWatch
from ..seam.levels import Value
from ..tape.running import RUNNING
from ..tape.saved import Saved
from ..trace.provenance import here
from ..trace.regions import region, running_levels
from .selective import (
    OFFLOADED,
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    Policy,
    SelectiveCheckpointContext,
    policy_of_context,
    runs_again,
)


def captured(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    first: AbstractContextManager[Any],
    again: AbstractContextManager[Any],
    *,
    stops: bool,
) -> Any:
    """``function(*args, **kwargs)`` as a region. ``first``, ``again``: the contexts of the two
    runs; those of a policy are asked for each call. ``stops``: whether the second run ends after
    the last tensor that it saves."""
    policy = policy_of_context(first)
    if policy is not None:
        first = again = nullcontext()
    saves = _Saves()
    with ExitStack() as around:
        watches = [around.enter_context(_watched(level)) for level in _functional_levels()]
        calls = around.enter_context(region(lambda n: _wish(policy, n)))
        around.enter_context(first)
        around.enter_context(saved_tensors_hooks(saves.pack, _unpack))
        results = function(*args, **kwargs)
    if _writes(watches) and torch.is_grad_enabled():
        run = _SecondRun(function, args, kwargs, again, saves.number if stops else None)
        run.prepare(results, calls)
    return results


class _Saves:
    """Pack hook that counts what is saved. ``stop_at``: the number after which it stops the run."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.number = 0
        self.stop_at = stop_at

    def pack(self, t: torch.Tensor) -> Saved:
        self.number += 1
        if self.number == self.stop_at:
            raise _Stop
        return Saved(t)


def _unpack(saved: Saved) -> torch.Tensor:
    return saved.check(None)


def _functional_levels() -> list[FunctionalLevel]:
    return [level for level in running_levels() if isinstance(level, FunctionalLevel)]


@contextmanager
def _watched(level: FunctionalLevel) -> Iterator[WriteWatch]:
    watch = WriteWatch()
    level.watches.append(watch)
    try:
        yield watch
    finally:
        level.watches.remove(watch)


def _writes(watches: list[WriteWatch]) -> bool:
    return any(watch.found is not None for watch in watches)


class _Stop(BaseException):
    """Stops the second run, see :class:`.frame._Stop`."""


class _SecondRun:
    """The second run of a function that writes to older tensors. ``saves``: after how many saved
    tensors it ends; None: it does not. ``passes``: the backward passes in which it has run."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        again: AbstractContextManager[Any],
        saves: int | None,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.again = again
        self.saves = saves
        self.passes: WeakSet[Any] = WeakSet()

    def prepare(self, results: Any, calls: list[fx.Node]) -> None:
        """Run when a gradient comes to one of ``results``. ``calls``: those of the first run."""
        given = {id(a) for a in pytree.tree_leaves((self.args, self.kwargs))}
        recorded = [
            t
            for t in pytree.tree_leaves(results)
            if isinstance(t, Value) and t.requires_grad and id(t) not in given
        ]
        if not recorded or self.saves == 0:
            return
        _refuse_draws(calls)
        for t in recorded:
            t.register_hook(self._at_gradient)  # type: ignore[no-untyped-call]

    def _at_gradient(self, gradient: torch.Tensor) -> None:
        if RUNNING.task in self.passes:
            return
        if RUNNING.task is not None:
            self.passes.add(RUNNING.task)
        with (
            suppress(_Stop),
            saved_tensors_hooks(_Saves(self.saves).pack, _unpack),
            self.again,
            torch.enable_grad(),
        ):
            self.function(*self.args, **self.kwargs)


def _refuse_draws(calls: list[fx.Node]) -> None:
    if any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in calls):
        raise RuntimeError(
            "a function that is checkpointed draws random numbers and writes to an older tensor, "
            "such as the statistics of batch norm. It writes twice, and a graph would draw other "
            "numbers the second time. Checkpoint the part that draws and the part that writes "
            f"each by itself.{here()}"
        )


def _wish(policy: Policy | None, n: fx.Node) -> CheckpointPolicy:
    func: Any = n.target
    if policy is None:
        return CheckpointPolicy.MUST_RECOMPUTE
    if not isinstance(func, torch._ops.OpOverload) or func in SAC_IGNORED_OPS or runs_again(func):
        return CheckpointPolicy.PREFER_RECOMPUTE
    args, kwargs = fx.map_arg((n.args, n.kwargs), lambda a: a.meta.get("val"))
    wish = policy(
        SelectiveCheckpointContext(is_recompute=False, op_output=n.meta.get("val")),
        func,
        *args,
        **kwargs,
    )
    if wish in OFFLOADED:
        raise RuntimeError(
            f"a checkpoint policy asks for {wish} of {func}. "
            "A compiled function has no offloading; use MUST_SAVE."
        )
    if isinstance(wish, CheckpointPolicy):
        return wish
    return CheckpointPolicy.MUST_SAVE if wish else CheckpointPolicy.PREFER_RECOMPUTE
