"""The joint graph: forward and backward of a program in one, by running our own tape under a trace.

From the outside in: trace, functionalize, grad. The rules of the grad level so call the functionalize level, whose calls are traced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ...func.functionalize import Chain, FunctionalLevel, FunctionalValue
from ...func.symbols import SYMBOLIC, Abstraction
from ...func.trace import Trace
from ...func.tracing import module_of, trace_flat
from ...rules.ops import DIFFERENTIABLE
from ...seam import factories
from ...seam.levels import Value
from ...session.tensor import dispatches, unwrap
from ...tape.engine import execute
from ...tape.nodes import Input as Leaf
from ...tape.saved import HOOKS
from ...tape.values import edge_of
from .aliasing import Group
from .boundary import Boundary, Input, Made, Output, Size, ViewStep
from .closed_over import ClosedOver
from .joint_level import JointLevel
from .pullback import DERIVATIVE
from .surroundings import without_autocast
from .tangents import mark


@dataclass(frozen=True)
class Joint:
    """A joint graph. Placeholders: primals (arguments, bases of arguments that share memory, closed-over tensors), then tangents. Results
    are what ``boundary`` says.

    ``closed_over``: the tensors from outside, the last primals. ``groups``: the arguments that share memory; those that are not one tensor
    have a common base.
    """

    module: fx.GraphModule
    boundary: Boundary
    out_spec: pytree.TreeSpec
    abstraction: Abstraction | None
    closed_over: tuple[torch.Tensor, ...] = ()
    groups: tuple[Group, ...] = ()

    @property
    def n_forward(self) -> int:
        return self.boundary.n_forward


def joint_graph(
    f: Callable[..., Any],
    inputs: Sequence[Any],
    differentiate: Sequence[bool],
    *,
    dynamic: bool = False,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    groups: Sequence[Group] = (),
    bases: Sequence[torch.Tensor] = (),
    lift: bool = True,
    whole: bool = False,
    abstraction: Abstraction | None = None,
    loss: int | None = None,
) -> Joint:
    """``f`` takes ``inputs`` (tensors, and other values that become constants) and returns a pytree; see :class:`Joint`.

    ``differentiate``: for each input whether its gradient is wanted. ``groups``: inputs that share memory, if ``f`` writes to any input.
    ``bases``: the common base of each group that is not one tensor.
    ``lift``: make arguments of the tensors that ``f`` closes over, else they are constants of the graph. ``whole``: the graph computes all
    that ``f`` returns, arguments and their views as well. ``abstraction``: what makes the abstract values of the trace.
    ``loss``: the number of the result whose gradients the graph gives. Then it takes no cotangents.
    """
    _refuse_subclasses([*inputs, *bases])
    programs: list[_Program] = []

    def run(trace: Trace, *traced: Any) -> list[Any]:
        program = _Program(trace, f, differentiate, groups, bases, lift, whole, loss)
        programs.append(program)
        return program.results(traced)

    names = [f"primals_{i + 1}" for i in range(len(inputs))]
    abstract = dynamic or abstraction is not None
    with torch.random.fork_rng(devices=()):  # the draws of the trace are not those of a call
        graph, attributes, level = trace_flat(
            run, inputs, dynamic=dynamic, decompositions=decompositions, names=names, fixed_sizes=not abstract, abstraction=abstraction
        )
    (program,) = programs
    module = module_of(graph, attributes, "Joint")
    return Joint(module, program.boundary, program.out_spec, level.abstraction, tuple(program.outside), tuple(groups))


def _refuse_subclasses(tensors: Sequence[Any]) -> None:
    for t in tensors:
        if isinstance(t, torch.Tensor) and not isinstance(t, FakeTensor) and dispatches(type(t)):
            raise RuntimeError(
                f"a {type(t).__name__} is among the arguments or closed-over tensors: a subclass of torch.Tensor that handles its own ATen "
                "calls. This is not supported today. Compile a function of the tensors that it consists of."
            )


class _Program:
    """One run of a program under trace ⊃ functionalize ⊃ grad."""

    boundary: Boundary
    out_spec: pytree.TreeSpec

    def __init__(
        self,
        trace: Trace,
        f: Callable[..., Any],
        differentiate: Sequence[bool],
        groups: Sequence[Group],
        bases: Sequence[torch.Tensor],
        lift: bool,
        whole: bool,
        loss: int | None,
    ) -> None:
        self.trace = trace
        self.f = f
        self.flags = list(differentiate)
        self.groups = groups
        self.bases = bases
        self.lift = lift
        self.whole = whole
        self.loss = loss
        self.functional = FunctionalLevel()
        self.tape = JointLevel(trace)
        self.recording = any(differentiate) or torch.is_grad_enabled()
        self.values: list[Any] = []  # per primal: what the program sees
        self.edges: list[Any] = []  # per primal: where its gradient goes, as long as nothing writes to it
        self.memories: dict[int, int] = {}  # by id of a memory: number of the primal whose it is
        self.entered: dict[int, FunctionalValue] = {}  # by number of a primal; holds the memories, so that their ids stay theirs
        self.outside: list[torch.Tensor] = []
        self.versions: list[tuple[torch.Tensor, int]] = []  # of tensors from outside: the dispatcher counts the writes of the trace

    def results(self, traced: Sequence[Any]) -> list[Any]:
        """The results of the graph, as traced values."""
        tape, functional = self.tape, self.functional
        for t, flag in zip(traced, self.flags, strict=True):
            self._enter(t, flag)
        given = list(self.values)
        try:
            with functional.mode:
                self._join(given)
                with torch.set_grad_enabled(self.recording), HOOKS.suspended():  # hooks around a call see what the call saves
                    outs, self.out_spec = self._run(given)
            results, roots = self._results_of(outs)
            returned = [v for v in map(self.functional_value, outs) if v is not None]
            before = self._writes(returned)
            with functional.mode:
                grads = self._gradients(roots)
            self._refuse_writes_outside()
            changed = self._written_since(before, returned)
            self.boundary = dataclasses.replace(self.boundary, backward_written=changed, once=self._why_once(outs))
            return [*results, *(None if g is None else self._read(g) for g in grads), *(self._read(self.entered[i]) for i in changed)]
        finally:
            tape.close()
            functional.close()
            for t, version in self.versions:
                torch._C._autograd._unsafe_set_version_counter((t,), (version,))

    def _enter(self, t: Any, flag: bool) -> Any:
        """A primal as the program sees it."""
        if not isinstance(t, torch.Tensor):
            self.values.append(t)
            self.edges.append(None)
            return t
        v: Any = self.functional.wrap(t)
        self.memories[id(v._store.memory)] = len(self.values)
        self.entered[len(self.values)] = v
        if flag:
            v = self.tape.input(v)
        elif self.recording and v.dtype in DIFFERENTIABLE:
            v = self.tape.wrap(v)  # it may get a history by a write
        self.values.append(v)
        self.edges.append(v._edge if flag else None)
        return v

    def _join(self, given: list[Any]) -> None:
        """Exchange arguments that share memory for views of one base, which becomes a primal."""
        bases = iter(self.bases)
        for group in self.groups:
            if group.identical:
                for i in group.members[1:]:
                    given[i] = self.values[i] = given[group.members[0]]
                continue
            with _disable_current_modes():
                base = self._primal(next(bases), group.differentiated)
            with torch.set_grad_enabled(self.recording):
                for i in group.members:
                    size, stride, offset = group.place(i)
                    if group.differentiated:
                        given[i] = self.values[i] = base.as_strided(size, stride, offset)
                    else:  # an offset counts from the start of a storage, and that of the base starts elsewhere after a write
                        given[i] = self.values[i] = base.narrow(0, offset, _length(size, stride)).as_strided(size, stride)

    def _primal(self, plain: torch.Tensor, flag: bool, fixed: bool = False) -> Any:
        """A further primal, after those that there are. ``fixed``: its sizes are constants of the graph."""
        self.flags.append(flag)
        return self._enter(self.trace.input(plain, f"primals_{len(self.values) + 1}", fixed), flag)

    def _from_outside(self, t: torch.Tensor) -> Any:
        if not t.is_inference():
            self.versions.append((t, t._version))
        with _disable_current_modes():
            plain = unwrap(t) if isinstance(t, Value) else t.detach()
            _refuse_subclasses([plain])
            flag = self.recording and t.requires_grad
            self.outside.append(t)
            return self._primal(plain, flag, fixed=True)  # sizes of parameters as symbols would make traces ten times slower

    def _run(self, given: Sequence[Any]) -> tuple[list[Any], pytree.TreeSpec]:
        if not self.lift:
            return pytree.tree_flatten(self.tape.run_inside(self.f, given, {}))
        with ClosedOver(self._from_outside) as closed_over:
            outs, spec = pytree.tree_flatten(self.tape.run_inside(self.f, given, {}))
        with self.functional.mode:
            return [closed_over.value(o) for o in outs], spec

    def _refuse_writes_outside(self) -> None:
        if any(v._store.memory.generation for v in self.functional.closed_over.values()):
            raise RuntimeError("the program writes to a tensor that it closes over. Pass it as an argument.")

    def _writes(self, returned: Sequence[FunctionalValue]) -> list[tuple[int, int]]:
        """Per primal, then per tensor in ``returned``: how often its memory was written to, and how often its geometry changed in place."""
        return [(v._store.memory.generation, len(v._chain)) for v in (*self.entered.values(), *returned)]

    def _written_since(self, before: Sequence[tuple[int, int]], returned: Sequence[FunctionalValue]) -> tuple[int, ...]:
        """The primals that the backward pass writes to."""
        after = self._writes(returned)
        n = len(self.entered)
        if any(a[1] != b[1] for a, b in zip(before, after, strict=True)):
            raise RuntimeError("the backward pass changes sizes or strides of a tensor in place; let it use the op that returns a view")
        changed = tuple(i for i, a, b in zip(self.entered, before, after, strict=False) if a[0] != b[0])
        memories = {id(self.entered[i]._store.memory) for i in changed}
        if any(a[0] != b[0] and id(v._store.memory) not in memories for v, a, b in zip(returned, before[n:], after[n:], strict=True)):
            raise RuntimeError("the backward pass writes to a result of the program; let it write to a copy")
        return changed

    def _why_once(self, outs: Sequence[Any]) -> str:
        """Why the program can be differentiated only once, or nothing. The calls of the graph are told how they are differentiated."""
        for n, derivative in self.tape.derivatives.items():
            n.meta[DERIVATIVE] = derivative
        why = ""
        if self.tape.writes_unseen or self.functional.overtaken:
            why = "it writes to a tensor under no_grad, or through detach() or .data, that has a history"
        seen: set[Any] = set()
        stack = [edge[0] for edge in map(self.edge, (*outs, *self.values)) if edge is not None]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, Leaf):
                raise RuntimeError("the program calls requires_grad_() on a tensor that a result depends on. Do that before the call.")
            if node.tensor_hooks or node.pre_hooks or node.post_hooks:
                why = "it registers a hook on a tensor"
            stack.extend(edge[0] for edge in node.edges if edge is not None)
        return why

    # what is known of a value

    def functional_value(self, v: Any) -> FunctionalValue | None:
        """``v`` at the functionalize level, if it is a value of it."""
        if isinstance(v, Value) and v._level is self.tape:
            v = v._inner
        return v if isinstance(v, FunctionalValue) and v._level is self.functional else None

    def _read(self, v: Any) -> Any:
        """``v`` as a traced value, or as it is."""
        found = self.functional_value(v)
        return v if found is None else self.functional.read(found)

    def _changes_of_geometry(self, i: int) -> Chain:
        """The view ops that the program has applied to primal ``i`` in place."""
        found = self.functional_value(self.values[i])
        group = self._group(i)
        from_base = 0 if group is None else 1 if group.differentiated else 2  # how many ops take a member from its base
        return () if found is None else found._chain[from_base:]

    def _group(self, i: int) -> Group | None:
        """The group with a base of which argument ``i`` is a member."""
        return next((group for group in self.groups if i in group.members and not group.identical), None)

    def edge(self, v: Any) -> Any:
        """The history of ``v``, None for a leaf that the program has made."""
        edge = edge_of(v) if isinstance(v, Value) and v._level is self.tape else None
        return None if edge is None or isinstance(edge[0], Leaf) else edge

    def is_leaf(self, v: Any) -> bool:
        """Whether the program has called ``requires_grad_()`` of ``v``."""
        return isinstance(v, Value) and v._level is self.tape and isinstance((edge_of(v) or (None,))[0], Leaf)

    # results

    def _results_of(self, outs: list[Any]) -> tuple[list[Any], list[Any]]:
        """The results of the forward pass, and for each that has a history (edge, cotangent)."""
        results: list[Any] = []
        roots: list[Any] = []

        def add(v: Any, edge: Any) -> int | None:
            traced = self._read(v)
            results.append(traced)
            if edge is None or self.loss is not None:
                return None
            roots.append((edge, self._tangent(traced, len(roots) + 1)))
            return len(roots) - 1

        inputs = tuple(self._input(i, add) for i in range(len(self.values)))
        computed = _Computed(self, outs)
        outputs = tuple(computed.output(o) for o in outs)
        tangents = tuple(add(v, self.edge(v)) for v in computed.values)
        self.boundary = Boundary(inputs, outputs, tangents, _repeated(outs))
        if self.loss is not None:
            v = outs[leaf_of(self.out_spec, self.loss)]
            roots.append((self.edge(v), self._ones_like(v)))
        return results, roots

    def _tangent(self, like: Any, number: int) -> Any:
        """A placeholder for the cotangent of ``like``."""
        placeholder = self.trace.late_input(like, f"tangents_{number}")
        mark(placeholder._node)
        return self.functional.wrap(placeholder)

    def _ones_like(self, v: Any) -> Any:
        value = self.functional_value(v)
        assert value is not None, "a result with a history is a value"
        with self.functional.mode, torch.no_grad():
            return factories.ones_like(value)

    def _input(self, i: int, add: Callable[[Any, Any], int | None]) -> Input:
        v, flag = self.values[i], self.flags[i]
        found = self.functional_value(v)
        if found is None or any(i in g.members[1:] for g in self.groups if g.identical):  # the first of them stands for all
            return Input(flag)
        reshaped = tuple(ViewStep(*step) for step in self._changes_of_geometry(i))
        for step in reshaped:
            if step.in_place() is None:
                raise RuntimeError(f"the program changes an argument in place by {step.func}, which the caller's tensor cannot follow")
        if self._group(i) is not None:  # its base is written, not this view of it
            return Input(flag, reshaped=reshaped)
        edge = self.edge(v)
        if self.is_leaf(v):
            raise RuntimeError(
                "the program calls requires_grad_() on an argument or a tensor that it closes over. Do that before the call."
            )
        if flag and edge is None:
            raise RuntimeError("the program detaches an argument in place. Return its detach() instead, or detach it before the call.")
        node = self.edges[i][0] if flag else None
        if node is not None and (node.tensor_hooks or node.pre_hooks or node.post_hooks):
            raise RuntimeError("the program registers a hook on an argument or a tensor that it closes over. Do that before the call.")
        store = found._store
        if not store.memory.generation:
            return Input(flag, reshaped=reshaped)
        if store.recorded and not self.recording and v.dtype in DIFFERENTIABLE:
            raise RuntimeError(
                "the program is called under no_grad, and writes to an argument or a tensor that it closes over inside enable_grad(). Call "
                "it with grad mode, so that the write can have a history, or write outside of enable_grad()."
            )
        entered = self.edges[i]
        seen = edge is not None and (entered is None or edge[0] is not entered[0])
        return Input(flag, True, add(v, edge if seen else None), store.counter[0], reshaped)

    def _gradients(self, roots: list[Any]) -> Sequence[Any]:
        captures = [e for e, flag in zip(self.edges, self.flags, strict=True) if flag]
        if not roots:
            return [None] * len(captures)
        with torch.no_grad(), without_autocast():  # as a backward pass after the autocast block
            return execute(self.tape, roots, captures, create_graph=False, keep_graph=False, accumulate=False)


class _Computed:
    """Which results of a program the graph computes: all but arguments and views of arguments. Several views of one intermediate are
    views of one computed base. ``values``: those results, as the program saw them."""

    def __init__(self, program: _Program, outs: Sequence[Any]) -> None:
        self.program = program
        self.values: list[Any] = []
        self._numbers: dict[int, int] = {}  # by id of a value
        self._sharing: dict[int, list[Any]] = {}  # results by id of their memory
        for o in outs:
            found = program.functional_value(o)
            if found is not None and id(found._store.memory) not in program.memories:
                shared = self._sharing.setdefault(id(found._store.memory), [])
                if not any(o is s for s in shared):
                    shared.append(o)

    def output(self, o: Any) -> Output:
        output = self._output(o)
        return dataclasses.replace(output, leaf=True) if self.program.is_leaf(o) else output

    def _output(self, o: Any) -> Output:
        program = self.program
        if program.whole:
            return Output(Made.RESULT, self._number(o))
        if not isinstance(o, torch.Tensor):
            return Output(Made.CONSTANT, constant=o) if not isinstance(o, SYMBOLIC) else Output(Made.RESULT, self._number(o))
        for i, v in enumerate(program.values):
            if o is v:
                return Output(Made.INPUT, i)
        found = program.functional_value(o)
        if found is None:
            return Output(Made.RESULT, self._number(o))
        recorded = program.edge(o) is not None
        memory = id(found._store.memory)
        i = program.memories.get(memory, -1)
        if i >= 0:
            steps = self._steps(found, program.values[i])
            if self._is_view(o, program.values[i], steps):
                return self._viewed(Made.INPUT, i, steps, recorded)
        elif len(self._sharing[memory]) > 1:
            base = self._base(self._sharing[memory])
            if o is base:
                return Output(Made.RESULT, self._number(base))
            if base is not None and self._is_view(o, base, steps := self._steps(found, base)):
                return self._viewed(Made.RESULT, self._number(base), steps, recorded)
        return Output(Made.RESULT, self._number(o))

    def _viewed(self, made: Made, number: int, steps: Sequence[ViewStep], recorded: bool) -> Output:
        """A view. The graph gives the numbers of its steps that depend on sizes."""

        def bound(step: ViewStep) -> ViewStep:
            rest, kwargs = pytree.tree_map_only(SYMBOLIC, lambda size: Size(self._number(size)), (step.rest, step.kwargs))
            return dataclasses.replace(step, rest=rest, kwargs=kwargs)

        known = len(self.values)
        found = tuple(map(bound, steps))
        return Output(made, number, found, recorded, sized=len(self.values) > known)

    def _steps(self, v: FunctionalValue, base: Any) -> tuple[ViewStep, ...]:
        """The view ops that lead from ``base``, which has this memory, to ``v``."""
        found = self.program.functional_value(base)
        assert found is not None
        own = len(found._chain)  # what has changed the geometry of the base in place
        if any(a is not b for a, b in zip(v._chain, found._chain, strict=False)) or len(v._chain) < own:
            raise RuntimeError(
                "the program returns a view of an argument that is older than a change of the argument's sizes or strides in place. Return "
                "a copy, or take the view after the change."
            )
        detached = () if v._store is found._store else (ViewStep(torch.ops.aten.detach.default, (), {}, None),)
        return (*detached, *(ViewStep(*step) for step in v._chain[own:]))

    def _number(self, v: Any) -> int:
        number = self._numbers.get(id(v)) if isinstance(v, torch.Tensor) and not self.program.whole else None
        if number is None:
            number = self._numbers[id(v)] = len(self.values)
            self.values.append(v)
        return number

    def _is_view(self, o: Any, base: Any, steps: Sequence[ViewStep]) -> bool:
        """Whether the view ops ``steps`` of ``base`` are all the history that ``o`` has. It may come from a user's Function as well."""
        if self.program.edge(o) is None:
            return True
        view = getattr(o, "_view", None)
        return view is not None and view.base is base

    def _base(self, shared: Sequence[Any]) -> Any:
        """The value whose views are all of ``shared``, if there is one."""
        for o in shared:
            view = getattr(o, "_view", None)
            base = o if view is None else view.base
            found = self.program.functional_value(base)
            if found is not None and not found._chain:
                return base
        return None


def _length(size: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements of memory lie between the first and the last one of a tensor, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _repeated(outs: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """The numbers of tensors that stand in ``outs`` before, each with that of the first time."""
    first: dict[int, int] = {}
    found = [(i, first.setdefault(id(o), i)) for i, o in enumerate(outs) if isinstance(o, torch.Tensor)]
    return tuple((i, j) for i, j in found if i != j)


def leaf_of(spec: pytree.TreeSpec, number: int) -> int:
    """The number of the first leaf of item ``number``."""
    if spec.is_leaf():
        return 0
    children = spec.children()
    return sum(child.num_leaves for child in children[: number % len(children)])
