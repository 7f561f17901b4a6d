"""The grad level: records ATen calls on a tape. Every ``grad`` and ``vjp`` has one, and the eager session is one."""

from __future__ import annotations

from typing import Any

import torch

from ..rules.ops import _OPS, DIFFERENTIABLE, INPLACE, OUT, VIEW, Op, decomposition_of, op_of, written_out
from ..seam.levels import Level, Value, unwrap_args, unwrap_kwargs
from ..seam.shells import VALUES, make_subclass, same_shape
from . import inplace, view_history
from .metas import check_origin, meta_of, refuse_nested
from .nodes import Edge, Input, OpNode, Undifferentiable
from .saved import HOOKS
from .values import GradValue, edge_of

_grad_enabled = torch.is_grad_enabled
_set_grad_enabled = torch._C._set_grad_enabled


class GradLevel(Level):
    """One tape. ``outer_mode``: the grad mode of the outer levels."""

    __slots__ = ("outer_mode",)
    what = "grad, vjp or jacrev"
    keeps_history = True
    wrapped_dtypes: frozenset[torch.dtype] = DIFFERENTIABLE  # of results that become values even without a history
    packs = False  # whether hooks on saved tensors see what its nodes save
    shows_values = False  # whether a user's backward is given values of it where nothing is recorded
    restrides_views = False  # whether a view of a written base takes its history by ``as_strided`` instead of by the view ops

    def __init__(self) -> None:
        super().__init__()
        self.outer_mode = _grad_enabled()

    def wrap(self, inner: Any, edge: Edge | None) -> Any:
        v: Any
        if type(inner) is torch.Tensor and not inner.is_nested:  # as same_shape, without its frame
            v = make_subclass(GradValue, inner)
            v._inner = inner
        elif type(inner) in VALUES and inner._level is self:  # a rule that runs in a backward pass made a constant of this level
            return self.wrap(inner._inner, edge)
        else:
            v = same_shape(GradValue, inner)
        v._level = self
        v._edge = edge
        return v

    def input(self, outer: torch.Tensor) -> Any:
        """An input of the transform: a value that requires grad, with an end of its own."""
        return self.wrap(outer, (Input(self, outer), 0))

    def call(self, func: torch._ops.OpOverload | Op, args: Any, kwargs: Any) -> Any:
        try:
            op = _OPS.get(id(func)) or op_of(func)  # the commonest call passes through as few Python frames as can be
            special = op.special
            if special:
                kind, record = op.kind, op.record
                if kind is INPLACE:
                    return inplace.run(self, op, args, kwargs)
                if kind is OUT:
                    return self._out(op, args, kwargs)
                if record is None and op.composite:
                    return self.run_inside(op.func.decompose, args, kwargs)
                if record is not None and record.nondiff is True:
                    return self._wrap_plain(op, args, kwargs, self.outward(op, unwrap_args(self, args), unwrap_kwargs(self, kwargs)))
            inner, edges, wanted, spans = self.collect(op, args)
            if kwargs:
                if _grad_enabled() and any(isinstance(a, Value) and a._level is self and edge_of(a) is not None for a in kwargs.values()):
                    return self.run_inside(written_out(op, "vjp"), args, kwargs)
                kwargs = unwrap_kwargs(self, kwargs)
            if not wanted or not _grad_enabled():
                return self._wrap_plain(op, args, kwargs, self.outward(op, inner, kwargs))
            if special and (record is None or (record.vjp is None and not record.nondiff)):
                decomposed = decomposition_of(op, "vjp")
                if decomposed is not None:
                    return self.run_inside(decomposed, args, kwargs)
            node = None
            packed = HOOKS.stack
            if packed and not op.nondiff and not op.fills_argument:  # before the kernel runs: a pack hook may find that it need not
                node = OpNode.of(op, self, edges, (), wanted, spans)
                if type(node) is not Undifferentiable:
                    node.save(inner, kwargs, None)
            outs = self.outward(op, inner, kwargs)
            if not isinstance(outs, torch.Tensor):
                return self._record_several(op, args, inner, kwargs, outs, edges, wanted, spans, node)
            dtype = outs.dtype
            if dtype not in DIFFERENTIABLE or (special and op.nondiff):
                return self._wrap_plain(op, args, kwargs, outs)
            if node is None:
                node = OpNode.of(op, self, edges, (), wanted, spans)
            v = self.wrap(outs, (node, 0))
            try:
                node.metas = ((outs.shape, dtype),)
            except RuntimeError:  # a nested tensor has none
                check_origin(op, args)
                node.metas = (meta_of(outs, dtype),)
            if type(node) is not Undifferentiable:
                if packed:
                    node.save(inner, kwargs, outs)
                else:
                    node.keep(inner, kwargs, outs)
            if op.kind is VIEW:
                view_history.mark_view(v, op, args, kwargs)
            return v
        except RuntimeError as error:
            refuse_nested(args, error)
            raise

    def outward(self, op: Op, inner: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run on what the values hold, in the grad mode of the outer levels."""
        if self.outer_mode or not _grad_enabled():  # no_grad in the function holds for the outer levels, too
            return op.run(inner, kwargs)
        _set_grad_enabled(False)
        try:
            return op.run(inner, kwargs)
        finally:
            _set_grad_enabled(True)

    def is_constant(self, v: Any) -> bool:
        return edge_of(v) is None

    def kept(self, inner: torch.Tensor) -> torch.Tensor:
        """A copy of what a value holds, made before a write because the node of the write wants the value from before."""
        return inner.clone()

    def collect(self, op: Op, args: Any) -> tuple[list[Any], tuple[Edge | None, ...], int, dict[int, int] | None]:
        """Inner arguments; the edges of those that require grad, in order; a bit for the position of each of them; lengths of those
        among them that are lists."""
        inner = list(args)
        edges: tuple[Edge | None, ...] = ()
        spans: dict[int, int] | None = None
        wanted = 0
        n = len(inner)
        for i in op.tensor_args:
            if i >= n:
                break
            a: Any = inner[i]
            kind = type(a)
            if kind in VALUES:
                if a._level is self:
                    inner[i] = a._inner
                    e = a._edge
                    if e is None or a._view is not None:
                        e = edge_of(a)
                    if e is not None:
                        wanted |= 1 << i
                        edges += (e,)
            elif kind is list or kind is tuple:
                mine = [type(b) in VALUES and b._level is self for b in a]
                if not any(mine):
                    continue
                es = [edge_of(b) if m else None for b, m in zip(a, mine, strict=True)]
                inner[i] = [b._inner if m else b for b, m in zip(a, mine, strict=True)]
                if any(e is not None for e in es):
                    wanted |= 1 << i
                    spans = {**(spans or {}), i: len(es)}
                    edges += tuple(es)
        return inner, edges, wanted, spans

    def _record_several(
        self, op: Op, args: Any, inner: list[Any], kwargs: Any, outs: Any, edges: Any, wanted: int, spans: Any, node: Any
    ) -> Any:
        """Wrap a tuple or list of results with a node, those without one that have no gradient by nature."""
        if not isinstance(outs, (tuple, list)):
            return outs
        node = node or OpNode.of(op, self, edges, (), wanted, spans)
        try:
            node.metas = tuple((o.shape, o.dtype) if isinstance(o, torch.Tensor) else None for o in outs)
        except RuntimeError:
            check_origin(op, args)
            node.metas = tuple(meta_of(o, o.dtype) if isinstance(o, torch.Tensor) else None for o in outs)
        if type(node) is not Undifferentiable:
            node.save(inner, kwargs, outs)
        wrapped = []
        for i, o in enumerate(outs):
            if isinstance(o, torch.Tensor):
                differentiable = i not in op.nondiff and o.dtype in DIFFERENTIABLE
                if differentiable or o.dtype in self.wrapped_dtypes or op.kind is VIEW:
                    o = self.wrap(o, (node, i) if differentiable else None)
                    if op.kind is VIEW:
                        view_history.mark_view(o, op, args, kwargs, i)
            wrapped.append(o)
        return type(outs)(wrapped) if type(outs) in (list, tuple) else tuple(wrapped)

    def _wrap_plain(self, op: Op, args: Any, kwargs: Any, outs: Any) -> Any:
        """Wrap results without history. Integers of inner levels stay unwrapped: they can never get one."""
        if isinstance(outs, torch.Tensor):
            view = op.kind is VIEW
            if view or outs.dtype in self.wrapped_dtypes:
                v = self.wrap(outs, None)
                if v._nested:
                    check_origin(op, args)
                if view and not op.nondiff:
                    view_history.mark_view(v, op, args, kwargs)
                return v
            return outs
        if isinstance(outs, (tuple, list)):
            wrapped = []
            for i, o in enumerate(outs):
                if isinstance(o, torch.Tensor) and (op.kind is VIEW or o.dtype in self.wrapped_dtypes):
                    o = self.wrap(o, None)
                    if o._nested:
                        check_origin(op, args)
                    if op.kind is VIEW:
                        view_history.mark_view(o, op, args, kwargs, i)
                wrapped.append(o)
            return type(outs)(wrapped) if type(outs) in (list, tuple) else tuple(wrapped)
        return outs

    def _out(self, op: Op, args: Any, kwargs: Any) -> Any:
        tensors = [t for a in (*args, *kwargs.values()) for t in (a if isinstance(a, (list, tuple)) else (a,))]
        if _grad_enabled() and any(isinstance(t, Value) and t._level is self and edge_of(t) is not None for t in tensors):
            raise RuntimeError(
                f"{op.base_name}(): functions with out=... arguments don't support automatic differentiation, "
                "but one of the arguments requires grad."
            )
        outer = self.outward(op, unwrap_args(self, args), unwrap_kwargs(self, kwargs))
        written = (kwargs.get(a.name) for a in op.func._schema.arguments if a.kwarg_only and a.alias_info is not None)  # out, U, values, …
        given = [a for a in written if isinstance(a, torch.Tensor)]
        for g in given:
            if isinstance(g, Value) and g._level is self:
                if g.shape != g._inner.shape:
                    inplace.follow_inner(g)
                inplace.unrecorded(g)
        if isinstance(outer, torch.Tensor):
            return given[0] if given else outer
        return tuple(given) if given else outer
