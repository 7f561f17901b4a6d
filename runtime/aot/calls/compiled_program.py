"""One compiled program, and what a call of it does.

It runs the forward graph, holds what the backward needs as a node of the tape, and carries out what
the program does to its arguments and to Python's state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...seam.locks import lock_of
from ...trace.error_lines import name_origin
from ...trace.random_states import Seeding, seeded
from ..capture.joint import Joint
from ..compilers.boxed import Boxed
from ..compilers.staged import Staged
from ..python_state.program_state import Effects
from ..python_state.summary import StateSummary, summarize
from .argument_changes import ArgumentChanges
from .arguments import Call
from .backward_calls import Backward
from .call_results import CallHistory, CallResults
from .graph_writes import note_partial_effects
from .program_guard import ProgramGuard
from .subclass_calls import of_whole_tensors

Begin = Callable[[Call], Sequence[str]]
"""What a call does before the graph runs. It returns what of that an error of the graph does not
undo, as texts."""


class _SeededDraws:
    """The draws of a graph whose program sets the seeds of generators. A generator that the program
    makes is one for all calls, so threads draw from it in turn."""

    def __init__(self, seedings: Sequence[Seeding]) -> None:
        self._seedings = seedings
        self._lock = lock_of(self, "_lock", threading.RLock)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        with self._lock, seeded(self._seedings):
            yield


class CompiledProgram:
    """One program for one kind of inputs.

    ``guard``: which calls it serves. ``begin``: what a call does before the graph. ``forward``:
    runs the graph. ``changes``: what a call does to its arguments. ``effects``: what it assigns to
    Python's objects. ``history``: how results are recorded; None if they have no history.
    ``results``: how they are made. ``direct``: of a program that only computes, which results of
    the graph a call returns; None for any other program.
    """

    __slots__ = (
        "_draws",
        "begin",
        "changes",
        "direct",
        "effects",
        "forward",
        "guard",
        "history",
        "joint",
        "results",
    )

    def __init__(
        self,
        joint: Joint,
        forward: Boxed,
        backward: Backward | None,
        guard: ProgramGuard,
        effects: Effects,
        begin: Begin | None = None,
    ) -> None:
        boundary = joint.boundary
        if joint.layouts is not None:
            forward = of_whole_tensors(forward, joint.layouts)
        self.joint = joint
        self.forward = forward
        if isinstance(forward, Staged):
            forward.settled = self._replace_forward
        self.guard = guard
        self.effects = effects
        self.begin = begin
        self.changes = ArgumentChanges(boundary, getattr(forward, "placed", {}))
        self.results = CallResults(boundary, joint.out_spec)
        self.history: CallHistory | None = None
        self._draws: _SeededDraws | None = None
        self.direct: tuple[int, ...] | None = None
        if backward is not None:
            self.history = CallHistory(boundary, backward)
        elif not effects.changes:
            self.direct = boundary.direct
        if boundary.seedings:
            self._draws = _SeededDraws(boundary.seedings)

    def _replace_forward(self, generated: Boxed) -> None:
        self.forward = generated

    @property
    def moves_on(self) -> bool:
        """Whether the program leaves a state behind in which it does not serve the next call."""
        return bool(self.effects.left) or not self.guard.state.stays

    @property
    def summary(self) -> StateSummary:
        """What the program has to do with Python's state, for people."""
        return summarize(self.guard.state, self.effects.names)

    def __call__(self, call: Call) -> object:
        begun = self.begin(call) if self.begin is not None else ()
        plain, history = call.plain, self.history
        # now, as the graph empties the list
        reread = () if history is None else history.reread(plain)
        try:
            if self._draws is None:
                results = self.forward(plain)
            else:
                with self._draws.in_turn():
                    results = self.forward(plain)
        except BaseException as error:
            n_arguments = len(call.leaves) - len(self.joint.closed_over)
            note_partial_effects(error, begun, self.forward, call.leaves, n_arguments)
            if isinstance(error, Exception):
                name_origin(error)
            raise
        if self.direct is not None:
            return self.results.assembled([results[i] for i in self.direct])
        return self._finished(call, results, reread)

    def _finished(self, call: Call, results: Sequence[object], reread: Sequence[object]) -> object:
        """Return what the call returns, after all that it does beside the graph. ``results``: what
        the graph has returned. ``reread``: arguments that the backward wants as they were."""
        leaves, changes, history = call.leaves, self.changes, self.history
        n_forward = self.results.n_forward
        results = self.results.without_inference(results)
        targets = changes.begin_leaves(call)
        changes.register_hooks(leaves)
        # advances the version, so before the versions of what is saved are noted
        changes.reshape(leaves)
        outs = list(results[:n_forward])
        recorded = False
        if history is None:
            self.effects.carry_out()
        else:
            saved = [*results[n_forward:], *reread]
            at_risk = history.backward.at_risk
            if at_risk:
                changes.keep_old_values(saved, at_risk, leaves)
            versions = history.versions(saved)
            self.effects.carry_out()
            recorded = history.wanted(targets)
            if recorded:
                history.record(targets, outs, saved, versions, leaves)
        changes.write(leaves, outs, recorded)
        made = outs[len(changes.written) :]
        returned = self.results.leaves(leaves, made)
        changes.replace_memory(leaves, made)
        return self.results.assembled(returned)
