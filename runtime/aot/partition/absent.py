"""Write a backward graph for a pass in which some cotangents are absent.

    backward: t0, t1 -> t0 * cos(x) + t1 * exp(x)
    without t1: t0, t1 -> t0 * cos(x)

An absent cotangent is no zero: the derivative of a result that takes no part does not run. One sees
that where zero times infinity is NaN, or a custom Function adds a constant.
:mod:`..capture.origins` has marked each call with the cotangents for which it runs.

The graphs of ``cond``, ``map`` and ``scan`` are written anew in the same way, without the operands
that are absent.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import fx

from ...rules.ops import op_of
from ...seam.graph_walks import results_of
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import has_effect
from ...trace.graph_module import GraphModule
from ..capture.origins import ORIGIN, Kind, Origin

aten = torch.ops.aten
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_COND, _MAP, _SCAN = (
    torch.ops.higher_order.cond,
    torch.ops.higher_order.map_impl,
    torch.ops.higher_order.scan,
)
_WITH_GRAPHS = (_COND, _MAP, _SCAN)


def without(
    module: fx.GraphModule, roots: Sequence[int], present: int, whole: bool
) -> fx.GraphModule:
    """Return ``module`` for a pass that has the cotangents of the roots in ``present``, as bits.

    ``roots``: of each of the last placeholders its root. An absent cotangent may be any tensor
    of its sizes, or None if its placeholder has no users. A result that is absent is None;
    zeros if ``whole``.
    """
    placeholders = _placeholders(module)
    root_of = dict(zip(placeholders[len(placeholders) - len(roots) :], roots, strict=True))
    return _Writer(module, root_of, present).written(whole)


@dataclasses.dataclass(frozen=True)
class _GraphCall:
    """Hold the arguments of a call of ``cond``, ``map`` or ``scan`` by their meaning.

        scan(step, [c], [x, y], [w])    # graphs: step; groups: [c], [x, y], [w]

    The graphs take the operands of all groups in one row.
    """

    # the predicate of a ``cond``, as one value, else none
    predicate: tuple[object, ...]
    graphs: tuple[fx.Node, ...]
    groups: tuple[Any, ...]
    # how many of the first operands a step hands to the next one
    n_carried: int
    # the numbers of the operands of which each step takes one element
    elements: range

    @classmethod
    def of(cls, node: fx.Node) -> _GraphCall:
        """Return the arguments of call ``node``."""
        args: Any = node.args
        if node.target is _COND:
            predicate, if_true, if_false, *groups = args
            return cls((predicate,), (if_true, if_false), tuple(groups), 0, range(0))
        # the groups of a scan: initial values, elements, further operands; a map has the last two
        graph, *groups = args
        n_carried = 0
        if node.target is _SCAN:
            n_carried = len(groups[0])
        elements = range(n_carried, n_carried + len(groups[-2]))
        return cls((), (graph,), tuple(groups), n_carried, elements)

    @property
    def operands(self) -> list[fx.Node]:
        """List the operands of all groups."""
        return list(itertools.chain.from_iterable(self.groups))

    def droppable(self, absent: set[int], modules: Sequence[fx.GraphModule]) -> set[int]:
        """Return the numbers of the ``absent`` operands that no graph in ``modules`` uses.

        One of ``elements`` stays, because the length is read from it.
        """
        # a value that is carried from step to step has its place in each of them
        inputs = list(map(_placeholders, modules))
        unused: set[int] = set()
        for index in absent:
            if index >= self.n_carried and not any(each[index].users for each in inputs):
                unused.add(index)
        if not self.predicate and unused.issuperset(self.elements):
            unused.discard(self.elements[0])
        return unused

    def regroup(self, values: Sequence[object], left_out: set[int]) -> list[Any]:
        """Put ``values`` for all operands into groups as those of the call, except those whose
        number is in ``left_out``."""
        groups, start = [], 0
        for group in self.groups:
            numbers = range(start, start + len(group))
            groups.append(type(group)(values[index] for index in numbers if index not in left_out))
            start = numbers.stop
        return groups


class _Writer:
    """Write the graph, node by node."""

    def __init__(
        self,
        module: fx.GraphModule,
        root_of: Mapping[fx.Node, int],
        present: int,
        inner: bool = False,
    ) -> None:
        self.module = module
        self.present = present
        self.graph = fx.Graph()
        # for each node of the module its copy with all operands, which gives an absent value its
        # sizes
        self.full: dict[fx.Node, fx.Node] = {}
        # for each node that is not absent the one with its value
        self.kept: dict[fx.Node, fx.Node] = {}
        # the nodes among these that depend on a present cotangent
        self.varying: set[fx.Node] = set()
        # for each absent node its zeros, if somebody needs them
        self.zeros: dict[fx.Node, fx.Node] = {}
        # of a call with several results the numbers of those that are absent
        self.gone: dict[fx.Node, set[int]] = {}
        # the graphs that were written anew
        self.modules: dict[str, fx.GraphModule] = {}
        self.root_of = root_of
        self.inner = inner  # the graph of a call, whose results share no memory with its operands

    def written(self, whole: bool) -> fx.GraphModule:
        """Return the module. ``whole``: absent results are zeros, and else None."""
        for node in self.module.graph.nodes:
            if node.op == "output":
                results: Any
                (results,) = node.args
                self.graph.output(type(results)(self._result(result, whole) for result in results))
            elif node.op == "placeholder":
                self._enter(node)
            else:
                self._write(node)
        # a draw of a derivative that does not run is none
        wanted = set(filter(has_effect, self.kept.values()))
        self.graph.eliminate_dead_code(
            lambda node: node.op in ("placeholder", "output") or node in wanted
        )
        return GraphModule({**self._attributes(), **self.modules}, self.graph, "Partial")

    def _attributes(self) -> dict[str, object]:
        """Return the attributes of the module that the graph still takes."""
        names = {str(node.target) for node in self.graph.find_nodes(op="get_attr")}
        names -= self.modules.keys()
        return {name: operator.attrgetter(name)(self.module) for name in names}

    def _enter(self, node: fx.Node) -> None:
        """Write a placeholder, and note whether it is absent."""
        self.full[node] = self.graph.node_copy(node)
        # an input that is no cotangent is always there
        root = self.root_of.get(node)
        if root is None or self.present >> root & 1:
            self.kept[node] = self.full[node]
            if root is not None:
                self.varying.add(node)

    def _result(self, result: object, whole: bool) -> object:
        """Return a result of the new graph for result ``result`` of the module."""
        if not isinstance(result, fx.Node):
            return result
        if result in self.kept:
            return self.kept[result]
        if not whole:
            return None
        return self._zero(result)

    def _write(self, node: fx.Node) -> None:
        """Write call ``node``, or find that its value is absent."""
        origin: Origin | None = node.meta.get(ORIGIN)
        self.full[node] = self.graph.node_copy(node, self.full.__getitem__)
        if self._is_skipped(node, origin):
            return
        operands = node.all_input_nodes
        # the user's code may not be linear: it runs with zeros for what is absent
        own = origin is not None and origin.kind is Kind.OWN
        varying = own or not self.varying.isdisjoint(operands)
        if self.kept.keys() >= set(operands):
            self.kept[node] = self._write_copy(node)
        elif not own and self._write_sum(node, origin):
            return
        elif varying or _takes_no_elements(node):
            self.kept[node] = self._write_with_zeros(node)
        else:
            return
        if varying:
            self.varying.add(node)

    def _is_skipped(self, node: fx.Node, origin: Origin | None) -> bool:
        """Return whether ``node`` runs for absent cotangents alone, or is an absent result of a
        call with several.

        A sum is not skipped by its origin: :meth:`_write_sum` looks at its terms.
        """
        if origin is not None and origin.kind is not Kind.SUM and not origin.roots & self.present:
            return True
        if node.target is not operator.getitem:
            return False
        return node.args[1] in self.gone.get(node.all_input_nodes[0], ())

    def _write_sum(self, node: fx.Node, origin: Origin | None) -> bool:
        """Write ``node`` as its one term that is present, if it is a sum or difference of two.

        Return False if ``node`` is none, or if that term may have other sizes or another dtype.
        Then nothing is written.
        """
        terms = _terms_of(node)
        if terms is None:
            return False
        a, b = terms
        # without both the sum is absent, too
        if a not in self.kept and b not in self.kept:
            return True
        term = a if a in self.kept else b
        # the engine adds gradients of one value, so they have its sizes
        of_gradients = origin is not None and origin.kind is Kind.SUM
        if not of_gradients and not _have_same_sizes(term, node):
            return False
        self.kept[node] = self._write_term(node, term, term is b and node.target is aten.sub.Tensor)
        if term in self.varying:
            self.varying.add(node)
        return True

    def _write_term(self, node: fx.Node, term: fx.Node, negative: bool) -> fx.Node:
        """Write the value of sum ``node`` from its one ``term``, with the strides and the memory
        that the sum has. ``negative``: the term was subtracted."""
        value = self.kept[term]
        if negative:
            value = self._write_call(node, aten.neg.default, value)
        # a view that follows may need the strides of the sum
        if not _have_same_strides(term, node):
            return self._write_call(node, aten.copy.default, self._zero(node), value)
        if self.inner and not negative:
            return self._write_call(node, aten.clone.default, value)
        return value

    def _write_call(self, node: fx.Node, func: OpOverload, *args: fx.Node) -> fx.Node:
        """Write a call of ``func`` that stands for ``node`` and has its facts."""
        call = self.graph.call_function(func, args)
        call.meta = dict(node.meta)
        return call

    def _write_with_zeros(self, node: fx.Node) -> fx.Node:
        """Write ``node``, of which an operand is absent."""
        if node.target in _WITH_GRAPHS:
            return self._write_pruned(node)
        return self._write_copy(node)

    def _write_copy(self, node: fx.Node) -> fx.Node:
        """Write ``node`` with zeros for the operands that are absent."""
        operands = node.all_input_nodes
        # the copy with all operands is the same call then, and one is enough
        if all(self.kept.get(operand) is self.full[operand] for operand in operands):
            return self.full[node]
        values = {operand: self._value(operand) for operand in operands}
        return self.graph.node_copy(node, values.__getitem__)

    def _write_pruned(self, node: fx.Node) -> fx.Node:
        """Write call ``node`` of ``cond``, ``map`` or ``scan`` with graphs that do not compute with
        its absent operands."""
        call = _GraphCall.of(node)
        operands = call.operands
        # graphs without the absent operands, as far as these can be left out
        absent = {index for index, operand in enumerate(operands) if self._is_absent(operand)}
        modules, self.gone[node] = self._write_graphs(call, absent)
        unused = call.droppable(absent, modules)
        for module in modules:
            _erase_placeholders(module, unused)
        values = [
            None if index in unused else self._value(operand)
            for index, operand in enumerate(operands)
        ]
        groups = call.regroup(values, unused)
        # the call of these graphs
        names = list(map(self._add_module, modules))
        head = list(map(self._value, call.predicate))
        graphs = list(map(self.graph.get_attr, names))
        assert not isinstance(node.target, str)
        pruned = self.graph.call_function(node.target, (*head, *graphs, *groups))
        pruned.meta = dict(node.meta)
        return pruned

    def _is_absent(self, operand: object) -> bool:
        return isinstance(operand, fx.Node) and operand not in self.kept

    def _write_graphs(
        self, call: _GraphCall, absent: set[int]
    ) -> tuple[list[fx.GraphModule], set[int]]:
        """Write the graphs of ``call`` without the operands in ``absent``.

        Return them with the numbers of the results that none of them returns.

        A value that a scan carries may be absent at its start and get a cotangent in a step. Such
        an operand is taken out of ``absent``, and the graphs are written once more.
        """
        # this ends: each turn takes an operand out of a finite set
        while True:
            writers = [self._writer_of(graph, call, absent) for graph in call.graphs]
            modules = [writer.written(True) for writer in writers]
            gone = set.intersection(*(writer.absent_results() for writer in writers))
            later = {index for index in absent if index < call.n_carried and index not in gone}
            if not later:
                return modules, gone
            absent -= later

    def _writer_of(self, graph: fx.Node, call: _GraphCall, absent: set[int]) -> _Writer:
        """Return the writer of a ``graph`` of ``call``.

        A value that a scan carries from step to step depends on the present cotangents.
        """
        module = operator.attrgetter(str(graph.target))(self.module)
        roots = {}
        pairs = zip(_placeholders(module), call.operands, strict=True)
        for index, (placeholder, operand) in enumerate(pairs):
            # root 1 is absent, root 0 is present, and any other input is no cotangent
            if index in absent:
                roots[placeholder] = 1
            elif index < call.n_carried or operand in self.varying:
                roots[placeholder] = 0
        return _Writer(module, roots, 0b01, inner=True)

    def absent_results(self) -> set[int]:
        """Return the numbers of the results that are absent."""
        results = results_of(self.module.graph)
        return {
            index
            for index, result in enumerate(results)
            if isinstance(result, fx.Node) and result not in self.kept
        }

    def _value(self, argument: Any) -> Any:
        """Return the value of operand ``argument``; zeros if it is absent."""
        if not isinstance(argument, fx.Node):
            return argument
        if argument in self.kept:
            return self.kept[argument]
        return self._zero(argument)

    def _add_module(self, module: fx.GraphModule) -> str:
        """Add a graph that was written anew, and return its name."""
        name = f"partial_graph_{len(self.modules)}"
        self.modules[name] = module
        return name

    def _zero(self, node: fx.Node) -> fx.Node:
        """Return zeros like the value of ``node``."""
        if node not in self.zeros:
            zeros = self._write_zeros(node)
            zeros.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
            self.zeros[node] = zeros
        return self.zeros[node]

    def _write_zeros(self, node: fx.Node) -> fx.Node:
        """Write zeros like the value of ``node``, from constants alone if its sizes are known."""
        value = node.meta.get("val")
        if not _has_known_sizes(value):
            return self.graph.call_function(aten.zeros_like.default, (self.full[node],))
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        zeros = self.graph.call_function(aten.full.default, (list(value.shape), 0), options)
        if value.is_contiguous() or not aten.is_non_overlapping_and_dense.default(value):
            return zeros
        # `full` has no strides, so the zeros are copied to memory that has them
        places = self.graph.call_function(
            aten.empty_strided.default, (list(value.shape), list(value.stride())), options
        )
        return self.graph.call_function(aten.copy.default, (places, zeros))


def _has_known_sizes(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether ``value`` is a strided tensor without symbols in its shape."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return all(type(size) is int for size in value.shape)


def _terms_of(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return both terms of ``node``; None if it is no sum or difference of two values."""
    if node.target not in _SUMS or node.kwargs or len(node.args) != 2:
        return None
    a, b = node.args
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return None
    return a, b


def _erase_placeholders(module: fx.GraphModule, numbers: set[int]) -> None:
    inputs = _placeholders(module)
    for index in numbers:
        module.graph.erase_node(inputs[index])
    module.recompile()


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return module.graph.find_nodes(op="placeholder")


def _have_same_sizes(a: fx.Node, b: fx.Node) -> bool:
    """Return whether two values have the same sizes and dtype, as far as is known without a
    condition on sizes."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    if x.dtype is not y.dtype or x.dim() != y.dim():
        return False
    # by the texts, as a comparison of symbols would become a guard
    return all(str(size) == str(other) for size, other in zip(x.shape, y.shape, strict=True))


def _have_same_strides(a: fx.Node, b: fx.Node) -> bool:
    """Return whether two values have the same strides, as far as is known without a condition on
    sizes."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.dim() != y.dim():
        return True
    if x.layout is not torch.strided or y.layout is not torch.strided:
        return True
    # Texts, since a comparison of symbols would become a guard. The stride of a dimension of size 1
    # moves nothing.
    return all(
        str(size) == "1" or str(stride) == str(other)
        for size, stride, other in zip(y.shape, x.stride(), y.stride(), strict=True)
    )


def _takes_no_elements(node: fx.Node) -> bool:
    """Return whether no gradient flows through ``node``: a factory such as ``ones_like``, a
    comparison."""
    if not isinstance(node.target, OpOverload):
        return False
    record = op_of(node.target).record
    return record is not None and record.nondiff is True
