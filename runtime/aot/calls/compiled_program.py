"""Run one compiled program.

A call runs the forward graph, saves what the backward needs in a node of the tape, and carries out
what the program does to its arguments and to Python's state:

    program(call)       # the result of the user's function
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...seam.locks import lock_of
from ...trace.error_lines import name_origin
from ...trace.number_reads import OtherSide
from ...trace.random_states import Seeding, seeded
from ..capture.joint import Joint
from ..compilers.boxed import Boxed
from ..compilers.graph_effects import draws, runs_user_code
from ..compilers.staged import Settling
from ..compilers.tiered import described
from ..python_state.program_state import Effects
from ..python_state.summary import StateSummary, summarize
from .argument_changes import ArgumentChanges
from .arguments import Call
from .backward_graph import Backward
from .call_results import CallHistory, CallResults, LateEffects
from .graph_writes import FailedGraph, note_partial_effects
from .program_guard import ProgramGuard
from .subclass_calls import of_whole_tensors

Begin = Callable[[Call], Sequence[str]]
"""What a call does before the graph runs. It returns what of that an error of the graph does not
undo, as texts."""


class _SeededDraws:
    """Seed the generators of a graph before it draws, as its program does.

    A generator that the program creates is one object for all calls, so threads draw in turn.
    """

    def __init__(self, seedings: Sequence[Seeding]) -> None:
        self._seedings = seedings
        self._lock = lock_of(self, "_lock", threading.RLock)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run the block with new seeds, one thread at a time."""
        with self._lock, seeded(self._seedings):
            yield


class CompiledProgram:
    """Run one program for one kind of inputs.

    A call whose graph fails raises :class:`.FailedGraph` if it ``retries`` and has changed nothing.
    """

    __slots__ = (
        "_draws",
        "_retries",
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
        retries: bool = False,
    ) -> None:
        """``backward`` is None for a program without gradients."""
        boundary = joint.boundary
        if joint.layouts is not None:
            forward = of_whole_tensors(forward, joint.layouts)
        self.joint = joint
        # runs the graph
        self.forward = forward
        # a staged function runs the graph by an interpreter until its code is generated, and then
        # calls this, so that later calls go there directly
        if isinstance(forward, Settling):
            forward.settled = self._replace_forward
        # decides which calls the program serves
        self.guard = guard
        # what a call assigns to Python's objects
        self.effects = effects
        # what a call does before the graph
        self.begin = begin
        self._retries = retries
        # what a call does to its arguments
        self.changes = ArgumentChanges(boundary, getattr(forward, "placed", {}))
        # builds what a call returns
        self.results = CallResults(boundary, joint.out_spec)
        # records the call; None if results have no history
        self.history: CallHistory | None = None
        self._draws: _SeededDraws | None = None
        # the numbers of the results of the graph that a call returns, if the program only computes;
        # None for any other program
        self.direct: tuple[int, ...] | None = None
        if backward is not None:
            self.history = CallHistory(boundary, backward)
        elif not effects.changes:
            # most programs without gradients only compute: their calls skip all steps of `_finish`
            self.direct = boundary.direct
        if boundary.seedings:
            self._draws = _SeededDraws(boundary.seedings)

    def _replace_forward(self, generated: Boxed) -> None:
        """Run ``generated`` from the next call on."""
        self.forward = generated

    @property
    def moves_on(self) -> bool:
        """Return whether the program leaves a state in which it does not serve the next call."""
        return bool(self.effects.left) or not self.guard.state.stays

    @property
    def serves(self) -> Iterator[str]:
        """Yield the function that serves each graph, and why, if a compiler chooses one."""
        graphs: dict[str, Boxed | None] = {"forward": self.forward}
        if self.history is not None:
            graphs["backward"] = self.history.backward.function
        for name, run in graphs.items():
            text = described(run)
            if text:
                yield f"{name}: {text}"

    @property
    def summary(self) -> StateSummary:
        """Describe the state of Python that the program reads and changes, for people."""
        return summarize(self.guard.state, self.effects.names)

    def __call__(self, call: Call) -> object:
        """Run the program for ``call``, and return the results of the user's function."""
        begun = self.begin(call) if self.begin is not None else ()
        plain, history = call.plain, self.history
        # before the graph, which empties the list of its arguments
        reread = () if history is None else history.arguments_for_pullback(plain)
        try:
            if self._draws is None:
                results = self.forward(plain)
            else:
                with self._draws.in_turn():
                    results = self.forward(plain)
        except BaseException as error:
            self._fail(error, call, begun)
            raise
        if self.direct is not None:
            return self.results.rebuild([results[number] for number in self.direct])
        return self._finish(call, results, reread)

    def _fail(self, error: BaseException, call: Call, begun: Sequence[str]) -> None:
        """Say at an error of the graph what the call has done. ``begun``: before the graph."""
        n_arguments = len(call.leaves) - len(self.joint.closed_over)
        lost = note_partial_effects(error, begun, self.forward, call.leaves, n_arguments)
        if not isinstance(error, Exception) or isinstance(error, OtherSide):
            return
        name_origin(error)
        module = self.joint.traced
        if self._retries and not lost and not runs_user_code(module):
            raise FailedGraph(draws(module)) from error

    def _finish(self, call: Call, results: Sequence[object], reread: Sequence[object]) -> object:
        """Carry out all that the call does after the graph, and return its result.

        ``results``: of the graph. ``reread``: arguments that the backward needs as they were.
        """
        leaves, changes, history = call.leaves, self.changes, self.history
        n_forward = self.results.n_forward
        results = self.results.in_their_modes(results)
        targets = changes.begin_leaves(call)
        changes.register_hooks(leaves)
        # advances the version, so before the versions of what is saved are noted
        changes.reshape(leaves)
        # assign to Python's objects, and record the call
        outputs = list(results[:n_forward])
        node, saved, versions = None, [], []
        if history is None:
            self.effects.carry_out()
        else:
            saved = [*results[n_forward:], *reread]
            at_risk = history.backward.at_risk
            # before the versions are noted and before `write`, which overwrites the old values
            if at_risk:
                changes.keep_old_values(saved, at_risk, leaves)
            versions = history.read_versions(saved)
            self.effects.carry_out()
            if history.must_record(targets):
                node = history.record(targets, outputs, saved, versions, leaves)
        # write to arguments, and then build results, which may be views of these
        kept: Sequence[object] = ()
        if node is not None and changes.written:
            kept = tuple(saved)
        changes.write(leaves, outputs, node is not None)
        # what the backward needs of written memory is a copy by now. Another argument may be a view
        # of the same base, at other elements, and have its version.
        if kept and history is not None:
            versions[:] = history.read_versions(kept)
        values = outputs[len(changes.written) :]
        returned = self.results.leaves(leaves, values)
        changes.replace_memory(leaves, values)
        result = self.results.rebuild(returned)
        if isinstance(result, LateEffects):
            result.recorded = node
        return result
