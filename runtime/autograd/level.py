"""The grad level: records ATen calls on a tape. Level zero (the eager session) and every ``grad`` or ``vjp`` are instances."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from ..levels import _VIEWS, NESTED_VALUES, VALUES, Level, Value, _make_subclass, _set_excluded, same_shape, unwrap_args, unwrap_kwargs
from ..rules.ops import _OPS, DIFFERENTIABLE, FUNCTIONAL, INPLACE, OUT, VIEW, Op, decomposition_of, op_of, written_out
from . import inplace, views
from .nested import check_origin, meta_of
from .nodes import AccumulateGrad, Edge, Input, Nowhere, OpNode, Undifferentiable
from .running import DUALS, FORWARD, current_dual
from .saved import HOOKS

_grad_enabled = torch.is_grad_enabled
_set_grad_enabled = torch._C._set_grad_enabled


class GradLevel(Level):
    """One tape. ``outer_mode``: the grad mode that the levels further out shall see (None: there are none)."""

    __slots__ = ("class_of", "is_root", "nested_class", "outer_mode", "value_class")
    what = "grad, vjp or jacrev"
    keeps_history = True

    def __init__(self, value_class: type[Value] | None = None, root: bool = False) -> None:
        super().__init__()
        self.outer_mode: bool | None = None if root else _grad_enabled()
        self.value_class = value_class or GradValue
        self.nested_class: type[Value] | None = None  # the session has one
        self.class_of: Any = None  # by the class of a tensor, that of values which hold it; the session has such classes, too
        self.is_root = root
        if root:
            self.number = 0

    def wrap(self, inner: Any, edge: Edge | None) -> Any:
        v: Any
        if type(inner) is torch.Tensor and not inner.is_nested:  # as same_shape, without its frame
            v = _make_subclass(self.value_class, inner)
            v._inner = inner
        elif self.nested_class is not None and type(inner) is torch.Tensor:
            v = _make_subclass(self.nested_class, inner)
            v._inner = inner
        elif type(inner) in VALUES and inner._level is self:  # a rule that runs in a backward pass made constants in the session
            return self.wrap(inner._inner, edge)
        else:
            v = same_shape(self.value_class if self.class_of is None else self.class_of(type(inner)), inner)
        if not self.is_root:
            v._level = self
        v._edge = edge
        return v

    def input(self, outer: torch.Tensor) -> Any:
        """An input of the transform: a value that requires grad, with an end of its own."""
        return self.wrap(outer, (Input(self, outer), 0))

    def call(self, func: torch._ops.OpOverload, args: Any, kwargs: Any, dual: bool = True) -> Any:
        """``dual``: whether a dual level that this thread is in has yet to see the call."""
        if DUALS and dual and self.is_root and FORWARD.dual is not None:
            return FORWARD.dual.call(func, args, kwargs)
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
            decomposed = decomposition_of(op) or _registered(op)
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
            views.mark_view(v, op, args, kwargs)
        return v

    def outward(self, op: Op, inner: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run on what the values hold, in the grad mode that belongs to the levels further out."""
        outer = self.outer_mode
        if outer is None:  # nothing is further out than level zero
            if not op.fills:
                return op.kernel(*inner, **kwargs)
            _set_excluded(_VIEWS, True)  # `uncounted`, without its call: how a kernel fills its result is no write (out= counts outside)
            try:
                return op.kernel(*inner, **kwargs)
            finally:
                _set_excluded(_VIEWS, False)
        if outer is _grad_enabled():
            return op.run(inner, kwargs)
        _set_grad_enabled(outer)
        try:
            return op.run(inner, kwargs)
        finally:
            _set_grad_enabled(not outer)

    def history_of(self, v: Any) -> Any:
        return edge_of(v)

    def tangent_of(self, v: Any) -> Any:
        """The tangent that a dual level of ``forward_ad`` gives ``v``, or None."""
        dual = current_dual()
        return None if dual is None else dual.tangents.of(v)

    def kept(self, inner: torch.Tensor) -> torch.Tensor:
        """A copy of what a value holds, made before a write because the node of the write wants the value from before."""
        dual = current_dual()
        return inner.clone() if dual is None or not self.is_root else dual.kept(inner)

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
                if differentiable or self.is_root or op.kind is VIEW:
                    o = self.wrap(o, (node, i) if differentiable else None)
                    if op.kind is VIEW:
                        views.mark_view(o, op, args, kwargs, i)
            wrapped.append(o)
        return type(outs)(wrapped) if type(outs) in (list, tuple) else tuple(wrapped)

    def _wrap_plain(self, op: Op, args: Any, kwargs: Any, outs: Any) -> Any:
        """Wrap results without history. Integers of inner levels stay unwrapped: they can never get one."""
        if isinstance(outs, torch.Tensor):
            view = op.kind is VIEW
            if self.is_root or view or outs.dtype in DIFFERENTIABLE:
                v = self.wrap(outs, None)
                if type(v) in NESTED_VALUES:
                    check_origin(op, args)
                if view and not op.nondiff:
                    views.mark_view(v, op, args, kwargs)
                return v
            return outs
        if isinstance(outs, (tuple, list)):
            wrapped = []
            for i, o in enumerate(outs):
                if isinstance(o, torch.Tensor) and (self.is_root or op.kind is VIEW or o.dtype in DIFFERENTIABLE):
                    o = self.wrap(o, None)
                    if type(o) in NESTED_VALUES:
                        check_origin(op, args)
                    if op.kind is VIEW:
                        views.mark_view(o, op, args, kwargs, i)
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
                    inplace.reshell(g)
                inplace.unrecorded(g)
        if isinstance(outer, torch.Tensor):
            return given[0] if given else outer
        return tuple(given) if given else outer


def _registered(op: Op) -> Any:
    from .registered import BACKWARD, registered  # a Function is itself a step on this level's tape

    return registered(op, BACKWARD)


def edge_of(v: Any) -> Any:
    """Where the gradient of ``v`` goes, or None when it needs none."""
    view = v._view
    if view is not None and view.generation != view.base._generation:
        view.refresh(v)
    e = v._edge
    if e is not None:
        return e
    if v._req:
        node = v._accumulator() if v._accumulator is not None else None
        return (node if node is not None else accumulator_of(v)), 0
    if view is not None and _grad_enabled() and follows_base(v):
        return Nowhere(v._level, v._inner), 0
    return None


def follows_base(v: Any) -> bool:
    """Whether ``v`` is a view without history of a tensor that requires grad: made without grad mode, or before the tensor was asked
    to. As in torch it then does, too, as a leaf whose gradient goes nowhere."""
    view = v._view
    if view is None or not v._level.is_root or v.dtype not in DIFFERENTIABLE or v.is_inference():
        return False  # a view of a tensor of inference mode is, as in torch, a tensor of its own
    return edge_of(view.base) is not None


_making = threading.Lock()


def accumulator_of(v: Any) -> AccumulateGrad:
    """The end of paths to a leaf, made when a graph first needs it. All threads get the same one."""
    with _making:
        node = v._accumulator() if v._accumulator is not None else None
        if node is None:
            node = AccumulateGrad(v._level, v)
            v._accumulator = weakref.ref(node)
    return node


class GradValue(Value):
    """A value of a grad level.

    ``_edge``: (node, output number) that made it; ``_req``: a leaf that requires grad; ``_generation``: counts changes of history by
    writes, so that views know when to follow.
    """

    _level: GradLevel
    _edge: Edge | None = None
    _req: bool = False
    _accumulator: Any = None
    _generation: int = 0
    _retains: bool = False
    _adopted_by: int  # see ``runtime.autograd.adopt``

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return edge_of(self) is not None

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        e = edge_of(self)
        return None if e is None or isinstance(e[0], (AccumulateGrad, Input)) else e[0]

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return self.grad_fn is None

    def tolist(self) -> Any:
        return self._inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force and edge_of(self) is not None:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self._inner.numpy(force=force)

    def detach_(self) -> Any:
        return self._level.call(torch.ops.aten.detach_.default, (self,), {})

    @property
    def output_nr(self) -> int:  # type: ignore[override]
        e = edge_of(self)
        return 0 if e is None else e[1]

    @property
    def data(self) -> Any:
        return self._level.wrap(self._inner, None)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        raise RuntimeError("mutating directly with `.data` inside functorch transform is not allowed.")

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        if edge_of(self) is None and requires_grad:
            self._edge = (Input(self._level, self._inner), 0)
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GradValue(level={self._level.number}, {self._inner!r})"


__all__ = ["FUNCTIONAL", "GradLevel", "GradValue", "OpNode", "edge_of"]
