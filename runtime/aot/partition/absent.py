"""A backward graph for a pass in which some cotangents are absent.

    backward: t0, t1 -> t0 * cos(x) + t1 * exp(x)
    without t1: t0, t1 -> t0 * cos(x)

An absent cotangent is no zero: the derivative of a result that takes no part does not run. One sees
that where zero times infinity is NaN, or a custom Function adds a constant.
:mod:`..capture.origins` has marked each call with the cotangents for which it runs.

The graphs of ``cond``, ``map`` and ``scan`` are written anew in the same way, without the operands
that are absent."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...rules.ops import op_of
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


def without(
    module: fx.GraphModule, roots: Sequence[int], present: int, whole: bool
) -> fx.GraphModule:
    """``module`` for a pass that has the cotangents of the roots in ``present``, as the
    bits of a number.

    ``roots``: of each of the last placeholders its root. An absent cotangent may be any tensor
    of its sizes, or None if its placeholder has no users. A result that is absent is None;
    zeros if ``whole``.
    """
    placeholders = _placeholders(module)
    root_of = dict(zip(placeholders[len(placeholders) - len(roots) :], roots, strict=True))
    return _Writer(module, root_of, present).written(whole)


class _Writer:
    """``full``: for each node of the module its copy with all operands, which gives an absent value
    its sizes. ``kept``: for each node that is not absent the one that gives its value. ``varying``:
    those of them that depend on a present cotangent. ``gone``: of a call with several results the
    numbers of those that are absent. ``modules``: the graphs that were written anew."""

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
        self.full: dict[fx.Node, fx.Node] = {}
        self.kept: dict[fx.Node, fx.Node] = {}
        self.varying: set[fx.Node] = set()
        self.zeros: dict[fx.Node, fx.Node] = {}
        self.gone: dict[fx.Node, set[int]] = {}
        self.modules: dict[str, fx.GraphModule] = {}
        self.root_of = root_of
        self.inner = inner  # the graph of a call, whose results share no memory with its operands

    def written(self, whole: bool) -> fx.GraphModule:
        for n in self.module.graph.nodes:
            if n.op == "output":
                results: Any
                (results,) = n.args
                self.graph.output(type(results)(self._result(r, whole) for r in results))
            elif n.op == "placeholder":
                self._enter(n)
            else:
                self._write(n)
        # a draw of a derivative that does not run is none
        wanted = {n for n in self.kept.values() if has_effect(n)}
        self.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or n in wanted)
        names = {
            str(n.target) for n in self.graph.nodes if n.op == "get_attr"
        } - self.modules.keys()
        return GraphModule(
            {**{name: operator.attrgetter(name)(self.module) for name in names}, **self.modules},
            self.graph,
            "Partial",
        )

    def _enter(self, n: fx.Node) -> None:
        self.full[n] = self.graph.node_copy(n)
        root = self.root_of.get(n)
        if root is None or self.present >> root & 1:
            self.kept[n] = self.full[n]
            if root is not None:
                self.varying.add(n)

    def _result(self, r: Any, whole: bool) -> Any:
        if not isinstance(r, fx.Node):
            return r
        return self.kept[r] if r in self.kept else self._zero(r) if whole else None

    def _write(self, n: fx.Node) -> None:
        """Write call ``n``, or find that its value is absent."""
        origin: Origin | None = n.meta.get(ORIGIN)
        self.full[n] = self.graph.node_copy(n, self.full.__getitem__)
        if origin is not None and origin.kind is not Kind.SUM and not origin.roots & self.present:
            return
        operands = n.all_input_nodes
        if n.target is operator.getitem and n.args[1] in self.gone.get(operands[0], ()):
            return
        absent = [a for a in operands if a not in self.kept]
        varying = any(a in self.varying for a in operands)
        own = origin is not None and origin.kind is Kind.OWN
        if absent and not own and self._sum(n, origin):
            return
        if absent and not (varying or own or _takes_no_elements(n)):
            return
        self.kept[n] = (
            self._pruned(n) if absent and n.target in (_COND, _MAP, _SCAN) else self._copied(n)
        )
        if varying or own:
            self.varying.add(n)

    def _sum(self, n: fx.Node, origin: Origin | None) -> bool:
        """Whether ``n`` is a sum or difference of two values, one of which may be absent.
        Then it is written."""
        if (
            n.target not in _SUMS
            or n.kwargs
            or len(n.args) != 2
            or not all(isinstance(a, fx.Node) for a in n.args)
        ):
            return False
        a, b = n.args
        assert isinstance(a, fx.Node)
        assert isinstance(b, fx.Node)
        if a not in self.kept and b not in self.kept:
            return True
        one = a if a in self.kept else b
        if not (origin is not None and origin.kind is Kind.SUM) and not _alike(one, n):
            return False
        self.kept[n] = self.kept[one]
        if one is b and n.target is aten.sub.Tensor:
            self.kept[n] = self.graph.call_function(aten.neg.default, (self.kept[b],))
            self.kept[n].meta = dict(n.meta)
        if not _same_strides(one, n):  # a view that follows may need those of the sum
            self.kept[n] = self.graph.call_function(
                aten.copy.default, (self._zero(n), self.kept[n])
            )
            self.kept[n].meta = dict(n.meta)
        elif self.inner and self.kept[n] is self.kept[one]:
            self.kept[n] = self.graph.call_function(aten.clone.default, (self.kept[one],))
            self.kept[n].meta = dict(n.meta)
        if one in self.varying:
            self.varying.add(n)
        return True

    def _copied(self, n: fx.Node) -> fx.Node:
        operands = n.all_input_nodes
        if all(self.kept.get(a) is self.full[a] for a in operands):
            return self.full[n]
        values = {a: self.kept[a] if a in self.kept else self._zero(a) for a in operands}
        return self.graph.node_copy(n, values.__getitem__)

    def _pruned(self, n: fx.Node) -> fx.Node:
        """Call ``n`` of ``cond``, ``map`` or ``scan`` with graphs that do not compute with its
        absent operands."""
        args: Any = n.args
        graphs = args[1:3] if n.target is _COND else args[:1]
        groups = [list(group) for group in (args[3:] if n.target is _COND else args[1:])]
        operands: list[Any] = [a for group in groups for a in group]
        carried = len(groups[0]) if n.target is _SCAN else 0
        absent = {
            i for i, a in enumerate(operands) if isinstance(a, fx.Node) and a not in self.kept
        }
        while True:
            writers = [self._inner(g, operands, absent, carried) for g in graphs]
            modules = [w.written(True) for w in writers]
            gone = set.intersection(*(w.absent_results() for w in writers))
            # absent at the start, but a later step gives it a cotangent
            later = {i for i in absent if i < carried and i not in gone}
            if not later:
                break
            absent -= later
        inputs = [_placeholders(m) for m in modules]
        unused = {i for i in absent if i >= carried and not any(each[i].users for each in inputs)}
        if n.target is not _COND and unused.issuperset(
            elements := range(carried, carried + len(groups[-2]))
        ):
            unused.discard(elements[0])  # the length is read from it
        for module, each in zip(modules, inputs, strict=True):
            for i in unused:
                module.graph.erase_node(each[i])
            module.recompile()
        given = [None if i in unused else self._given(a) for i, a in enumerate(operands)]
        rest = iter(enumerate(given))
        new = [
            type(group)(v for _ in group for i, v in [next(rest)] if i not in unused)
            for group in args[len(args) - len(groups) :]
        ]
        names = [self._added(m) for m in modules]
        head = [self._given(args[0])] if n.target is _COND else []
        assert not isinstance(n.target, str)
        made = self.graph.call_function(
            n.target, (*head, *(self.graph.get_attr(name) for name in names), *new)
        )
        made.meta = dict(n.meta)
        self.gone[n] = gone
        return made

    def _inner(
        self, graph: fx.Node, operands: Sequence[Any], absent: set[int], carried: int
    ) -> _Writer:
        """The writer of a graph that ``n`` calls. What it carries from step to step depends on the
        present cotangents."""
        module = operator.attrgetter(str(graph.target))(self.module)
        roots = {}
        for i, (p, a) in enumerate(zip(_placeholders(module), operands, strict=True)):
            if i in absent:
                roots[p] = 1
            elif i < carried or a in self.varying:
                roots[p] = 0
        return _Writer(module, roots, 0b01, inner=True)

    def absent_results(self) -> set[int]:
        results: Any
        (results,) = self.module.graph.output_node().args
        return {i for i, r in enumerate(results) if isinstance(r, fx.Node) and r not in self.kept}

    def _given(self, a: Any) -> Any:
        if not isinstance(a, fx.Node):
            return a
        return self.kept[a] if a in self.kept else self._zero(a)

    def _added(self, module: fx.GraphModule) -> str:
        name = f"partial_graph_{len(self.modules)}"
        self.modules[name] = module
        return name

    def _zero(self, n: fx.Node) -> fx.Node:
        """Zeros like the value of ``n``."""
        if n not in self.zeros:
            value = n.meta.get("val")
            if (
                isinstance(value, torch.Tensor)
                and value.layout is torch.strided
                and all(type(s) is int for s in value.shape)
            ):
                options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
                made = self.graph.call_function(aten.full.default, (list(value.shape), 0), options)
                if not value.is_contiguous() and aten.is_non_overlapping_and_dense.default(value):
                    places = self.graph.call_function(
                        aten.empty_strided.default,
                        (list(value.shape), list(value.stride())),
                        options,
                    )
                    made = self.graph.call_function(aten.copy.default, (places, made))
            else:
                made = self.graph.call_function(aten.zeros_like.default, (self.full[n],))
            made.meta = {key: n.meta[key] for key in ("val", "tensor_meta") if key in n.meta}
            self.zeros[n] = made
        return self.zeros[n]


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def _alike(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values have the same sizes and dtype, as far as is known without a
    condition on sizes."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if (
        not isinstance(x, torch.Tensor)
        or not isinstance(y, torch.Tensor)
        or x.dtype is not y.dtype
        or x.dim() != y.dim()
    ):
        return False
    return all(str(s) == str(t) for s, t in zip(x.shape, y.shape, strict=True))


def _same_strides(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values have the same strides, as far as is known without a condition on sizes."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.dim() != y.dim():
        return True
    if x.layout is not torch.strided or y.layout is not torch.strided:
        return True
    return all(
        str(n) == "1" or str(s) == str(t)
        for n, s, t in zip(y.shape, x.stride(), y.stride(), strict=True)
    )


def _takes_no_elements(n: fx.Node) -> bool:
    """Whether the elements of the operands do not decide a result with derivatives: a factory such
    as ``ones_like``, a comparison."""
    record = op_of(n.target).record if isinstance(n.target, OpOverload) else None
    return record is not None and record.nondiff is True
