"""Record an ATen call as a node of the tape, which saves what the formulas of its op need.

Example: ``x.mul(y)`` makes a ``MulBackward0``. Its :class:`runtime.rules.ops.Plan` says that the
gradient by ``x`` needs ``y``, so the node saves ``y`` if ``x`` requires grad.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import MissingRule
from ..rules.ops import NO_PLAN, Op, Plan, as_it_is
from ..rules.record import parameters
from ..seam.dispatch import run_elementwise
from ..seam.levels import Level
from ..seam.shells import VALUES
from ..seam.user_code import settled
from .node_names import WITHOUT_NUMBER, node_name, own_name
from .nodes import AccumulateGrad, Edge, Node
from .saved import FREED, HOOKS, Packed, Saved, SavedTensor, present, restore, save, store

_new = object.__new__  # makes an object without the frame of its ``__init__``
_TENSORS = frozenset((Saved, Packed, list))  # types of a slot that holds tensors


class OpNode(Node):
    """A recorded ATen call. One subclass per op gives it its name (``MulBackward0``)."""

    unseen = True
    __slots__ = ("args_at", "plan", "saved", "spans")
    plan: Plan
    args_at: dict[int, int]  # {position of a tensor argument: its (first) edge}
    spans: dict[int, int] | None  # {position: number of tensors} for list arguments
    saved: list[Any] | None

    @staticmethod
    def of(
        op: Op,
        level: Level,
        edges: tuple[Edge | None, ...],
        metas: object,
        wanted: int,
        spans: dict[int, int] | None,
    ) -> Any:
        """Return the node of a call of ``op``, or :class:`Undifferentiable` if an argument has no
        formula.

        ``edges``: those of the tensors that require grad, in the order of the arguments. ``metas``:
        shape and dtype of each result. ``wanted``: a bit for the position of each argument that has
        edges, see :meth:`Op.plan`. ``spans``: by position, how many edges a list argument has.
        """
        plan = op.plans.get(wanted) or op.plan(wanted)
        if plan is NO_PLAN:
            return Undifferentiable(level, edges, metas, op, wanted)
        # OpNode has no __init__: its attributes are set here, because this function runs for every
        # recorded call and saves a frame.
        node: OpNode = (op.node_class or node_class(op))(level, edges, metas)
        node.plan = plan
        node.args_at = plan.edges_at(spans) if spans else plan.at
        node.spans = spans
        node.saved = None
        return node

    def as_written(self, op: Op, functional: Op) -> OpNode:
        """Return this new node with the class of the in-place op ``op``: ``TBackward1`` in place
        of ``TBackward0``."""
        cls = inplace_class(op, functional)
        if cls is type(self):
            return self
        node = cls(self.level, self.edges, self.metas)
        node.plan = self.plan
        node.args_at = self.args_at
        node.spans = self.spans
        node.saved = self.saved
        return node

    def save(self, args: list[object], kwargs: dict[str, object], outs: object) -> None:
        """Save what the plan's formulas need. ``outs``: the inner outputs, a tensor, tuple or list.

        Under pack hooks it may be called twice: before the kernel with ``outs=None``, to pack the
        arguments, then with the outputs."""
        if HOOKS.innermost():
            self._pack(args, kwargs, outs)
        else:
            self.save_unpacked(args, kwargs, outs)

    def save_unpacked(self, args: list[object], kwargs: dict[str, object], outs: object) -> None:
        """Save as :meth:`save` does without pack hooks. The caller has checked that there are
        none."""
        plan = self.plan
        op = plan.op
        # Slots count results from the end: -1 is the only one, or the last.
        if op.n_results > 1 or kwargs:
            operands = op.operands(args, kwargs, outs, plan.reach)
        else:  # `operands`, without its frame
            operands = [*args, *op.defaults[len(args) : plan.reach], outs]
        saved: list[Any] = []
        for at, reader in plan.slots:
            value = operands[at]
            if reader is None:
                if type(value) is torch.Tensor:  # Saved(v), without its frame
                    stored = _new(Saved)
                    stored.tensor = value
                    try:
                        stored.version = value._version
                    except RuntimeError:  # an inference tensor has none
                        stored = store(self.level, value)
                    value = stored
                elif isinstance(value, torch.Tensor):
                    value = store(self.level, value)
                elif type(value) is list or type(value) is tuple:
                    value = list(value)
                    for index, part in enumerate(value):
                        if isinstance(part, torch.Tensor):
                            value[index] = store(self.level, part)
            elif reader is not as_it_is:
                value = reader(value)
            saved.append(value)
        self.saved = saved

    def _pack(self, args: list[object], kwargs: dict[str, object], outs: object) -> None:
        """Save as :meth:`save` does under pack hooks."""
        # `early`: the arguments that were packed before the kernel ran
        plan, early = self.plan, self.saved
        results = () if outs is None else outs
        operands = plan.op.operands(args, kwargs, results, plan.reach)
        saved: list[Any] = []
        for index, (at, reader) in enumerate(plan.slots):
            if at < 0 and outs is None:
                saved.append(None)  # the kernel has not run yet
            elif at >= 0 and early is not None:
                saved.append(early[index])
            else:
                saved.append(self._pack_operand(operands[at], at, reader))
        self.saved = saved

    def _pack_operand(self, value: object, at: int, reader: Any) -> object:
        """Return the form in which operand ``at``, which is ``value``, is saved."""
        if reader is not None and value is not None:
            return reader(value)
        if isinstance(value, torch.Tensor):
            return save(self.level, value, self._history(at, 0))
        if type(value) is not list and type(value) is not tuple:
            return value
        parts = list(value)
        for index, part in enumerate(parts):
            if isinstance(part, torch.Tensor):
                parts[index] = save(self.level, part, self._history(at, index))
        return parts

    def _history(self, at: int, part: int) -> Edge | None:
        """Return the history of a saved tensor: operand ``at``, or tensor number ``part`` of the
        operand or of the output if that is a list."""
        if at < 0:  # a result, counted from the end
            op = self.plan.op
            number = at + op.n_results
            return None if number in op.nondiff else (self, number + part)
        first = self.args_at.get(at, -1)
        if first < 0:
            return None
        return self.edges[first + part]

    def _value(self, stored: Any, slot: int, part: int, create_graph: bool) -> Any:
        """Return the value of ``stored``, what slot number ``slot`` has of tensor number ``part``
        of its operand. Only ``create_graph`` asks for a value of the level."""
        if type(stored) is not Saved and type(stored) is not Packed:
            return stored
        edge = self._history(self.plan.slots[slot][0], part)
        tensor = restore(self.level, stored, edge)
        if create_graph:
            return present(self.level, tensor, edge)
        return tensor

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Run the plan's formulas, see :meth:`Node.apply`. Those are left out whose results nobody
        wants."""
        plan, gradient = self.plan, grads[0]
        values = self._values_for_formula(create_graph)
        # formulas read these at the indices -3, -2 and -1
        values += (plan.needs, grads, gradient)
        out: list[Any] = [None] * len(self.edges)
        batch = plan.elementwise and type(gradient) in VALUES
        at, spans = self.args_at, self.spans
        for targets, formula, pick, asks_g, single in plan.steps:
            if wanted is not None and not self._needs_any(targets, wanted):
                continue
            # None stands for zero, and so do the results of a formula in it
            if asks_g and gradient is None:
                continue
            # on a batch of cotangents an elementwise formula runs once, without a dispatch
            # for each of its ops
            if batch and asks_g:
                result = run_elementwise(formula, pick(values))
            else:
                result = formula(*pick(values))
            if single and not spans:
                out[at[targets[0]]] = result
            elif single:
                self._place(out, targets[0], result)
            elif result is not None:
                for target, cotangent in zip(targets, result, strict=True):
                    self._place(out, target, cotangent)
        return out

    def _values_for_formula(self, create_graph: bool) -> list[object]:
        """Return what each slot holds. With ``create_graph`` tensors are values of the level with
        their history."""
        if self.saved is None:
            raise settled(RuntimeError(FREED))
        values: list[Any] = []
        for stored in self.saved:
            kind = type(stored)
            slot = len(values)
            if kind is Saved:
                tensor = stored.tensor
                # `_value` decides whether another version is an error
                if create_graph or tensor._version != stored.version:
                    tensor = self._value(stored, slot, 0, create_graph)
                values.append(tensor)
            elif kind is Packed:
                values.append(self._value(stored, slot, 0, create_graph))
            # with a reader a list is what that returned, such as sizes
            elif kind is list and self.plan.slots[slot][1] is None:
                parts = enumerate(stored)
                values.append(
                    [self._value(part, slot, index, create_graph) for index, part in parts]
                )
            else:
                values.append(stored)
        return values

    def _needs_any(self, targets: tuple[int, ...], wanted: Any) -> bool:
        """Return whether an edge of the arguments at the positions ``targets`` is wanted."""
        for target in targets:
            first = self.args_at.get(target, -1)
            if first >= 0 and any(wanted[first : first + self._span(target)]):
                return True
        return False

    def _span(self, at: int) -> int:
        """Count the edges of an argument, of which a list has several."""
        if not self.spans:
            return 1
        return self.spans.get(at, 1)

    def _place(self, out: list[torch.Tensor | None], target: int, result: Any) -> None:
        """Write ``result``, the cotangent of the argument at position ``target``, to the place of
        its edge in ``out``. A list has an edge for each of its tensors."""
        first = self.args_at.get(target, -1)
        if first < 0 or result is None:
            return
        if self.spans and target in self.spans:
            out[first : first + self.spans[target]] = result
        else:
            out[first] = result

    def release(self) -> None:
        """Drop saved tensors. A node without any can run again, as in torch."""
        # numbers, sizes and dtypes may stay: they hold no memory of tensors
        for stored in self.saved or ():
            if type(stored) in _TENSORS:
                self.saved = None
                break

    def inputs(self) -> Sequence[int | None]:
        """Return the inputs in the order of the schema. A list has one for each of its tensors."""
        edge_numbers: list[int | None] = []
        for at in sorted(self.plan.op.vjp_args):
            first = self.args_at.get(at)
            if first is None:
                edge_numbers.append(None)
            else:
                edge_numbers += range(first, first + self._span(at))
        return edge_numbers

    def saved_under(self, name: str, raw: bool) -> Any:
        """Return the saved value with that name, as formulas get it. With ``raw``: the
        :class:`SavedTensor` of a saved tensor."""
        if name not in self.plan.names:
            raise AttributeError(f"{type(self).__name__!r} object has saved no {name!r}")
        slot = self.plan.names.index(name)
        if self.saved is None:
            raise settled(RuntimeError(FREED))
        stored = self.saved[slot]
        # with its history, as in a pass that is recorded
        if not raw and type(stored) is list:
            parts = enumerate(stored)
            return tuple(self._value(part, slot, index, True) for index, part in parts)
        if not raw:
            return self._value(stored, slot, 0, True)
        at = self.plan.slots[slot][0]
        if type(stored) is list:
            return tuple(
                SavedTensor.of(self, stored, index, self._history(at, index))
                for index in range(len(stored))
            )
        return SavedTensor.of(self, self.saved, slot, self._history(at, 0))

    def __dir__(self) -> list[str]:
        # the class has a property for each value that a formula may need, this node fewer values
        missing: set[str] = set()
        for name in _saved_names(self.plan.op) - set(self.plan.names):
            missing.update(prefix + _torch_name(name) for prefix in _PREFIXES)
        return [name for name in super().__dir__() if name not in missing]


class Undifferentiable(Node):
    """The node of an op without a derivative by an argument that requires grad. It raises
    ``MissingRule`` when it runs."""

    __slots__ = ("missing", "op")

    def __init__(
        self, level: Level, edges: tuple[Edge | None, ...], metas: object, op: Op, wanted: int
    ) -> None:
        super().__init__(level, edges, metas)
        self.op = op
        self.missing = [
            index for index in op.tensor_args if wanted >> index & 1 and index not in op.vjp_args
        ]

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Raise ``MissingRule`` for the arguments that require grad and have no formula."""
        names = self.op.arg_names
        # the error names the arguments without a rule if others have one, else the whole op
        supported = [names[index] for index in self.op.vjp_args]
        missing: Sequence[str] = ()
        if supported:
            missing = [names[index] for index in self.missing]
        raise MissingRule(str(self.op.func), "vjp", missing, supported)

    def name(self) -> str:
        return "NotImplemented"


_PREFIXES = ("_saved_", "_raw_saved_")


def _saved_names(op: Op) -> set[str]:
    """Return the names of all values that the formulas of an op may need."""
    if op.record is None or op.record.vjp is None:
        return set()
    names: set[str] = set()
    for formula in op.record.vjp.values():
        names.update(parameters(formula))
    # what the pass gives to a formula, and the node does not save
    return names - {"g", "gs", "needs"}


def _torch_name(name: str) -> str:
    """Return torch's name of the saved value ``name``: ``_sym_sizes`` for ``_shape``."""
    return name.replace("_shape", "_sym_sizes").replace("_dtype", "_scalar_type")


def _members(op: Op) -> dict[str, object]:
    """Return the members of an op's node class: properties such as ``_saved_self`` and
    ``_raw_saved_self``. A ``__getattr__`` in their place would make every other attribute of a node
    twice as slow."""
    members: dict[str, Any] = {"__slots__": ()}
    for name in _saved_names(op):
        for prefix in _PREFIXES:
            members[prefix + _torch_name(name)] = property(
                functools.partial(OpNode.saved_under, name=name, raw=prefix == "_raw_saved_")
            )
    return members


# the class stands for the op, so there is one
@functools.cache
def inplace_class(op: Op, functional: Op) -> type[OpNode]:
    """Return the node class of an in-place op: ``TBackward1`` for ``aten.t_``, if torch has a node
    of its own for it, else the class of the functional form."""
    name = own_name(op.base_name, op.func._overloadname)
    if name is None:
        return node_class(functional)
    return type(name, (OpNode,), _members(functional))


def node_class(op: Op) -> type[OpNode]:
    """Return the node class of an op, with the name that torch prints: ``MulBackward0`` for
    ``aten.mul.Tensor``."""
    if op.node_class is None:
        functional = op.functional or op
        name = node_name(functional.base_name, functional.func._overloadname)
        namespace = ""
        if name in WITHOUT_NUMBER.values():
            namespace = AccumulateGrad.namespace
        op.node_class = type(name, (OpNode,), {**_members(op), "namespace": namespace})
    cls: type[OpNode] = op.node_class
    return cls
