"""Run checkpoints in a program that is captured.

A checkpoint is a region of the graph here. Its calls say whether the partition is to save their
results. So the values of the region are computed again without a second run of the function.

    checkpoint(nn.BatchNorm1d(2), x)        # eager mode updates the statistics twice

What the function writes to tensors that are older than the call, the second run writes again. So it
is with Python's state, such as a counter. Such a function does run twice in the capture: the second
time when the backward pass first asks for a tensor that the first run has saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from ..functionalize.functional_level import FunctionalLevel
from ..functionalize.stores import WriteWatch
from ..seam.graph_walks import nodes_among
from ..seam.levels import Value
from ..seam.user_code import mark_state, repeated_by_pass
from ..tape.running import RUNNING
from ..tape.saved import Saved
from ..torch_private.dispatcher import OpOverload
from ..torch_private.pytrees import pytree
from ..trace.call_facts import facts_of
from ..trace.provenance import here
from ..trace.regions import new_calls, region, running_levels
from .frame import CheckpointError, FrameHooks
from .selective import (
    OFFLOADED,
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    Policy,
    SelectiveCheckpointContext,
    policy_of_context,
    runs_again,
)


@contextmanager
def captured(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    first: AbstractContextManager[object],
    again: AbstractContextManager[object],
    *,
    stops: bool,
) -> Iterator[SecondRun]:
    """Mark the call ``function(*args, **kwargs)``, which runs in this block, as a region.

    ``first``, ``again``: the contexts of the two runs; those of a policy are asked for each call.
    ``stops``: whether the second run stops after the last tensor that it saves.
    """
    # a graph has no run to cache results of: the policy marks its nodes
    policy = policy_of_context(first)
    if policy is not None:
        first = again = nullcontext()
    run = SecondRun(function, args, kwargs, again)
    has_changed_state = mark_state()
    with ExitStack() as around:
        watches = [around.enter_context(_watch_writes(level)) for level in _functional_levels()]
        calls = around.enter_context(region(lambda node: _wish(policy, node)))
        around.enter_context(repeated_by_pass(function))
        around.enter_context(first)
        around.enter_context(FrameHooks(run.pack, run.unpack))
        yield run
    if not torch.is_grad_enabled():
        return
    # only a second run of the function itself repeats such effects, as in eager mode
    if any(watch.found for watch in watches) or _write_to_older(calls) or has_changed_state():
        run.prepare(calls, stops)


def _functional_levels() -> list[FunctionalLevel]:
    """List the running levels that functionalize, whose writes leave no call in the graph."""
    return [level for level in running_levels() if isinstance(level, FunctionalLevel)]


@contextmanager
def _watch_writes(level: FunctionalLevel) -> Iterator[WriteWatch]:
    """Watch the writes of ``level`` in this block."""
    watch = WriteWatch()
    level.watches.append(watch)
    try:
        yield watch
    finally:
        level.watches.remove(watch)


def _write_to_older(calls: list[fx.Node]) -> bool:
    """Return whether the calls, which a trace without functionalization has, write to a tensor that
    is no result of theirs."""
    inside = set(calls)
    for node in calls:
        func = node.target
        if not isinstance(func, OpOverload):
            continue
        facts = facts_of(func)
        if not facts.may_write:
            continue
        targets: list[Any] = [node.args[index] for index in facts.written if index < len(node.args)]
        # an op that hides its writes may write to any argument
        if not targets:
            targets = node.all_input_nodes
        if any(_origin(target, inside) not in inside for target in nodes_among(targets)):
            return True
    return False


def _origin(node: fx.Node, inside: set[fx.Node]) -> fx.Node:
    """Return the call whose memory ``node`` shows, or a node from before."""
    while node in inside and isinstance(node.target, OpOverload) and runs_again(node.target):
        if not node.all_input_nodes:
            break
        node = node.all_input_nodes[0]
    return node


class _Stop(BaseException):
    """Stop the second run, see :class:`.frame._Stop`."""


class SecondRun:
    """The second run of a function that writes to older tensors.

    ``saves``: how many tensors the first run has saved. ``calls``: what it has called in the graph.
    ``stop_at``: after how many the second one stops; None: it does not. ``passes``: by the backward
    passes in which it has run, what it has saved there; None: the function does not write to older
    tensors, or is still running.
    """

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        again: AbstractContextManager[object],
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.again = again
        self.saves = 0
        self.calls: list[fx.Node] = []
        self.stop_at: int | None = None
        self.passes: WeakKeyDictionary[object, list[Saved]] | None = None

    def pack(self, tensor: torch.Tensor) -> tuple[int, Saved]:
        """Return the pack hook of the first run: the position of ``tensor`` among what it saves,
        and ``tensor``."""
        self.saves += 1
        return self.saves - 1, Saved(tensor)

    def unpack(self, packed: tuple[int, Saved]) -> torch.Tensor:
        """Return what the second run has saved here. It may have read what the first one wrote."""
        position, first = packed
        # the function has no such effects, and the graph computes its values again
        if self.passes is None:
            return first.check(None)
        second = self._run()
        if len(second) <= position:
            raise CheckpointError(
                "a function that is checkpointed in a program that is captured writes to an older "
                "tensor or to Python's state, such as a counter. It writes once more in the "
                f"backward pass, and saves {len(second)} of {self.saves} tensors there. If that "
                "pass is outside of the program, take it in: jit the whole step."
                f"{here()}"
            )
        return second[position].check(None)

    def prepare(self, calls: list[fx.Node], stops: bool) -> None:
        """Run when a backward pass first asks for a saved tensor. ``calls``: those of the first
        run."""
        if self.saves:
            _refuse_draws(calls)
        if stops:
            self.stop_at = self.saves
        self.calls = calls
        self.passes = WeakKeyDictionary()

    def follow(self, results: object) -> None:
        """Run also when a gradient comes to one of ``results``, as a reentrant checkpoint does."""
        if self.passes is None:
            return
        for tensor in pytree.tree_leaves(results):
            if isinstance(tensor, Value) and tensor.requires_grad:
                tensor.register_hook(self._run_at_gradient)  # type: ignore[no-untyped-call]

    def _run_at_gradient(self, gradient: torch.Tensor) -> None:
        """Run once more. The gradients of eager mode are those of this run, and here of the first
        one, so that both have to call the same."""
        with new_calls() as calls:
            self._run()
        if calls and list(map(_call_of, calls)) != list(map(_call_of, self.calls)):
            raise RuntimeError(
                "a function under checkpoint(use_reentrant=True) computes something else in its "
                "second run, since it changes Python's state that it reads. Gradients would be "
                "those of the first run. Let it read no state that it changes, or say "
                f"use_reentrant=False.{here()}"
            )

    def _run(self) -> list[Saved]:
        """Run once in this backward pass, and return what it saves there."""
        assert self.passes is not None
        # outside of any pass somebody looks at a saved tensor, and each look is a run
        task = RUNNING.task
        if task is not None:
            earlier = self.passes.get(task)
            if earlier is not None:
                return earlier
        # noted before the run, so that a question inside of it does not start one more
        saved: list[Saved] = []
        if task is not None:
            self.passes[task] = saved

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            """Note what the second run saves, and stop it after the last one that is needed."""
            saved.append(Saved(tensor))
            if len(saved) == self.stop_at:
                raise _Stop
            return tensor

        hooks = FrameHooks(pack, lambda tensor: tensor)
        with suppress(_Stop), hooks, self.again, torch.enable_grad():
            self.function(*self.args, **self.kwargs)
        return saved


def _call_of(node: fx.Node) -> tuple[object, list[str]]:
    """Return what is called at ``node``, and its arguments that are no nodes, as texts."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return node.target, [repr(leaf) for leaf in leaves if not isinstance(leaf, fx.Node)]


def _refuse_draws(calls: list[fx.Node]) -> None:
    """Raise if one of the calls draws random numbers."""
    if any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in calls):
        raise RuntimeError(
            "a function that is checkpointed draws random numbers and writes to an older tensor, "
            "such as the statistics of batch norm, or to Python's state, such as a counter. It "
            "writes twice, and a graph would draw other numbers the second time. Checkpoint the "
            f"part that draws and the part that writes each by itself.{here()}"
        )


def _wish(policy: Policy | None, node: fx.Node) -> CheckpointPolicy:
    """Return what the policy says of a call, as ``meta["recompute"]`` of its node."""
    func = node.target
    if policy is None:
        return CheckpointPolicy.MUST_RECOMPUTE
    if not isinstance(func, OpOverload) or func in SAC_IGNORED_OPS or runs_again(func):
        return CheckpointPolicy.PREFER_RECOMPUTE
    # the policy sees the abstract values of the trace
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
    wish = policy(
        SelectiveCheckpointContext(is_recompute=False, op_output=node.meta.get("val")),
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
    # a policy may also return a Boolean: whether to save
    if wish:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
