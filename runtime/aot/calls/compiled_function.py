"""Programs compiled ahead of time as functions: for each kind of call one program is captured, cut
and compiled, and found again."""

from __future__ import annotations

import dataclasses
import inspect
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Protocol

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ...seam.levels import SCOPE
from ...seam.transforms_of_torch import transform_of_torch
from ...seam.user_code import watched
from ...session.tensor import unwrap
from ...tape.running import current_dual
from ...trace.error_lines import naming_line
from ...trace.graph_module import LateGraphModule
from ...trace.number_reads import on_side
from ...trace.stack_room import with_room
from ...trace.symbols import Abstraction, Fixed
from ..cache.cuts import Cache, default_cache
from ..capture.aliasing import Group, overlapping, sharing
from ..capture.global_state import (
    autocast_enabled,
    restored_on_error,
    surroundings,
    without_autocast,
    without_collection,
)
from ..capture.joint import Joint, joint_graph
from ..capture.own_derivatives import ends_of_used
from ..capture.shown import with_flags
from ..capture.subclass_parts import refuse_functions
from ..compilers.boxed import Boxed, Compiler, as_boxed, examples, nop
from ..compilers.graph_names import named_compilers
from ..compilers.placing import DESTINATIONS, destinations
from ..partition.partitions import Partition, default_partition, without_round_trips
from ..python_state.closed_over import modules_of
from ..python_state.program_code import Code
from ..python_state.program_state import ProgramState
from ..python_state.reads import ELEMENTS, Read, asked_for, once, unchanged
from ..python_state.values import SIMPLE
from . import states_in_turn
from .arguments import Call, Kind, enter, flags_of, flatten, of_leaves
from .backward_calls import Backward
from .compiled_program import CompiledProgram
from .guards import Take
from .numbers import Numbers, Pinned, refuse_pinned
from .shared_arguments import refuse_untangled, with_autograd_base, with_bases
from .states_in_turn import StatesInTurn

# by one look-up each
_grad_enabled, _inference = torch.is_grad_enabled, torch.is_inference_mode_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack

# arguments that one comes to nothing from, or that the graph has as arguments
_NO_OBJECTS = (*SIMPLE, torch.Tensor, list, tuple, dict)
_WAYS = 4  # how many generated guards a call tries before it looks its program up
# how many programs there are for numbers under conditions, such as the sides of a branch, before
# numbers are constants
_SIDES = 4
# how many programs for states of one kind of call are kept: each keeps its objects alive
_KEPT = 16


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partition = default_partition,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    enable_log: bool = True,
    disable_functionalization: bool = False,
    keep_primals: bool = True,
    cache: Cache | None = None,
    ignore: Sequence[object] = (),
) -> Callable[..., Any]:
    """``fn`` compiled ahead of time: a forward and a backward graph, each given to its compiler,
    behind the signature of ``fn``.

    >>> f = aot_function(lambda x: (x * x).sum(), nop)
    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> f(x).backward()
    >>> x.grad
    tensor([2., 4.])

    A program is traced once for each kind of arguments (shapes, strides, dtypes, devices, which
    require grad, and all that is not a tensor), each mode of the modules that it calls, and each
    state of torch's that it may ask for (grad and inference mode, autocast, default dtype and
    device, deterministic algorithms). With ``dynamic`` it is traced once for all sizes for which
    the same graph is right. A number that changes from call to call is traced once more, for all
    values for which the same graph is right.

    What ``fn`` does at its boundary happens as without the compiler: writes to arguments and to
    closed-over tensors, changes of their geometry, results that are arguments or views, random
    draws. Results are ``runtime.Tensor`` where a gradient flows through them. Inside a transform, a
    dispatch mode or a dual level of ``forward_ad`` ``fn`` itself runs.

    ``num_params_buffers``: how many leading arguments stay alive in any case, so that min cut saves
    them for nothing. ``keep_primals``: whether a call keeps arguments and random numbers that only
    a second derivative needs. ``cache``: a folder in which the choices of ``partition_fn`` are kept
    for later processes; without it the one that the environment variable ``RUNTIME_AOT_CACHE``
    names, if any. ``ignore``: objects that calls neither compare nor change: what ``fn`` does to
    them happens when it is captured, and its graphs keep what it has read there.
    The graphs never write to anything, so ``keep_inference_input_mutations`` and
    ``disable_functionalization`` change nothing; they and ``enable_log`` are there for torch's
    callers. ``RuntimeError`` for arguments that share memory where a write cannot be carried over,
    for control flow by the values of tensors, and for sizes that depend on values.
    """
    compilers = named_compilers(
        fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler
    )
    recipe = Recipe(
        fn,
        *compilers,
        partition_fn,
        decompositions,
        num_params_buffers,
        dynamic,
        modules_of(fn),
        keep_primals,
        cache,
        ignore=tuple(ignore),
    )
    compiled = wraps(fn)(function_of(recipe))
    compiled.recipe = recipe  # type: ignore[attr-defined]  # for `explain`
    return compiled


@dataclass(frozen=True)
class Beside:
    """What belongs to a program beside its graph. ``reads``: what it has found in Python's state,
    and its code does not show. ``begin``: makes of the joint graph what a call does before the
    graph runs. ``carried``: places, each the id of an owner and a name, that a call does not ask
    for, although the code reads them: the graph has what is there then. ``left``: names of places
    that the graph, too, changes, beside ``carried``."""

    reads: Sequence[Read] = ()
    begin: Callable[[Joint], Callable[[Call], Sequence[str]] | None] | None = None
    carried: frozenset[tuple[int, Any]] = frozenset()
    left: Sequence[str] = ()


class Leading(Protocol):
    """The arguments that a caller puts before those of the user's: values that change from call to
    call. ``leading``: how many of them there are."""

    @property
    def leading(self) -> int: ...

    def pinned(self, positions: Collection[int]) -> None:
        """The program asks for the values of the numbers at ``positions``. May raise what has the
        call begin once more."""


class _None:
    leading = 0

    def pinned(self, positions: Collection[int]) -> None: ...


@dataclass(frozen=True)
class Recipe:
    """How the programs of one compiled function are made; most fields are the arguments
    of :func:`aot_function`.

    ``modules``: those that it calls. ``reads``: what becomes of ``item()``, see
    :class:`...trace.trace_level.Trace`. ``beside``: gives what belongs to the program that was
    captured last. ``starting``: is told before a capture what the program finds in Python's
    state. ``before``: the arguments before those of the user's. ``entered``: code that the captures
    before have run, by identity. ``ignore``: objects that are no state of the program.
    ``single``: whether one program has to serve all calls, also where it has changed what it
    found. ``limit``: how many programs there may be in turn, each for the state that the one before
    has left behind. ``lost``: what the last capture that failed has done and nobody can undo.
    ``declared``: the only objects whose state the program may come to, beside arguments; None if it
    may come to any."""

    fn: Callable[..., object]
    forward_compiler: Compiler
    backward_compiler: Compiler
    inference_compiler: Compiler
    partition: Partition
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None
    num_params_buffers: int
    dynamic: bool
    modules: Sequence[torch.nn.Module]
    keep_primals: bool
    cache: Cache | None = None
    reads: str = "refuse"
    beside: Callable[[], Beside] = Beside
    starting: Callable[[ProgramState], None] | None = None
    before: Leading = field(default_factory=_None)
    entered: dict[int, Code] = field(default_factory=dict)
    ignore: tuple[object, ...] = ()
    single: bool = False
    limit: int = states_in_turn.LIMIT
    lost: list[str] = field(default_factory=list)
    declared: tuple[object, ...] | None = None

    @property
    def name(self) -> str:
        """What messages call the function."""
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    @naming_line()
    @with_room
    @restored_on_error()
    @without_collection()  # whose callbacks would be code of the program for the graph of objects
    def program(
        self,
        spec: pytree.TreeSpec | None,
        call: Call,
        tracked: bool,
        abstraction: Abstraction | None = None,
        unknown: frozenset[int] = frozenset(),
    ) -> CompiledProgram:
        """The program for calls like this one. ``tracked``: whether ``call`` says which
        arguments require grad. ``abstraction``: what makes the abstract values of the trace.
        ``unknown``: the arguments that are numbers of any value. :class:`Pinned` if the program
        asks for the value of one."""
        args, kwargs = (
            (call.leaves, {}) if spec is None else pytree.tree_unflatten(call.leaves, spec)
        )
        objects = [x for x in (*args, *kwargs.values()) if not isinstance(x, _NO_OBJECTS)]
        self.lost.clear()
        # before the program changes what it reads
        state = ProgramState(
            [self.fn, *self.modules, *objects],
            self.ignore,
            list(self.entered.values()),
            None if self.declared is None else (*self.declared, *objects),
        )
        if self.starting is not None:
            self.starting(state)
        try:
            try:
                return self._captured(spec, call, tracked, abstraction, unknown, state)
            except Exception as error:
                if not self.dynamic or isinstance(error, Pinned):
                    raise
            # It may fail on symbols. With numbers it gives what eager mode gives, or its error.
            self._undo(state)
            return self._captured(spec, call, tracked, Fixed(), unknown, state)
        except BaseException as error:  # some say that the program is to be run once more
            self._undo(state, error)
            raise
        finally:
            self.entered.update(state.graph.code.entered)

    def _undo(self, state: ProgramState, error: BaseException | None = None) -> None:
        """Put back what a run of the program has changed. ``error``: with which it ends, if it is
        not to be run once more. ``RuntimeError`` if that would do something twice."""
        state.restore()
        self.lost[:] = state.lost()
        if not self.lost or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return
        if not isinstance(error, Exception) or isinstance(error, Pinned):
            state.refuse_moved()
        assert error is not None
        error.add_note(f"The capture has {' and '.join(self.lost)}. Nobody can undo that.")

    def _captured(
        self,
        spec: pytree.TreeSpec | None,
        call: Call,
        tracked: bool,
        abstraction: Abstraction | None,
        unknown: frozenset[int],
        state: ProgramState,
    ) -> CompiledProgram:
        groups: list[Group] = []
        try:
            joint = self._joint(spec, call, tracked, abstraction, unknown, state)
        except Exception as error:
            # perhaps as arguments that share memory were traced as if they did not
            groups = self._joined(call, error)
            state.restore()
            joint = self._joint(spec, call, tracked, abstraction, unknown, state, groups)
        # else torch's functions were captured before
        if not any(isinstance(f, fx.GraphModule) for f in (self.fn, *self.modules)):
            refuse_functions(map(unwrap, (*call.plain, *joint.closed_over)))
        if unknown:
            refuse_pinned(joint, unknown)
        outside = enter(joint.closed_over, tracked, False)
        assert outside is not None
        shared = None
        if groups:
            shared = sharing([*call.plain, *outside.plain])
            refuse_untangled(
                [g for g in shared if g.members[-1] >= len(call.plain)],
                call,
                len(call.plain),
                joint.boundary.inputs,
            )
        elif joint.boundary.changes_inputs:
            every = call.followed_by(outside)
            shared = sharing(every.plain)
            changed = [x.written or bool(x.reshaped) or x.begins for x in joint.boundary.inputs]
            groups = [
                g
                for g in (*shared, *overlapping(every.plain, shared))
                if any(changed[i] for i in g.members)
            ]
            if groups:
                refuse_untangled(groups, every, len(call.plain), joint.boundary.inputs)
                state.restore()
                joint = self._joint(
                    spec,
                    call,
                    tracked,
                    abstraction,
                    unknown,
                    state,
                    [with_autograd_base(g, call) for g in groups],
                )
        _refuse_branches(joint)
        with without_autocast():
            forward, backward = (
                self._cut(joint) if joint.boundary.n_tangents else self._without_backward(joint)
            )
        state.returned()
        state.leave_assigned()
        beside = self.beside()
        effects = state.effects(beside.carried, beside.left)
        carried = beside.carried
        if self.single:
            carried, effects = carried | state.written, effects.told()
        begin = None if beside.begin is None else beside.begin(joint)
        compared = [t for t in call.leaves if isinstance(t, torch.Tensor)]
        # in inference mode a call does not ask which of them require grad
        compared += joint.closed_over if tracked else ()
        said = [*state.graph.tensors.values(), *state.places_of(joint.closed_over)]
        found = [*unchanged(asked_for(said, compared, beside.carried)), *beside.reads]
        # these stay although the program may have changed them: then it is captured once more
        reads = once([*found, *(Read(t, ELEMENTS, old) for t, old in joint.elements)])
        return CompiledProgram(
            joint,
            forward,
            backward,
            outside.kinds,
            shared,
            reads,
            unknown,
            begin,
            state.settle(carried, effects, bool(_branches(joint))),
            effects,
        )

    def _joined(self, call: Call, error: Exception) -> list[Group]:
        """The arguments that share memory. Raise ``error`` if there are none, or if they
        have no common base."""
        shared = sharing(call.plain)
        groups = [*shared, *overlapping(call.plain, shared)]
        try:
            refuse_untangled(groups, call, len(call.plain))
        except RuntimeError:
            groups = []
        if not groups or isinstance(error, Pinned):
            raise error
        return [with_autograd_base(g, call) for g in groups]

    def _joint(
        self,
        spec: pytree.TreeSpec | None,
        call: Call,
        tracked: bool,
        abstraction: Abstraction | None,
        unknown: frozenset[int],
        state: ProgramState,
        groups: Sequence[Group] = (),
    ) -> Joint:
        f = partial(watched, with_flags(of_leaves(self.fn, spec), call.flags))
        n = len(call.plain)
        based = with_bases(call, groups)
        assert based is not None, "the groups are those of this call"
        given, bases = based.plain[:n], based.plain[n:]
        if unknown and abstraction is None:
            abstraction = Abstraction(dynamic=self.dynamic)
        options: dict[str, Any] = {
            "dynamic": self.dynamic,
            "decompositions": self.decompositions,
            "abstraction": abstraction,
        }
        options |= {
            "tracked": tracked,
            "kind": LateGraphModule,
            "reads": self.reads,
            "generators": state.early.generators,
        }
        capture = partial(
            joint_graph,
            f,
            given,
            based.wanted[:n],
            groups=groups,
            bases=bases,
            unknown=sorted(unknown),
            **options,
        )
        return state.watched(capture)

    def _without_backward(self, joint: Joint) -> tuple[Boxed, None]:
        output = joint.traced.graph.output_node()
        results: Any = output.args[0]
        # without gradients, each of which is None; its code is not made yet
        output.args = (list(results)[: joint.n_forward],)
        joint.traced.meta[DESTINATIONS] = destinations(joint)
        return as_boxed(self.inference_compiler(joint.traced, examples(joint.traced))), None

    def _cut(self, joint: Joint) -> tuple[Boxed, Backward]:
        graph = joint.module.graph  # whose code is not made yet
        without_round_trips(graph, ends_of_used(joint.applications, graph))
        options: dict[str, object] = {"num_fwd_outputs": joint.n_forward}
        n = len(joint.boundary.inputs)
        static = joint.in_graph(
            [*range(self.num_params_buffers), *range(n - len(joint.closed_over), n)]
        )
        if static and self.partition is not default_partition:
            options["static_lifetime_input_indices"] = static
        cache = self.cache or default_cache()
        if cache is None:
            forward, backward = self.partition(joint.module, None, **options)
        else:
            forward, backward = cache.cut(self.partition, joint, options, self.dynamic)
        # before a compiler changes the graphs
        made = Backward(
            joint, forward, backward, self.backward_compiler, self._again, self.keep_primals
        )
        run = as_boxed(self.forward_compiler(forward, examples(forward)))
        if joint.abstraction is not None and inspect.unwrap(self.backward_compiler) is not nop:
            made.compiled()  # now: what a compiler asks about sizes becomes a guard of the program
        return run, made

    def _again(self, pullback: fx.GraphModule) -> Callable[..., Any]:
        """The pullback of one of the programs, compiled in the same way."""
        return function_of(
            dataclasses.replace(
                self, fn=pullback, decompositions=None, num_params_buffers=0, modules=()
            )
        )


def _refuse_branches(joint: Joint) -> None:
    """Refuse a program whose result has a history, and that is for one side of a branch on a
    number."""
    branches = _branches(joint)
    if branches and joint.boundary.n_tangents:
        raise RuntimeError(
            "the program branches on a number that it computes, and returns a tensor that "
            f"requires grad. Return its detach().{branches[0].args[2]}"
        )


def _branches(joint: Joint) -> list[fx.Node]:
    return [n for n in joint.traced.graph.nodes if n.target is on_side]


class Finder(Protocol):
    """What finds the program for a call: :class:`Programs`. ``recent``: by the state around a call,
    the last programs with their guards."""

    recent: dict[Kind, tuple[tuple[Take, CompiledProgram], ...]]

    def find(
        self, around: Kind, spec: pytree.TreeSpec | None, given: Sequence[object], entered: Call
    ) -> tuple[CompiledProgram, Call]:
        """The program for a call, made if there is none, and what it takes."""


class Programs:
    """The programs of one compiled function, at most ``LIMIT`` of them. The one that was not looked
    up for longest makes room."""

    LIMIT = 64

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.recent: dict[Kind, tuple[tuple[Take, CompiledProgram], ...]] = {}
        self._by_key: OrderedDict[Kind, list[CompiledProgram]] = OrderedDict()
        # a thread that needs a program waits for another one that makes it
        self._lock = threading.RLock()
        self._numbers = Numbers()
        self._warned = False
        self._in_turn = StatesInTurn(recipe.limit)

    def find(
        self, around: Kind, spec: pytree.TreeSpec | None, given: Sequence[object], entered: Call
    ) -> tuple[CompiledProgram, Call]:
        """The program for a call, made if there is none, and what it takes."""
        tracked = not _inference()
        with self._lock:
            found = None
            while found is None:
                kinds, unknown = self._opened(around, entered)
                found = self._known(around, kinds, entered, tracked)
                if found is not None:
                    # only now: many programs are called once
                    self._remember(around, given, kinds, found[0], tracked)
                else:
                    found = self._made(around, kinds, spec, entered, tracked, unknown)
        return found

    def known(
        self, around: Kind, given: Sequence[object], entered: Call
    ) -> tuple[CompiledProgram, Call] | None:
        """As :meth:`find`, but None if there is no program yet."""
        tracked = not _inference()
        with self._lock:
            kinds, _ = self._opened(around, entered)
            found = self._known(around, kinds, entered, tracked)
            if found is not None:
                self._remember(around, given, kinds, found[0], tracked)
            return found

    def _opened(self, around: Kind, entered: Call) -> tuple[list[Kind], frozenset[int]]:
        return self._numbers.opened(around, entered.kinds, self.recipe.before.leading)

    def _remember(
        self,
        around: Kind,
        given: Sequence[object],
        kinds: Sequence[Kind],
        program: CompiledProgram,
        tracked: bool,
    ) -> None:
        way = program.way(given, kinds, tracked) if program.effects.repeats else None
        if way is not None:
            others = [w for w in self.recent.get(around, ()) if w[0] is not way]
            self.recent[around] = ((way, program), *others[: _WAYS - 1])

    def _known(
        self, around: Kind, kinds: Sequence[Kind], entered: Call, tracked: bool
    ) -> tuple[CompiledProgram, Call] | None:
        key = (*around, *kinds)
        for program in self._by_key.get(key, ()):
            call = program.takes(entered, tracked)
            if call is not None:
                self._by_key.move_to_end(key)
                return program, call
        return None

    def _made(
        self,
        around: Kind,
        kinds: Sequence[Kind],
        spec: pytree.TreeSpec | None,
        entered: Call,
        tracked: bool,
        unknown: frozenset[int],
    ) -> tuple[CompiledProgram, Call] | None:
        """A new program. None if there is none for any values of the numbers ``unknown``; then
        fewer of them are inputs from now on."""
        key = (*around, *kinds)
        of_user = (*around[1:], *kinds[self.recipe.before.leading :])
        self._in_turn.check(of_user, self.recipe.name, self.recipe.entered.values())
        try:
            if unknown and len(self._by_key.get(key, ())) == _SIDES:
                raise Pinned(unknown)
            program = self.recipe.program(spec, entered, tracked, unknown=unknown)
        except Exception as e:
            if not unknown or self.recipe.lost:
                raise
            # The trace for these values alone says what is wrong, if anything is.
            positions = e.positions if isinstance(e, Pinned) else unknown
            before = self.recipe.before
            self._numbers.fix(around, entered.kinds, positions, before.leading)
            before.pinned(positions)
            if all(i < before.leading for i in positions):
                raise
            return None
        self._in_turn.add(of_user, program)
        if program.effects.repeats:
            known = self._by_key.setdefault(key, [])
            known.append(program)
            del known[: -max(_KEPT, self.recipe.limit)]
            self._by_key.move_to_end(key)
        # the program may have changed what it has read, when it was captured just now
        call = program.completed(entered, tracked)
        assert call is not None, "a program takes the call that it was made for"
        self._make_room()
        return program, call

    def _make_room(self) -> None:
        if sum(map(len, self._by_key.values())) <= self.LIMIT:
            return
        if not self._warned:
            self._warned = True
            warnings.warn(
                (
                    f"{self.recipe.name} has been compiled for more than {self.LIMIT} kinds of "
                    "arguments, so programs are dropped and compiled again. Every shape is a kind, "
                    "and so is every value of an argument that is neither a tensor nor a number, "
                    "or of a number that the program compares or uses as a size. "
                    "Compile with dynamic=True, or pass numbers as tensors."
                ),
                UserWarning,
                stacklevel=5,
            )
        _, dropped = self._by_key.popitem(last=False)
        for around, ways in list(self.recent.items()):
            self.recent[around] = tuple(w for w in ways if w[1] not in dropped)
            if not self.recent[around]:
                del self.recent[around]


def function_of(recipe: Recipe, programs: Finder | None = None) -> Callable[..., Any]:
    """The function that makes and runs the programs of ``recipe``. ``programs``: what finds them,
    in place of a new one."""
    fn, dynamic, modules = recipe.fn, recipe.dynamic, recipe.modules
    programs = programs or Programs(recipe)

    def compiled(*args: Any, **kwargs: Any) -> Any:
        given, spec = flatten(args, kwargs)
        recording, autocast = _grad_enabled(), autocast_enabled()
        if SCOPE.levels or _dispatch_modes() or transform_of_torch() or current_dual() is not None:
            # a transform, a mode or a dual level sees the calls of the program
            return fn(*args, **kwargs)
        flags = () if recording else flags_of(given)
        around = (
            spec,
            surroundings(recording, autocast),
            tuple([m.training for m in modules]) if modules else None,
            flags,
        )
        for take, known in programs.recent.get(around, ()):
            call = take(given)
            if call is not None:
                program = known
                break
        else:
            found = None
            with naming_line():
                entered = enter(given, recording or not _inference(), dynamic)
                if entered is not None:
                    entered.flags = flags
                    found = programs.find(around, spec, given, entered)
            if found is None:
                return fn(*args, **kwargs)
            program, call = found
        if not autocast:
            return program(call)
        with without_autocast():
            return program(call)

    return compiled
