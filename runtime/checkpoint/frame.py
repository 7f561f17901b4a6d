"""Checkpoint a call by saved-tensor hooks: the graph is recorded as usual, and saved tensors are
computed again when they are needed.

A *frame* is one call of a checkpointed function. In the first run the pack hook puts a *holder*
into the graph in place of each saved tensor. The first unpack of a backward pass runs the function
again. The second run saves its tensors in the same order, and its pack hook stores those whose
holders are still alive.

Frames nest without further code. The arguments of an inner frame are saved through the hooks of the
outer one, so unpacking them may first run the outer function again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch

from ..autograd.graph import saved_tensors_hooks
from ..rules.record import extent
from ..seam.ambient import Ambient
from ..seam.levels import Value
from ..tape.running import RUNNING
from ..tape.saved import HOOKS, Pack, Saved, Unpack, present, restore, save
from ..tape.values import edge_of
from .op_log import OpLog
from .state import Surroundings

Metadata = dict[str, Any]


class CheckpointError(RuntimeError):
    """The second run of a checkpointed function differed from the first."""


_TIP = (
    "\n\nTip: checkpoint(..., debug=True), or set_checkpoint_debug_enabled(True) around several "
    "calls, adds to this message the ops of both runs and where they were called."
)


def _metadata(tensor: torch.Tensor) -> Metadata:
    """Return what both runs must agree on."""
    return {"shape": extent(tensor), "dtype": tensor.dtype, "device": tensor.device}


class FrameHooks(saved_tensors_hooks):
    """Hooks of a frame. A transform, which they do not see, saves what it needs. ``around``: the
    user's pair that would apply without them."""

    for_transforms = True
    around: tuple[Pack, Unpack] | None = None

    def __enter__(self) -> None:
        self.around = hooks_of_the_user()
        super().__enter__()
        _ENTERED.hooks.append(self)

    def __exit__(self, *exc: object) -> None:
        _ENTERED.hooks.pop()
        super().__exit__(*exc)


class _Entered(Ambient):
    """The hooks of frames in this thread."""

    def __init__(self) -> None:
        self.hooks: list[FrameHooks] = []


_ENTERED = _Entered()


def hooks_of_the_user() -> tuple[Pack, Unpack] | None:
    """Return the innermost pair for saved tensors that is no frame's, such as that of
    ``save_on_cpu``."""
    pair = HOOKS.innermost()
    if pair is None or not _ENTERED.hooks:
        return pair
    # `around` is the answer from when the frame was entered, so it is no pair of an outer frame
    frames = _ENTERED.hooks[-1]
    if pair[0] is frames.pack_hook:
        return frames.around
    return pair


class _Stop(BaseException):
    """Stop the second run after the last tensor that is needed. A BaseException, so that no
    ``except Exception`` of the user catches it."""


class _Holder:
    """Stand in the graph for one saved tensor. It refers to its frame, which lives as long
    as the graph does."""

    __slots__ = ("__weakref__", "frame", "position")

    def __init__(self, frame: Frame, position: int) -> None:
        self.frame = frame
        self.position = position


class _Argument:
    """A tensor argument of the function, saved as a node saves it."""

    __slots__ = ("edge", "level", "saved")

    def __init__(self, value: Any) -> None:
        self.level = value._level
        self.edge = edge_of(value)
        self.saved = save(self.level, value._inner, self.edge)

    def value(self) -> Any:
        """Return the argument with its history. Raise if it was written to since."""
        return present(self.level, restore(self.level, self.saved, self.edge), self.edge)


def _save_argument(argument: object) -> object:
    if isinstance(argument, Value) and hasattr(argument, "_edge"):
        return _Argument(argument)
    return argument


def _restore_argument(argument: object) -> object:
    if type(argument) is _Argument:
        return argument.value()
    return argument


class GraphExecGroup:
    """A block whose backward passes share one second run, as
    ``torch.utils.checkpoint.GraphExecGroup``.

    No two of them may run over the same part of the graph.
    """

    def __enter__(self) -> GraphExecGroup:
        if _GROUP.current is not None:
            raise RuntimeError("GraphExecGroup cannot be nested")
        _GROUP.current = self
        return self

    def __exit__(self, *exc: object) -> None:
        _GROUP.current = None


class _Group(Ambient):
    """The group that this thread's backward passes belong to, and share second runs in."""

    current: GraphExecGroup | None = None


_GROUP = _Group()


class Frame:
    """One call of a checkpointed function. ``runs``: per backward pass, the tensors of its second
    run that are not used yet, by position."""

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        surroundings: Surroundings,
        again: AbstractContextManager[object],
        *,
        check: bool,
        early_stop: bool,
        log: OpLog | None,
    ) -> None:
        self.function = function
        self.args = tuple(map(_save_argument, args))
        self.kwargs = {name: _save_argument(argument) for name, argument in kwargs.items()}
        self.surroundings = surroundings
        self.again = again
        self.check = check
        self.early_stop = early_stop
        self.log = log
        # Of the first run, by position: who stands in the graph, and what it stands for. The
        # references are weak, since a holder that the graph has freed needs no tensor.
        self.holders: list[weakref.ref[_Holder]] = []
        self.metadata: list[Metadata] = []
        self.complete = False
        # by backward pass: what its second run has saved and nobody has read yet
        self.runs: weakref.WeakKeyDictionary[object, dict[int, Saved]] = weakref.WeakKeyDictionary()

    @contextmanager
    def recording(self) -> Generator[None]:
        """Save tensors by the hooks of this frame, in the first run."""
        with FrameHooks(self._pack, _unpack):
            yield
        self.complete = True

    def _pack(self, tensor: torch.Tensor) -> _Holder:
        """Return a holder for ``tensor``, which the graph saves in its place."""
        holder = _Holder(self, len(self.holders))
        self.holders.append(weakref.ref(holder))
        self.metadata.append(_metadata(tensor))
        return holder

    def tensor(self, position: int) -> torch.Tensor:
        """Return the tensor of the holder at ``position``. A second call in the same backward pass
        raises :class:`CheckpointError`."""
        key = _GROUP.current or RUNNING.task
        if key is None:  # a saved tensor is inspected outside of any pass
            return self._run_again()[position].check(None)
        run = self.runs.get(key)
        if run is None:
            run = self.runs[key] = self._run_again()
        if position not in run:
            raise CheckpointError(
                "torch.utils.checkpoint: Unpack is being triggered for a tensor that was "
                "already unpacked once. A recomputed tensor is held until it is read: "
                "read ctx.saved_tensors once in a backward, and hold on to the result."
            )
        # not stored any longer, so that its memory is free once the node has used it
        return run.pop(position).check(None)

    def _run_again(self) -> dict[int, Saved]:
        """Run the function again, and return the tensors that are still needed, by position. Raise
        ``CheckpointError`` if it saves others than the first run."""
        run: dict[int, Saved] = {}
        recomputed: list[Metadata] = []
        # so far: a backward pass inside the first run comes here before all tensors are saved
        expected = len(self.holders)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            """Save what the second run computes, if a holder of the first one still needs it."""
            position = len(recomputed)
            if position >= expected and self.complete:
                raise self._failure(
                    "torch.utils.checkpoint: trying to save more tensors during recomputation "
                    "than during the original forward pass."
                )
            recomputed.append(_metadata(tensor))
            if position < expected and self.holders[position]() is not None:
                inner = tensor._inner if isinstance(tensor, Value) else tensor
                run[position] = Saved(inner)
            if self.early_stop and len(recomputed) == expected:
                raise _Stop
            # the dispatcher increments the version of an in-place result after this
            if position in run and run[position].tensor is HOOKS.about_to_bump:
                run[position].version += 1
            return tensor.detach()

        args = map(_restore_argument, self.args)
        kwargs = {name: _restore_argument(argument) for name, argument in self.kwargs.items()}
        log: AbstractContextManager[object] = nullcontext()
        if self.log is not None:
            log = self.log.start_recomputation()
        # only hooks of the innermost frame are called, so a stop is always its own
        hooks = FrameHooks(pack, _same)
        with (
            suppress(_Stop),
            hooks,
            self.surroundings.restored(),
            self.again,
            torch.enable_grad(),
            log,
        ):
            self.function(*args, **kwargs)
        if self.complete:
            self._compare(recomputed)
        return run

    def _compare(self, recomputed: list[Metadata]) -> None:
        """Raise unless the second run has saved tensors like those of the first run."""
        if len(recomputed) != len(self.metadata):
            raise self._failure(
                "torch.utils.checkpoint: A different number of tensors was saved during "
                "the original forward and recomputation.\nNumber of tensors saved during forward: "
                f"{len(self.metadata)}\n"
                f"Number of tensors saved during recomputation: {len(recomputed)}."
            )
        if not self.check:
            return
        # a tensor whose holder is gone will not be read, so it may differ
        pairs = enumerate(zip(self.metadata, recomputed, strict=True))
        differences = [
            f"tensor at position {position}:\nsaved metadata: {first}\n"
            f"recomputed metadata: {second}\n"
            for position, (first, second) in pairs
            if first != second and self.holders[position]() is not None
        ]
        if differences:
            raise self._failure(
                (
                    "torch.utils.checkpoint: Recomputed values for the following tensors have "
                    "different metadata than during the forward pass.\n"
                )
                + "".join(differences)
                + "."
            )

    def _failure(self, message: str) -> CheckpointError:
        """Return the error with the ops of both runs, or with the tip how to get them."""
        if self.log is None:
            return CheckpointError(message + _TIP)
        return CheckpointError(self.log.report(message))


def _unpack(holder: _Holder) -> torch.Tensor:
    return holder.frame.tensor(holder.position)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
