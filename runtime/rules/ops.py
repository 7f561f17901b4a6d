"""Compute facts of an ATen overload, once per overload: its kind, its functional form, its record,
its compiled formulas.

``op_of(torch.ops.aten.add_.Tensor)`` has the kind ``INPLACE``, the functional form
``op_of(torch.ops.aten.add.Tensor)`` and the record of that form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

import torch

from ..errors import MissingRule
from ..seam.call_types import Arguments, Keywords
from ..seam.containers import is_written
from ..seam.dispatch import innermost
from ..seam.keys import VIEWS
from ..seam.level_mode import hand_over_directly
from ..torch_private.dispatcher import (
    REFERENCES,
    DispatchKey,
    OpOverload,
    decomposition_table,
    has_kernel,
    has_kernel_for_key,
    set_excluded,
)
from .overload_bindings import binding_of, functional_overload, is_composite
from .record import (
    NESTED,
    RECORDS,
    Formula,
    Meta,
    NestedMeta,
    Record,
    VjpTable,
    listeners,
    parameters,
    targets_of,
)

FUNCTIONAL, VIEW, INPLACE, OUT = range(4)
# the dtypes that can have a gradient or a tangent
DIFFERENTIABLE = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
)


def _blocksize(t: torch.Tensor) -> object:
    """Return the shape of the blocks of a blocked sparse tensor, None for any other."""
    if t.layout not in (torch.sparse_bsr, torch.sparse_bsc):
        return None
    return t.values().shape[1:3]


def _geometry(t: torch.Tensor) -> object:
    """Return shape, strides and offset of a tensor. A layout without strides has None."""
    if t.layout is torch.strided:
        return t.shape, t.stride(), t.storage_offset()
    return t.shape, None, 0


# one function for each reader, so that two formulas which ask for one fact share a slot of a plan
@functools.cache
def _fact(reader: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return ``reader`` as a function of a tensor, of a list of tensors, or of None, which stays
    None."""

    def fact(t: Any) -> Any:
        """Apply the reader to one argument of a call."""
        if t is None:
            return None
        kind = type(t)
        if kind is list or kind is tuple:
            return list(map(fact, t))
        return reader(t)

    return fact


_SUFFIXES: dict[str, Callable[[Any], Any]] = {
    "_shape": attrgetter("shape"),
    "_dtype": attrgetter("dtype"),
    "_meta": Meta.of,
    "_nested": NestedMeta.of,
    "_blocksize": _blocksize,
    "_geometry": _geometry,
}


def as_it_is(v: object) -> Any:
    """Return ``v``. The reader of an argument that is no tensor."""
    return v


NO_PLAN: Any = object()  # in place of a plan, if an argument that requires grad has no formula
# what a formula takes of its node, behind the values of the slots
_OF_NODE = {"g": -1, "gs": -2, "needs": -3}


class Plan:
    """What to save for the formulas of one op, and how to run them, for one set of
    wanted arguments.

    ``slots``: what to save, as (position, reader). A position counts arguments from the start and
    results from the end, so both index ``[*arguments, *results]``. Without a reader the value
    itself is saved; it may be a tensor. ``reach``: how many arguments the slots need, defaults
    included. ``at``: the edge of a node for each wanted argument, if none is a list. ``steps``:
    (targets, formula, picker of its arguments, whether one of them is ``g``, whether it has a
    single target). The picker picks from the slots' values, followed by ``needs`` (-3), ``gs``
    (-2) and ``g`` (-1).
    """

    __slots__ = ("at", "elementwise", "names", "needs", "op", "reach", "slots", "steps")

    def __init__(self, op: Op, wanted: int) -> None:
        """Plan for the arguments ``wanted``, a bit for each position."""
        assert op.record is not None and op.record.vjp is not None
        self.op = op
        self.elementwise = op.record.elementwise
        positions = [index for index in op.tensor_args if wanted >> index & 1]
        # the edges of a node are in the order of the arguments that have any
        self.at = {position: index for index, position in enumerate(positions)}
        self.needs = frozenset(op.arg_names[position] for position in positions)
        self.names: list[str] = []
        self.steps: list[
            tuple[tuple[int, ...], Formula, Callable[[list[Any]], Any], bool, bool]
        ] = []
        slots: dict[tuple[int, Any], int] = {}
        covered: set[str] = set()
        for key, formula in op.record.vjp.items():
            # an op may lack an argument that another op with the same record has
            targets = [name for name in targets_of(key) if name in op.positions]
            if not self.needs.isdisjoint(targets):
                covered.update(targets)
                self._add_step(key, formula, slots)
        # an argument without a formula has no gradient here, which is an error if it is wanted
        missing = self.needs - covered
        if missing:
            raise MissingRule(str(op.func), "vjp", missing, covered - missing)
        self.slots = tuple(slots)
        self.reach = 1 + max((at for at, _ in slots), default=-1)

    def _add_step(
        self, key: str | tuple[str, ...], formula: Formula, slots: dict[tuple[int, object], int]
    ) -> None:
        """Add the formula of one gradient, or of several that it returns together."""
        where = [self._find_slot(name, slots) for name in parameters(formula)]
        at = tuple(self.op.positions.get(name, -1) for name in targets_of(key))
        self.steps.append((at, formula, _picker(where), -1 in where, isinstance(key, str)))

    def _find_slot(self, name: str, slots: dict[tuple[int, object], int]) -> int:
        """Return where a picker finds what a formula takes as ``name``, with a new slot if need
        be."""
        if name in _OF_NODE:
            return _OF_NODE[name]
        slot = self.op.locate(name)
        if slot not in slots:
            slots[slot] = len(slots)
            self.names.append(name)
        return slots[slot]

    def edges_at(self, spans: dict[int, int]) -> dict[int, int]:
        """Return ``at`` for a call in which some arguments are lists. ``spans``: by position, the
        number of tensors of each list, which all have an edge."""
        at, first = {}, 0
        for position in self.at:
            at[position] = first
            first += spans.get(position, 1)
        return at


def _picker(where: list[int]) -> Callable[[list[Any]], object]:
    """Return a function from ``values`` to ``[values[i] for i in where]``.

    It runs for every formula of every node, so it is a C function where possible.
    """
    if len(where) > 1:
        return itemgetter(*where)
    if not where:
        return lambda values: ()
    # For -1 the end is None, because a slice from -1 to 0 is empty.
    return itemgetter(slice(where[0], where[0] + 1 or None))  # a list of one


def _default_of(argument: Any) -> object:
    """Return the default of an argument of a schema, or None."""
    if argument.has_default_value():
        return argument.default_value
    return None


class Op:
    """One ATen overload. ``kind`` is FUNCTIONAL, VIEW, INPLACE or OUT. ``functional`` is the
    functional form of an in-place op.

    ``kernel``: the callable that runs it without a Python frame between. ``fills``: it writes to
    memory that is new or given as ``out``. ``special``: some result has no derivative by the
    record's formulas, or the op writes to an argument, so a tape has more to check. ``accepted``:
    signatures that an element of a batch has accepted (see ``runtime.func.element_check``). None if
    the batch rule checks them.
    """

    __slots__ = (
        "accepted",
        "arg_names",
        "base_name",
        "batch",
        "composite",
        "decomposed",
        "defaults",
        "fills",
        "fills_argument",
        "func",
        "functional",
        "jvp",
        "kernel",
        "kind",
        "multi_view",
        "n_results",
        "node_class",
        "nondiff",
        "plans",
        "positions",
        "record",
        "result_names",
        "special",
        "tensor_args",
        "vjp_args",
    )  # fmt: skip

    def __init__(self, func: OpOverload, nested: bool = False) -> None:
        """Compute the facts of ``func``. ``nested``: for calls with a nested tensor."""
        self.func = func
        self.kernel: Callable[..., Any] = func
        # the call of a subclass, for script objects, does more than its `_op`
        if type(func) is OpOverload:
            self.kernel = func._op
        self._read_schema()
        self._find_record(nested)
        self._derive_facts()
        self.plans: dict[int, Any] = {}
        self.node_class: Any = None
        # `runtime.func.tangent_rules` and `runtime.func.batch` store here what they derive
        # from the record
        self.jvp: Any = None
        self.batch: Any = None
        self.accepted: set[object] | None = set()
        # None: not yet looked for. False: there is none
        self.decomposed: Any = None
        if nested and not self.composite:  # decompositions of torch's table read shapes
            self.decomposed = False

    def _read_schema(self) -> None:
        """Store what the schema says: names, positions and defaults of arguments, number of
        results."""
        schema = self.func._schema
        arguments = schema.arguments
        self.arg_names = tuple(argument.name for argument in arguments)
        self.positions = {name: index for index, name in enumerate(self.arg_names)}
        self.defaults = tuple(map(_default_of, arguments))
        # formulas have edges for positional arguments alone
        self.tensor_args = tuple(
            index
            for index, argument in enumerate(arguments)
            if "Tensor" in str(argument.type) and not argument.kwarg_only
        )
        self.n_results = len(schema.returns)
        self.base_name = schema.name.split("::")[1]
        self._classify()

    def _classify(self) -> None:
        """Find from the schema's aliases whether the op writes, views or computes."""
        schema = self.func._schema
        # aliases of the schema: `a!` is written to, `a` without it is a view
        written = list(filter(is_written, schema.arguments))
        returns_alias = any(result.alias_info is not None for result in schema.returns)
        # the tape saves this argument after the call
        self.fills_argument = bool(written and schema.returns) and not returns_alias
        self.multi_view = False
        self.kind = FUNCTIONAL
        if self.fills_argument:
            return  # it also updates a buffer, as running statistics; its results are new tensors
        if any(argument.kwarg_only for argument in written):
            self.kind = OUT
        elif written:
            self.kind = INPLACE
        elif returns_alias:
            self.kind = VIEW
            self.multi_view = "List" in str(schema.returns[0].type) or self.n_results > 1

    def _find_record(self, nested: bool) -> None:
        """Find the record (an in-place op has that of its functional form) and whether ATen
        composes the op of others."""
        func = self.func
        records, op = RECORDS, op_of
        if nested:
            records, op = NESTED, nested_op_of
        self.functional: Op | None = None
        self.record: Record | None = records.get(func)
        if self.kind == INPLACE and self.record is None:
            functional = functional_overload(func, self.base_name)
            if functional is not None:
                self.functional = op(functional)
                self.record = self.functional.record
        self.composite = has_kernel(func._name) and is_composite(func._name)
        if nested:
            self._use_for_nested()

    def _use_for_nested(self) -> None:
        """Take the dense record where it says only that there is no derivative. A kernel for nested
        tensors goes before the composition."""
        func = self.func
        dense = RECORDS.get(func)
        if self.record is None and dense is not None and dense.nondiff is True:
            self.record = dense
        if has_kernel_for_key(func._name, DispatchKey.NestedTensorCPU):
            self.composite = False

    def _derive_facts(self) -> None:
        """Compute what depends on the schema and the record together."""
        self.nondiff = self._results_without_gradient()
        self.vjp_args: frozenset[int] = frozenset()
        if self.record is not None and self.record.vjp is not None:
            self.vjp_args = self._arguments_of(self.record.vjp)
            self.kernel = binding_of(self.func) or self.kernel
        self.fills = self.kind in (FUNCTIONAL, OUT)
        # most calls are none of this, and the tape takes a shorter way for them
        has_vjp = self.record is not None and self.record.vjp is not None
        writes = self.kind in (INPLACE, OUT)
        self.special = writes or not has_vjp or bool(self.nondiff)

    def _results_without_gradient(self) -> frozenset[int]:
        """Return the results that the record names, and all of an op that returns no tensor."""
        nondiff: bool | tuple[int, ...] = ()
        if self.record is not None:
            nondiff = self.record.nondiff
        returns = self.func._schema.returns
        if self.kind is FUNCTIONAL and not any("Tensor" in str(result.type) for result in returns):
            nondiff = True  # `item`, `equal`: a result that is no tensor has no derivative
        if nondiff is True:
            return frozenset(range(max(self.n_results, 1)))
        return frozenset(nondiff or ())

    def _arguments_of(self, table: VjpTable) -> frozenset[int]:
        """Return the arguments that have a formula in the table, of one gradient or of several."""
        names: set[str] = set()
        for key in table:
            names.update(targets_of(key))
        return frozenset(self.positions[name] for name in names if name in self.positions)

    def locate(self, name: str) -> tuple[int, Any]:
        """Return the slot of a formula's parameter, as in :class:`Plan`."""
        at = self.positions.get(name)
        if at is not None and "Tensor" in str(self.func._schema.arguments[at].type):
            return at, None
        if at is not None:
            return at, as_it_is
        if name == "result":
            return -self.n_results, None
        if name.startswith("result") and name[6:].isdigit():
            return int(name[6:]) - self.n_results, None
        # a fact of a value, such as `self_shape`
        for suffix, reader in _SUFFIXES.items():
            if not name.endswith(suffix):
                continue
            at, inner = self.locate(name[: -len(suffix)])
            # no fact of a fact, and none of an argument that is no tensor
            if inner is not None:
                continue
            is_tensor = at >= 0 and str(self.func._schema.arguments[at].type) == "Tensor"
            if not is_tensor:  # perhaps None, or a list
                reader = _fact(reader)
            return at, reader
        raise ValueError(
            f"{self.func}: a formula asks for {name!r}, "
            f"which is neither an argument {self.arg_names} nor a result"
        )

    def argument(self, i: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the value of argument ``i`` in a call, or its default."""
        if i < len(args):
            return args[i]
        if kwargs:
            return kwargs.get(self.arg_names[i], self.defaults[i])
        return self.defaults[i]

    def operands(self, args: Arguments, kwargs: Keywords, outs: Any, reach: int) -> list[Any]:
        """Return ``[*arguments, *results]`` of a call, which slots index.

        The first ``reach`` arguments get their defaults if they are absent.
        """
        count = len(args)
        operands = list(args)
        if kwargs:
            operands += [self.argument(index, args, kwargs) for index in range(count, reach)]
        else:
            operands += self.defaults[count:reach]
        # results last, since slots count them from the end
        if self.n_results == 1:
            operands.append(outs)
        # an in-place op has one result, but its functional form may have more
        elif isinstance(outs, torch.Tensor):
            operands += (outs,) * self.n_results
        else:
            operands += outs
        return operands

    def run(self, args: Arguments, kwargs: Keywords) -> Any:
        """Run ``func(*args, **kwargs)`` for a level that passes a call on to the next outer level.

        A functional op goes straight to that level, as the dispatcher would pass it
        in twice the time.
        """
        if self.kind is FUNCTIONAL:
            level = innermost(args, kwargs)
            if level is not None:
                handed = hand_over_directly(level, self.func, args, kwargs)
                if handed is not NotImplemented:
                    return handed
        if not self.fills:
            return self.kernel(*args, **kwargs)
        # `uncounted`, without its frame: sparse kernels fill results through views
        set_excluded(VIEWS, True)
        try:
            return self.kernel(*args, **kwargs)
        finally:
            set_excluded(VIEWS, False)

    def plan(self, wanted: int) -> Any:
        """Return the plan for the wanted arguments (a bit for each position), or ``NO_PLAN`` if one
        of them has no formula."""
        # few sets of arguments are ever wanted of one op
        plan = self.plans.get(wanted)
        if plan is None:
            plan = NO_PLAN
            if self.vjp_args.issuperset(index for index in self.tensor_args if wanted >> index & 1):
                plan = Plan(self, wanted)
            self.plans[wanted] = plan
        return plan

    def __repr__(self) -> str:
        return f"<Op {self.func}>"


_NESTED_OPS: dict[int, Op] = {}  # ops on nested tensors, as below
# by id of the overload, since its own hash is a Python function; an Op holds its overload, so the
# id stays valid
_OPS: dict[int, Op] = {}
listeners.extend((_OPS.clear, _NESTED_OPS.clear))  # a new record makes these facts stale


def op_of(func: Any) -> Op:
    """Return the op of an overload. An op is returned as it is."""
    op = _OPS.get(id(func))
    if op is None:
        if type(func) is Op:
            return func
        op = _OPS[id(func)] = Op(func)
    return op


def nested_op_of(func: OpOverload) -> Op:
    """Return the op of an overload that is called with a nested tensor. Nested tensors have their
    own records."""
    op = _NESTED_OPS.get(id(func))
    if op is None:
        op = _NESTED_OPS[id(func)] = Op(func, nested=True)
    return op


# Further sources of decompositions, asked in order with the rule that is missing ("vjp",
# "jvp" or "batch").
PROVIDERS: list[Callable[[Op, str], Callable[..., object] | None]] = []


def decomposition_of(op: Op, rule: str) -> Callable[..., Any] | None:
    """Return the op in terms of other ops: from its record, else ATen's composite kernel, else
    torch's decomposition table, else a provider. None if no source has any.

    ``rule``: what a caller lacks, ``"vjp"``, ``"jvp"`` or ``"batch"``, for the providers.
    """
    decomposition = _own_decomposition(op)
    if decomposition is not None:
        return decomposition
    for provider in PROVIDERS:
        decomposition = provider(op, rule)
        if decomposition is not None:
            return decomposition
    return None


def _own_decomposition(op: Op) -> Callable[..., object] | None:
    """Return the decomposition that the op has without providers. It is looked up once."""
    if op.decomposed is None:
        op.decomposed = _find_decomposition(op) or False
    return op.decomposed or None


def _find_decomposition(op: Op) -> object:
    """Return the decomposition by record, ATen or torch's table. None if there is none."""
    decomposition: Any = None
    if op.record is not None and op.kind != INPLACE:
        decomposition = op.record.decomposition
    if decomposition is None and op.composite:
        decomposition = op.func.decompose
    if decomposition is None and op.func.namespace == "prims":
        # torch's Python kernels call them, also on values: for the shape of 0 * v
        decomposition = getattr(op.func, "impl_aten", None)
    if decomposition is not None:
        return decomposition
    decomposition = decomposition_table.get(op.func)
    if getattr(decomposition, "__module__", "").startswith(REFERENCES):
        return None  # written with prims, which have no records
    return decomposition


def written_out(op: Op, rule: str) -> Callable[..., Any]:
    """Return the op in terms of other ops, for a call whose derivative is by a keyword argument.

    Formulas exist for positional arguments only. ``MissingRule`` if the op has no decomposition.
    """
    decomposition = decomposition_of(op, rule)
    if decomposition is None:
        raise MissingRule(str(op.func), rule, case="for a keyword argument")
    return decomposition


def generator_of(args: Iterable[object], kwargs: Mapping[str, object]) -> torch.Generator:
    """Return the generator from which a call draws: the one among its arguments, else torch's
    default one. ``poisson`` and ``rrelu`` take it by position."""
    return next(
        (
            argument
            for argument in (*args, *kwargs.values())
            if isinstance(argument, torch.Generator)
        ),
        torch.default_generator,
    )
