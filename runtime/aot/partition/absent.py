"""A backward graph for a pass in which some cotangents are absent.

    backward: t0, t1 -> t0 * cos(x) + t1 * exp(x)
    without t1: t0, t1 -> t0 * cos(x)

An absent cotangent is no zero: the derivative of a result that takes no part does not run. One sees that where zero times infinity is NaN,
or a custom Function adds a constant. :mod:`..capture.origins` has marked each call with the cotangents for which it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...func.graph_module import GraphModule
from ...func.tracing import has_effect
from ...rules.ops import op_of
from ..capture.origins import ORIGIN, Kind, Origin

aten = torch.ops.aten
_SUMS = (aten.add.Tensor, aten.sub.Tensor)


def without(module: fx.GraphModule, roots: Sequence[int], present: int, whole: bool) -> fx.GraphModule:
    """``module`` for a pass that has the cotangents of the roots in ``present``, as the bits of a number.

    ``roots``: of each of the last placeholders its root. An absent cotangent may be any tensor of its sizes, or None if its placeholder has
    no users. A result that is absent is None; zeros if ``whole``.
    """
    return _Writer(module, roots, present).written(whole)


class _Writer:
    """``full``: for each node of the module its copy with all operands, which gives an absent value its sizes. ``kept``: for each node that
    is not absent the one that gives its value. ``varying``: those of them that depend on a present cotangent."""

    def __init__(self, module: fx.GraphModule, roots: Sequence[int], present: int) -> None:
        self.module = module
        self.present = present
        self.graph = fx.Graph()
        self.full: dict[fx.Node, fx.Node] = {}
        self.kept: dict[fx.Node, fx.Node] = {}
        self.varying: set[fx.Node] = set()
        self.zeros: dict[fx.Node, fx.Node] = {}
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.root_of = dict(zip(placeholders[len(placeholders) - len(roots) :], roots, strict=True))

    def written(self, whole: bool) -> fx.GraphModule:
        for n in self.module.graph.nodes:
            if n.op == "output":
                self.graph.output([self._result(r, whole) for r in n.args[0]])
            elif n.op == "placeholder":
                self._enter(n)
            else:
                self._write(n)
        wanted = {n for n in self.kept.values() if has_effect(n)}  # a draw of a derivative that does not run is none
        self.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or n in wanted)
        return GraphModule(self.module, self.graph, "Partial")

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
        absent = [a for a in operands if a not in self.kept]
        varying = any(a in self.varying for a in operands)
        own = origin is not None and origin.kind is Kind.OWN
        if absent and not own and self._sum(n, origin):
            return
        if absent and not (varying or own or _takes_no_elements(n)):
            return
        self.kept[n] = self._copied(n)
        if varying or own:
            self.varying.add(n)

    def _sum(self, n: fx.Node, origin: Origin | None) -> bool:
        """Whether ``n`` is a sum or difference of two values, one of which may be absent. Then it is written."""
        if n.target not in _SUMS or n.kwargs or len(n.args) != 2 or not all(isinstance(a, fx.Node) for a in n.args):
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
            self.kept[n] = self.graph.call_function(aten.copy.default, (self._zero(n), self.kept[n]))
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

    def _zero(self, n: fx.Node) -> fx.Node:
        """Zeros like the value of ``n``."""
        if n not in self.zeros:
            value = n.meta.get("val")
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and all(type(s) is int for s in value.shape):
                options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
                made = self.graph.call_function(aten.full.default, (list(value.shape), 0), options)
                if not value.is_contiguous() and aten.is_non_overlapping_and_dense.default(value):
                    places = self.graph.call_function(aten.empty_strided.default, (list(value.shape), list(value.stride())), options)
                    made = self.graph.call_function(aten.copy.default, (places, made))
            else:
                made = self.graph.call_function(aten.zeros_like.default, (self.full[n],))
            made.meta = {key: n.meta[key] for key in ("val", "tensor_meta") if key in n.meta}
            self.zeros[n] = made
        return self.zeros[n]


def _alike(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values have the same sizes and dtype, as far as is known without a condition on sizes."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.dtype is not y.dtype or x.dim() != y.dim():
        return False
    return all(str(s) == str(t) for s, t in zip(x.shape, y.shape, strict=True))


def _same_strides(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values have the same strides, as far as is known without a condition on sizes."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.dim() != y.dim():
        return True
    if x.layout is not torch.strided or y.layout is not torch.strided:
        return True
    return all(str(n) == "1" or str(s) == str(t) for n, s, t in zip(y.shape, x.stride(), y.stride(), strict=True))


def _takes_no_elements(n: fx.Node) -> bool:
    """Whether the elements of the operands do not decide a result with derivatives: a factory such as ``ones_like``, a comparison."""
    record = op_of(n.target).record if isinstance(n.target, torch._ops.OpOverload) else None
    return record is not None and record.nondiff is True
