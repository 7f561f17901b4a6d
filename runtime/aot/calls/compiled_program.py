"""One compiled program: which calls it is for, and what a call of it does.

It runs the forward graph, holds what the backward needs as a node of the tape, and carries out what
the program does to its arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from ...session.leaf import as_leaf
from ...session.tensor import SESSION, Tensor, unwrap
from ...tape.inplace import unrecorded
from ...tape.saved import refuse_inference
from ...torch_private.native_autograd import increment_version
from ...torch_private.pytrees import pytree
from ...trace.error_lines import name_origin
from ...trace.random_states import seeded
from ..capture.aliasing import Group, memory_of, place_of, sharing
from ..capture.boundary import Input, Output, refuse_hooked_view, write
from ..capture.joint import Joint
from ..capture.subclass_parts import flattened
from ..compilers.boxed import Boxed
from ..compilers.staged import Staged
from ..python_state.program_state import Effects
from ..python_state.reads import Read
from ..python_state.state_guard import StateGuard
from ..python_state.summary import StateSummary, summarize
from .arguments import Call, Kind, Target, enter
from .backward_calls import Backward, CompiledBackward
from .guards import Sizes, Take, guard
from .identities import Apart
from .shared_arguments import with_bases
from .subclass_calls import of_whole_tensors, parts_of


def count(placed: Mapping[int, int], leaves: Sequence[Any]) -> None:
    """Note of the arguments ``placed`` that the graph has written to them. For each: by how much
    its version is behind."""
    for i, behind in placed.items():
        t = leaves[i]
        if isinstance(t, Tensor):
            unrecorded(t)
        for _ in range(behind):
            increment_version([t])


def _told(
    error: BaseException,
    begun: Sequence[str],
    forward: Boxed,
    leaves: Sequence[Any],
    n_arguments: int,
) -> None:
    """Add to an error of the graph what is no more as it was before the call. ``begun``: what the
    call has done before the graph ran."""
    lines = [
        tb.tb_lineno
        for tb in _traceback(error)
        if tb.tb_frame.f_code is getattr(forward, "__code__", None)
    ]
    writes: Mapping[int, int] = getattr(
        forward, "writes", dict.fromkeys(getattr(forward, "placed", ()), 0)
    )
    lost = list(begun)
    for i, line in writes.items():
        if line <= (lines[0] if lines else line):
            t = leaves[i]
            what = "an argument" if i < n_arguments else "a tensor that the function closes over"
            partly = " (perhaps in part)" if not lines or line == lines[0] else ""
            lost.append(
                f"{what}, {str(t.dtype).removeprefix('torch.')}{list(t.shape)}, "
                f"has its new value{partly}"
            )
            if isinstance(t, Tensor):
                unrecorded(t)
    if lost:
        error.add_note(
            "The compiled call failed while its graph ran, and does not undo what it had done: "
            + "; ".join(lost)
            + "."
        )


def _traceback(error: BaseException) -> Iterator[TracebackType]:
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _ordinary(results: Sequence[Any], which: Sequence[int]) -> list[Any]:
    """``results``, of which those in ``which`` are copied outside of inference mode."""
    made = list(results)
    with torch.inference_mode(False), torch.no_grad():
        for i in which:
            made[i] = made[i].clone()
    return made


class CompiledProgram:
    """One program for one kind of inputs.

    ``placed``: the written arguments that ``forward`` writes to itself, see
    :mod:`..compilers.placing`. ``copied``: the other ones. ``direct``: of a program that only
    computes, which results of the graph a call returns; None for any other program. ``outside``:
    the kinds of the tensors that it closes over. ``sharing``: which of its arguments share memory,
    if it changes any. ``reads``: what the program finds in Python's state. ``unknown``: the
    arguments that are numbers of any value. ``begin``: does what a call does before the graph runs,
    and says what of it an error of the graph does not undo. ``state``: asks whether Python's
    objects are as the program has found them. ``effects``: what a call assigns to them. ``alone``:
    asks whether the program comes to no argument of a call by itself.
    """

    __slots__ = (
        "alone",
        "at_risk",
        "backward",
        "begin",
        "begun",
        "computed",
        "copied",
        "direct",
        "drawing",
        "effects",
        "exposed",
        "forward",
        "hooked",
        "joint",
        "n_forward",
        "outside",
        "placed",
        "reads",
        "replaced",
        "reread",
        "reshaped",
        "seedings",
        "sharing",
        "state",
        "unknown",
        "ways",
        "written",
    )

    def __init__(
        self,
        joint: Joint,
        forward: Boxed,
        backward: Backward | None,
        outside: Sequence[Kind],
        shared: tuple[Group, ...] | None,
        reads: Sequence[Read],
        unknown: frozenset[int] = frozenset(),
        begin: Callable[[Call], Sequence[str]] | None = None,
        state: StateGuard | None = None,
        effects: Effects | None = None,
        alone: Apart | None = None,
    ) -> None:
        self.joint = joint
        self.state = state or StateGuard(())
        self.effects = effects or Effects((), True)
        self.alone = alone or Apart()
        self.begin = begin
        self.reads = reads
        self.unknown = unknown
        if joint.layouts is not None:
            forward = of_whole_tensors(forward, joint.layouts)
        self.forward = forward
        if isinstance(self.forward, Staged):
            self.forward.settled = self._runs
        self.backward = backward
        boundary = joint.boundary
        self.n_forward = boundary.n_forward
        self.written = [(i, boundary.inputs[i]) for i in boundary.written]
        self.placed: Mapping[int, int] = getattr(self.forward, "placed", {})
        self.copied = [
            (number, i, x) for number, (i, x) in enumerate(self.written) if i not in self.placed
        ]
        self.computed = [x.tangent for _, x in self.written] + list(boundary.tangents)
        self.seedings = boundary.seedings
        # a generator that the program makes is one for all calls, so threads draw from it in turn
        self.drawing = threading.RLock()
        self.replaced: list[tuple[int, Input, Output]] = []
        self.begun: list[int] = []
        self.reshaped: list[tuple[int, Input]] = []
        self.hooked: list[tuple[int, Callable[[Any], Any]]] = []
        for i, x in enumerate(boundary.inputs):
            self._note_changes(i, x)
        self.exposed: Sequence[int] = ()
        self.at_risk: Sequence[int] = ()
        self.reread: Sequence[int] = ()
        if backward is not None:
            self.exposed = backward.exposed
            self.at_risk = backward.at_risk
            self.reread = backward.reread
        self.outside = outside
        self.sharing = shared
        # guards by the classes of the arguments
        self.ways: dict[tuple[type, ...], Take | None] = {}
        changes = bool(self.effects.changes)
        self.direct = None if backward is not None or changes else boundary.direct

    def _note_changes(self, i: int, x: Input) -> None:
        """Note what a call does to argument ``i`` besides a write."""
        if x.replaced is not None:
            self.replaced.append((i, x, x.replaced))
        if x.begins:  # it is reshaped before that
            self.begun.append(i)
        elif x.reshaped:
            self.reshaped.append((i, x))
        self.hooked += [(i, hook) for hook in x.hooks]

    def _runs(self, generated: Boxed) -> None:
        self.forward = generated

    def takes(self, call: Call, tracked: bool) -> Call | None:
        """``call`` with the tensors that the program closes over as further arguments; None if it
        is of another kind."""
        if not self.state.holds() or not all(read.holds() for read in self.reads):
            return None
        if not self.alone.holds(call.given):
            return None
        return self.completed(call, tracked)

    @property
    def moves_on(self) -> bool:
        """Whether the program leaves a state behind in which it does not serve the next call."""
        return bool(self.effects.left) or not self.state.stays

    @property
    def summary(self) -> StateSummary:
        """What the program has to do with Python's state, for people."""
        return summarize(self.state, self.effects.names)

    def moved(self) -> list[tuple[str, Any, Any]]:
        """Return what of Python's state is not as the program has found it: the name, what was
        there, what is."""
        return [
            *self.state.differences(),
            *((str(r), r.value, r.current()) for r in self.reads if not r.holds()),
        ]

    def completed(self, call: Call, tracked: bool) -> Call | None:
        """As :meth:`takes`, for a call that finds in Python's state what the program has found."""
        closed_over = self.joint.closed_over
        outside = enter(closed_over, tracked, False) if closed_over else None
        if outside is not None and outside.kinds != self.outside:
            return None
        tensors = [*call.plain, *(outside.plain if outside is not None else ())]
        if self.sharing is not None and sharing(tensors) != self.sharing:
            return None
        based = self._based(call)
        if based is None or not self._holds_symbols(based.plain):
            return None
        return based if outside is None else based.followed_by(outside)

    def _based(self, call: Call) -> Call | None:
        """``call`` with the bases of arguments that share memory as further arguments. None if
        these lie in other places than those that the program was traced for."""
        groups = self.joint.groups
        if all(group.identical for group in groups):
            return call
        for group in groups:
            alone = len(group.members) == 1 and group.places
            if alone and place_of(call.plain[group.members[0]]) != group.places[0]:
                return None
        return with_bases(call, groups)

    def _holds_symbols(self, plain: Sequence[Any]) -> bool:
        """Return whether the graph is right for the sizes and numbers of ``plain``."""
        joint = self.joint
        if joint.abstraction is None:
            return True
        asked = [plain[i] for i in self._asked(plain)]
        if joint.layouts is not None:
            asked = [part for t in asked for part in flattened(t)]
        return joint.abstraction.holds(*asked)

    def _asked(self, plain: Sequence[Any]) -> list[int]:
        """Return the arguments whose sizes or values are symbols of the graph."""
        sizes = self.joint.abstraction is not None and self.joint.abstraction.dynamic
        return [
            i
            for i, x in enumerate(plain)
            if i in self.unknown or (sizes and isinstance(x, torch.Tensor))
        ]

    def way(self, given: Sequence[object], kinds: Sequence[Kind], tracked: bool) -> Take | None:
        """Return the guard that finds this program for calls like the present one without asking
        :meth:`takes`."""
        classes = tuple(map(type, given))
        if classes not in self.ways:
            joint = self.joint
            if any(not group.identical for group in joint.groups) or (
                joint.layouts is not None and joint.abstraction is not None
            ):
                self.ways[classes] = None
            else:
                holds = (
                    None
                    if joint.abstraction is None
                    else Sizes(
                        joint.abstraction.holds, self._asked(given), joint.abstraction.dynamic
                    )
                )
                self.ways[classes] = guard(
                    given,
                    kinds,
                    joint.closed_over,
                    self.outside,
                    self.reads,
                    self.sharing,
                    holds,
                    tracked,
                    self.alone,
                    self.state,
                )
        return self.ways[classes]

    def _keep(self, saved: list[Any], leaves: Sequence[Any]) -> None:
        """Copy what is saved of the arguments that are about to be written to: the backward wants
        the values from before."""
        written = {memory_of(t) for i, _ in self.written for t in flattened(unwrap(leaves[i]))}
        for i in self.at_risk:
            if memory_of(saved[i]) in written:
                saved[i] = saved[i].clone()

    def _begin(self, call: Call) -> list[Target | None]:
        """Carry out the program's ``requires_grad_()`` of arguments. Where the gradients go, with
        those of these arguments."""
        leaves, known = call.leaves, iter(call.targets)
        for i in self.begun:
            # a leaf that requires grad may not be reshaped
            self.joint.boundary.inputs[i].reshape(leaves[i])
            leaves[i] = as_leaf(leaves[i].requires_grad_())
        return [
            leaves[i] if i in self.begun else next(known)
            for i in self.joint.boundary.differentiated
        ]

    def __call__(self, call: Call) -> object:
        begun = self.begin(call) if self.begin is not None else ()
        plain = call.plain
        reread = [plain[i] for i in self.reread] if self.reread else ()
        try:
            if self.seedings:
                with self.drawing, seeded(self.seedings):
                    results = self.forward(plain)
            else:
                results = self.forward(plain)  # empties the list
        except BaseException as error:
            n_arguments = len(call.leaves) - len(self.joint.closed_over)
            _told(error, begun, self.forward, call.leaves, n_arguments)
            if isinstance(error, Exception):
                name_origin(error)
            raise
        if self.direct is not None:
            return self._assembled([results[i] for i in self.direct])
        return self._finished(call, results, reread)

    def _finished(self, call: Call, results: Sequence[Any], reread: Sequence[Any]) -> object:
        """Return what the call returns, after all that it does beside the graph. ``results``: what
        the graph has returned. ``reread``: arguments that the backward wants as they were."""
        leaves, boundary = call.leaves, self.joint.boundary
        if boundary.ordinary:
            results = _ordinary(results, boundary.ordinary)
        targets = call.targets if not self.begun else self._begin(call)
        self._take_hooks(leaves)
        saved = [*results[self.n_forward :], *reread]
        # advances the version, so before the versions of what is saved are noted
        for i, record in self.reshaped:
            record.reshape(leaves[i])
        if self.at_risk:
            self._keep(saved, leaves)
        versions = self._versions(saved)
        self.effects.carry_out()
        outs = list(results[: self.n_forward])
        recorded = self.backward is not None and bool(targets or not boundary.differentiated)
        if recorded:
            self._record(targets, outs, saved, versions, leaves)
        self._write(leaves, outs, recorded)
        return self._assembled(self._returned(leaves, outs[len(self.written) :]))

    def _take_hooks(self, leaves: Sequence[Any]) -> None:
        """Register the hooks of the program on arguments, before a write gives one of these another
        history."""
        for i, x in self.written:
            written = leaves[i]
            if x.tangent is not None and isinstance(written, Tensor) and written._view is not None:
                refuse_hooked_view(written, any(i == number for number, _ in self.hooked))
        for i, hook in self.hooked:
            leaves[i].register_hook(hook)

    def _versions(self, saved: Sequence[Any]) -> list[int]:
        """Return the versions of the saved tensors that a write from outside can reach."""
        try:
            return [saved[i]._version for i in self.exposed]
        except RuntimeError:
            for i in self.exposed:
                refuse_inference(saved[i])
            raise

    def _record(
        self,
        targets: Sequence[Target | None],
        outs: list[Any],
        saved: list[Any],
        versions: list[int],
        leaves: Sequence[Any],
    ) -> None:
        """Give the results among ``outs`` the history of this call, one node of the tape."""
        backward = self.backward
        assert backward is not None
        tangents = [(i, t) for i, t in enumerate(self.computed) if t is not None]
        metas = backward.metas or tuple([(outs[i].shape, outs[i].dtype) for i, _ in tangents])
        changed = [leaves[i] for i in self.joint.boundary.backward_written]
        node = CompiledBackward(targets, metas, backward, saved, versions, changed)
        if backward.watch is not None:
            node.watched = backward.watch.of(leaves, outs)
            node.parts = {t: parts_of(outs[i]) for i, t in tangents}
        for i, t in tangents:
            outs[i] = SESSION.wrap(outs[i], (node, t))

    def _write(self, leaves: Sequence[Any], outs: Sequence[Any], recorded: bool) -> None:
        """Carry out the program's writes to arguments that the graph has not made itself.
        ``recorded``: whether results have a history."""
        if self.placed:
            count(self.placed, leaves)
        if self.copied:  # new values have the new geometry
            write(
                [
                    (x, leaves[i], outs[number], recorded and x.tangent is not None)
                    for number, i, x in self.copied
                ]
            )

    def _returned(self, leaves: Sequence[Any], made: list[Any]) -> list[Any]:
        """Return the leaves of what the program returns. ``made``: what the graph has made."""
        boundary = self.joint.boundary
        if boundary.begun or boundary.placed:
            boundary.finish(leaves, made)
        returned = [o.returned(leaves, made) for o in boundary.outputs]
        for again, first in boundary.repeated:
            returned[again] = returned[first]
        for again, first in boundary.released:
            if not returned[first].requires_grad:
                returned[again] = returned[first]
        if self.replaced:  # after the results, which may be views of what an argument was
            sources = [o.of(leaves, made) for _, _, o in self.replaced]
            for (i, x, _), source in zip(self.replaced, sources, strict=True):
                x.replace(leaves[i], source)
        return returned

    def _assembled(self, returned: list[Any]) -> object:
        spec = self.joint.out_spec
        return returned[0] if spec.is_leaf() else pytree.tree_unflatten(returned, spec)
