"""Capture one program for one kind of call: trace it, cut and compile its graph, and note what it
reads and changes of Python's state.

    program = capture(recipe, spec, call, tracked=True)
    program(call)

The program runs on values of a trace. Arguments that share memory are first traced as if they did
not, which suits programs that write to none of them. Where that fails, or the graph has a write,
the program runs once more on views of common bases. A run that fails leaves Python's objects as
they were before it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import fx

from ...seam.graph_walks import results_of, users_of, walk
from ...seam.user_code import watched
from ...session.tensor import unwrap
from ...stack_room import with_room
from ...torch_private.global_settings import without_autocast
from ...torch_private.pytrees import pytree
from ...trace.error_lines import naming_line
from ...trace.graph_module import LateGraphModule
from ...trace.number_reads import on_side
from ...trace.symbols import Abstraction, Fixed
from ..cache.cuts import default_cache
from ..capture import opened
from ..capture.aliasing import Group, overlapping, sharing
from ..capture.boundary import Input
from ..capture.global_state import restored_on_error, without_collection
from ..capture.joint import Joint, joint_graph
from ..capture.origins import ORIGIN
from ..capture.own_derivatives import ends_of_used
from ..capture.shown import with_flags
from ..capture.subclass_parts import refuse_functions
from ..capture.tangents import is_marked
from ..compilers.boxed import Boxed, as_boxed, examples, nop
from ..compilers.placing import DESTINATIONS, destinations
from ..partition.partitions import default_partition, without_round_trips
from ..python_state.backward_reads import BackwardReads
from ..python_state.object_kinds import names_behind
from ..python_state.program_state import Effects, ProgramState
from ..python_state.reads import ELEMENTS, Read, asked_for, once, places_beneath, unchanged
from ..python_state.snapshot import PLAIN_VALUES
from .arguments import Call, enter, of_leaves
from .backward_graph import Backward
from .compiled_program import CompiledProgram
from .identities import Apart, Outside, Repeat, refuse_outside
from .numbers import Pinned, pinned_numbers
from .program_guard import ProgramGuard
from .recipe import Beside, Recipe
from .shared_arguments import (
    refuse_results_over_arrays,
    refuse_shared_writes,
    refuse_untangled,
    with_autograd_base,
    with_bases,
)
from .subclass_calls import without_handlers

# leaves that the graph has as arguments
_NO_OBJECTS = (torch.Tensor, Repeat, Outside)


@naming_line()
@with_room
@restored_on_error()
@without_collection()  # whose callbacks would be code of the program for the graph of objects
def capture(
    recipe: Recipe,
    spec: pytree.TreeSpec | None,
    call: Call,
    tracked: bool,
    abstraction: Abstraction | None = None,
    unknown: frozenset[int] = frozenset(),
    may_pin: bool = False,
) -> CompiledProgram:
    """Return the program of ``recipe`` for calls like this one.

    ``spec``: the tree of the arguments. ``tracked``: whether ``call`` says which arguments require
    grad. ``abstraction``: creates the abstract values of the trace. ``unknown``: the arguments that
    are numbers of any value. ``may_pin``: whether the program may be for one value of such a number
    alone, for which it asks. Else :class:`Pinned` is raised.
    """
    _load_profiler()
    state = _state_before(recipe, spec, call)
    if recipe.starting is not None:
        recipe.starting(state)
    try:
        try:
            return _Capture(
                recipe, spec, call, tracked, abstraction, unknown, may_pin, state
            ).program()
        except Exception as error:
            if not recipe.dynamic or isinstance(error, Pinned):
                raise
        # It may fail on symbols. With numbers it returns what eager mode does, or raises its error.
        _undo(recipe, state)
        fixed = Fixed()
        return _Capture(recipe, spec, call, tracked, fixed, unknown, may_pin, state).program()
    # also exceptions that ask for one more run of the program, which are no `Exception`
    except BaseException as error:
        _undo(recipe, state, error)
        if recipe.retries:
            recipe.raised[:] = filter(state.raises, (error,))
        raise
    finally:
        recipe.entered.update(state.graph.code.entered)


@cache
def _load_profiler() -> None:
    """Let torch look for its profilers, once in a process.

    It notes what it has found in variables of its modules when a record of a function begins, as in
    each step of an optimizer. In a capture that would be a change that the program makes, and its
    second call would be captured, too.
    """
    with torch.profiler.record_function(_load_profiler.__name__):
        pass


def _state_before(recipe: Recipe, spec: pytree.TreeSpec | None, call: Call) -> ProgramState:
    """Return Python's state before the program runs, and so before it changes what it reads."""
    args: Any = call.leaves
    kwargs: Any = {}
    if spec is not None:
        args, kwargs = opened.unflatten(call.leaves, spec)
    recipe.before.captures(args, kwargs)
    # objects among the arguments, also those inside of a list, a dictionary or an opened object
    reached = call.leaves[recipe.before.leading :]
    if spec is not None:
        reached += opened.beside_leaves((args, kwargs))
    objects = [*filter(_is_object, reached)]
    objects += [x.tensor for x in call.given if type(x) is Outside]
    # a text may be the name by which the program asks a tensor of the state
    objects += filter(names_behind, filter(_is_text, reached))
    recipe.lost.clear()
    declared = recipe.declared
    if declared is not None:
        declared = (*declared, *objects)
    return ProgramState(
        [recipe.fn, *recipe.modules, *objects],
        recipe.ignore,
        list(recipe.entered.values()),
        declared,
    )


def _is_object(x: object) -> bool:
    """Return whether an argument is an object that may change, and no tensor."""
    return type(x) not in PLAIN_VALUES and not isinstance(x, _NO_OBJECTS)


def _is_text(x: object) -> bool:
    """Return whether an argument is a text, by which a program may ask for something."""
    return isinstance(x, (str, bytes))


def _undo(recipe: Recipe, state: ProgramState, error: BaseException | None = None) -> None:
    """Put back what a run of the program has changed.

    ``error``: the one with which the run stops; None before one more run. ``RuntimeError`` if one
    more run would do something twice.
    """
    state.restore()
    recipe.lost[:] = state.lost()
    if not recipe.lost or isinstance(error, (KeyboardInterrupt, SystemExit)):
        return
    # one more run comes now, or is asked for by the error
    if not isinstance(error, Exception) or isinstance(error, Pinned):
        state.refuse_moved()
    assert error is not None
    error.add_note(f"The capture has {' and '.join(recipe.lost)}. Nobody can undo that.")


@dataclass(frozen=True)
class _Capture:
    """Capture a program. The fields are the arguments of :func:`capture`, and Python's ``state``
    before the program runs."""

    recipe: Recipe
    spec: pytree.TreeSpec | None
    call: Call
    tracked: bool
    abstraction: Abstraction | None
    unknown: frozenset[int]
    may_pin: bool
    state: ProgramState

    def program(self) -> CompiledProgram:
        """Return the compiled program."""
        # before a run of the program, which would be in vain
        self._require_apart(())
        joint, groups = self._trace()
        self._refuse_functions(joint)
        alone = self._require_apart(joint.closed_over)
        pinned = pinned_numbers(joint, self.unknown)
        # a guard that compares does not tell -0.0 from 0.0
        values = [self.call.plain[position] for position in pinned]
        has_zero = any(type(value) is float and value == 0 for value in values)
        if has_zero or (pinned and not self.may_pin):
            raise Pinned(pinned)
        self._pin_typed()
        # tensors that the program closes over enter as arguments do, and may share their memory
        outside = enter(joint.closed_over, self.tracked, False)
        assert outside is not None
        joint, shared = self._with_shared_memory(joint, groups, outside)
        _refuse_branches(joint)
        graph = self.state.graph
        known = {*graph.identities()}
        refuse_results_over_arrays(
            joint, graph.nodes, self.call.leaves, known, graph.code.first_line
        )
        with without_autocast():
            forward, backward = self._compile(joint)
        forward = without_handlers(forward, (*self.call.plain, *outside.plain))
        # what a call has to ask, and to do before and after the graph
        beside, effects = self._settle_effects()
        self._refuse_shared_writes(joint, outside)
        begin = None
        if beside.begin is not None:
            begin = beside.begin(joint)
        carried = beside.carried
        # the only program serves all calls, so none may ask for what the program itself changes
        if self.recipe.single:
            carried |= self.state.written
        if backward is not None:
            backward.reads = BackwardReads.all_of(
                self.state.backward,
                self.state.seen.repeated,
                self.state.graph.nodes,
            )
        # the graph of this call may raise, and then the call is to have done nothing
        undo = self.recipe.retries or bool(_branches(joint))
        guard = ProgramGuard(
            joint,
            outside=outside.kinds,
            sharing=shared,
            reads=self._reads(joint, beside),
            state=self.state.settle(carried, beside.containers, effects, undo),
            alone=alone,
            unknown=self.unknown,
        )
        return CompiledProgram(joint, forward, backward, guard, effects, begin, self.recipe.retries)

    def _refuse_shared_writes(self, joint: Joint, outside: Call) -> None:
        """Refuse a program that changes a tensor in the memory of an array, or the array."""
        given = zip((*self.call.plain, *outside.plain), joint.boundary.inputs, strict=False)
        tensors = [(x, entry) for x, entry in given if isinstance(x, torch.Tensor)]
        graph, changed = self.state.graph, self.state.written
        refuse_shared_writes(graph.nodes, self.call.given, tensors, changed, graph.code.first_line)

    def _pin_typed(self) -> None:
        """Raise :class:`Pinned` for the user's numbers if the program asks for types: ``type`` of
        an input of a graph is that of a symbol. Numbers of Python's state are not the user's."""
        leading = self.recipe.before.leading
        typed = [position for position in self.unknown if position >= leading]
        if typed and self.state.graph.code.asks_types:
            raise Pinned(typed)

    def _require_apart(self, closed_over: Sequence[torch.Tensor]) -> Apart:
        """Raise :class:`MetOutside` if the program reaches an argument by itself.

        Return the question to ask the same of further calls. ``closed_over``: tensors of its graph.
        """
        identities = {*map(id, closed_over), *self.state.graph.identities()}
        leading = self.recipe.before.leading
        values, given = self.call.given[:leading], self.call.given[leading:]
        refuse_outside([*self._held_elsewhere(values), *given], identities)
        return Apart(identities, values)

    def _held_elsewhere(self, values: Sequence[object]) -> list[object]:
        """Return those tensors among ``values`` of places in Python's state that the program finds
        at another place, too, whose value is none of the arguments."""
        each = [values[x.index] if isinstance(x, Repeat) else x for x in values]
        asked = Counter(id(x) for x in each if isinstance(x, torch.Tensor))
        if not asked:
            return []
        found = Counter(id(x) for x, _ in self.state.holders(lambda x: id(x) in asked))
        return [x for x in values if found[id(x)] > asked[id(x)] > 0]

    # --- the trace --------------------------------------------------------------------------------

    def _trace(self) -> tuple[Joint, list[Group]]:
        """Return the graph, and the arguments that were traced as views of common bases."""
        try:
            return self._joint_graph(), []
        except Exception as error:
            # perhaps since arguments that share memory were traced as if they did not
            groups = self._groups_after(error)
            self.state.restore()
            return self._joint_graph(groups), groups

    def _groups_after(self, error: Exception) -> list[Group]:
        """Return the groups of arguments that share memory, for one more trace after ``error``.

        Raise ``error`` if there are none, or if they have no common base.
        """
        # the error may come from a write that an alias does not follow
        call = self.call
        shared = sharing(call.plain)
        groups = [*shared, *overlapping(call.plain, shared)]
        try:
            refuse_untangled(groups, call, len(call.plain))
        except RuntimeError:
            groups = []
        if not groups or isinstance(error, Pinned):
            raise error
        return [with_autograd_base(group, call) for group in groups]

    def _with_shared_memory(
        self, joint: Joint, groups: Sequence[Group], outside: Call
    ) -> tuple[Joint, tuple[Group, ...] | None]:
        """Return the graph, traced once more if it writes to arguments that share memory, and which
        of them share it if that matters.

        ``groups``: the arguments that were traced as views of bases. ``outside``: the tensors that
        the graph closes over.
        """
        call, n_arguments = self.call, len(self.call.plain)
        inputs = joint.boundary.inputs
        every = call.followed_by(outside)
        # traced with bases already: only a tensor that the program closes over may still be wrong
        if groups:
            shared = sharing(every.plain)
            beyond = [group for group in shared if group.members[-1] >= n_arguments]
            refuse_untangled(beyond, call, n_arguments, inputs)
            return joint, shared
        # without a write it does not matter who shares memory
        if not joint.boundary.changes_inputs:
            return joint, None
        shared = sharing(every.plain)
        groups = _changed_groups(every.plain, shared, inputs)
        closes_over = bool(groups) and groups[-1].members[-1] >= n_arguments
        # a write to the one is a version of the other, whether the program uses that or not
        if closes_over and not self.state.graph.code.may_have("_version"):
            tensors = _with_uses(joint, every.plain)
            groups = _changed_groups(tensors, sharing(tensors), inputs)
        if not groups:
            return joint, shared
        refuse_untangled(groups, every, n_arguments, inputs)
        # the second trace starts from the state of Python that the first one found
        self.state.restore()
        return self._joint_graph([with_autograd_base(group, call) for group in groups]), shared

    def _joint_graph(self, groups: Sequence[Group] = ()) -> Joint:
        """Trace the program. The arguments of ``groups`` are views of common bases."""
        recipe = self.recipe
        flat = of_leaves(recipe.fn, self.spec, self.call.leaves)
        f = partial(watched, with_flags(flat, self.call.flags))
        count = len(self.call.plain)
        based = with_bases(self.call, groups)
        assert based is not None, "the groups are those of this call"
        arguments, bases = based.plain[:count], based.plain[count:]
        # numbers are symbols even where sizes are not
        abstraction = self.abstraction
        if self.unknown and abstraction is None:
            abstraction = Abstraction(dynamic=recipe.dynamic)
        trace = partial(
            joint_graph,
            f,
            arguments,
            based.wanted[:count],
            groups=groups,
            bases=bases,
            unknown=sorted(self.unknown),
            dynamic=recipe.dynamic,
            decompositions=recipe.decompositions,
            abstraction=abstraction,
            tracked=self.tracked,
            kind=LateGraphModule,
            reads=recipe.reads,
            generators=self.state.early.generators,
        )
        is_general = recipe.dynamic if abstraction is None else abstraction.is_general
        return self.state.watched(trace, is_general or bool(self.unknown))

    def _refuse_functions(self, joint: Joint) -> None:
        """Refuse tensors of classes with ``__torch_function__``, unless the program is a graph.

        The functions of these classes are in a graph already.
        """
        if not any(isinstance(f, fx.GraphModule) for f in (self.recipe.fn, *self.recipe.modules)):
            refuse_functions(map(unwrap, (*self.call.plain, *joint.closed_over)))

    # --- Python's state ---------------------------------------------------------------------------

    def _settle_effects(self) -> tuple[Beside, Effects]:
        """Return what belongs to the program besides its graph, and what a call assigns to Python's
        objects."""
        self.state.returned()
        self.state.leave_assigned()
        beside = self.recipe.beside()
        effects = self.state.effects(beside.carried, beside.left)
        if self.recipe.single:
            effects = effects.told()
        return beside, effects

    def _reads(self, joint: Joint, beside: Beside) -> list[Read]:
        """Return the single questions that a call asks, besides those of the graph of objects."""
        compared = [tensor for tensor in self.call.leaves if isinstance(tensor, torch.Tensor)]
        # in inference mode a call does not ask which of them require grad
        if self.tracked:
            compared += joint.closed_over
        known = self.state.graph.tensors
        made = [tensor for tensor in joint.closed_over if id(tensor) not in known]
        said = [
            *known.values(),
            *self.state.places_of(joint.closed_over),
            *places_beneath(made, [read.owner for read in known.values()]),
        ]
        reads = [*unchanged(asked_for(said, compared, beside.carried)), *beside.reads]
        # these stay although the program may have changed them: then it is captured once more
        return once(
            [*reads, *(Read(tensor, ELEMENTS, elements) for tensor, elements in joint.elements)]
        )

    # --- the compilers ----------------------------------------------------------------------------

    def _compile(self, joint: Joint) -> tuple[Boxed, Backward | None]:
        """Compile the forward graph, and the backward of a program whose results have a history."""
        if joint.boundary.n_tangents:
            return self._cut_and_compile(joint)
        return self._compile_forward(joint)

    def _compile_forward(self, joint: Joint) -> tuple[Boxed, None]:
        """Compile a graph without gradients."""
        output = joint.traced.graph.output_node()
        results = results_of(joint.traced.graph)
        # drop the gradients, each of which is None; the module has no code yet, so no recompile()
        output.args = (list(results)[: joint.n_forward],)
        joint.traced.meta[DESTINATIONS] = destinations(joint)
        compiled = self.recipe.compilers.inference(joint.traced, examples(joint.traced))
        return as_boxed(compiled), None

    def _cut_and_compile(self, joint: Joint) -> tuple[Boxed, Backward]:
        """Cut the joint graph in two, and compile the forward."""
        recipe, compilers = self.recipe, self.recipe.compilers
        # the module has no code yet, so a change of its graph needs no recompile()
        graph = joint.module.graph
        without_round_trips(graph, ends_of_used(joint.applications, graph))
        options: dict[str, object] = {"num_fwd_outputs": joint.n_forward}
        count = len(joint.boundary.inputs)
        static = joint.in_graph(
            [*range(recipe.num_params_buffers), *range(count - len(joint.closed_over), count)]
        )
        if static and recipe.partition is not default_partition:
            options["static_lifetime_input_indices"] = static
        # a cache has the choices of this partition from other processes
        cache = recipe.cache or default_cache()
        if cache is None:
            forward, backward = recipe.partition(joint.module, None, **options)
        else:
            forward, backward = cache.cut(recipe.partition, joint, options, recipe.dynamic)
        # before a compiler changes the graphs
        backward_call = Backward(
            joint,
            forward,
            backward,
            compilers.backward,
            recipe.differentiated,
            recipe.keep_primals,
        )
        run = as_boxed(compilers.forward(forward, examples(forward)))
        # now: what a compiler asks about sizes becomes a guard of the program
        if joint.abstraction is not None and inspect.unwrap(compilers.backward) is not nop:
            backward_call.compiled()
        return run, backward_call


def _with_uses(joint: Joint, tensors: Sequence[Any]) -> list[Any]:
    """Return ``tensors``, the primals of ``joint``, with None for each that its graph does not use:
    it may share memory with whatever the program writes to. An attribute that the program assigns
    anew before it reads it is such a tensor."""
    if joint.layouts is not None:
        return list(tensors)
    placeholders = [node for node in joint.traced.graph.nodes if node.op == "placeholder"]
    used: list[Any] = []
    for tensor, node, entry in zip(tensors, placeholders, joint.boundary.inputs, strict=False):
        used.append(tensor if node.users or _changes(entry) else None)
    return used


def _changed_groups(
    tensors: Sequence[Any], shared: Sequence[Group], inputs: Sequence[Input]
) -> list[Group]:
    """Return the groups of ``tensors`` with one memory to which the program writes, those with the
    last tensors last. ``shared``: the groups of several tensors."""
    together = (*shared, *overlapping(tensors, shared))
    found = [group for group in together if _is_changed(group, inputs)]
    return sorted(found, key=lambda group: group.members[-1])


def _is_changed(group: Group, inputs: Sequence[Input]) -> bool:
    """Return whether the program changes a member of ``group`` so that another one shows it."""
    return any(_changes(inputs[index]) for index in group.members)


def _changes(entry: Input) -> bool:
    """Return whether the program writes to an input, turns it, or makes a leaf of it."""
    return bool(entry.written or entry.reshaped or entry.begins)


def _refuse_branches(joint: Joint) -> None:
    """Refuse a program that is for one side of a branch in the backward pass of its caller.

    The forward pass asks for the sides of all others, and may still be that of another program.
    """
    branches = _branches(joint)
    if not branches or not joint.boundary.n_tangents:
        return
    graph = joint.traced.graph
    of_backward = [node for node in graph.nodes if is_marked(node) or ORIGIN in node.meta]
    late = set(walk(of_backward, users_of))
    for branch in filter(late.__contains__, branches):
        raise RuntimeError(
            "a backward pass branches on a number that it computes, in a hook or in a custom "
            "Function. Use torch.where for the choice, or call backward() in the program."
            f"{branch.args[2]}"
        )


def _branches(joint: Joint) -> list[fx.Node]:
    """List the nodes where the program branches on a number of the graph."""
    return [node for node in joint.traced.graph.nodes if node.target is on_side]
