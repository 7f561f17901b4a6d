"""The grad level: records ATen calls on a tape. Every ``grad`` and ``vjp`` has one, and the
eager session is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ..rules.ops import (
    _OPS,
    DIFFERENTIABLE,
    INPLACE,
    OUT,
    VIEW,
    Op,
    decomposition_of,
    op_of,
    written_out,
)
from ..seam.levels import Value, rewrapped
from ..torch_private.dispatcher import OpOverload
from . import inplace, view_history
from .metas import check_origin, meta_of, refuse_nested
from .nodes import Edge, Node, OpNode, Undifferentiable
from .saved import HOOKS
from .tape import Tape
from .values import edge_of

_grad_enabled = torch.is_grad_enabled


class GradLevel(Tape):
    """A tape that records the calls with its values."""

    __slots__ = ()

    def call(self, func: OpOverload | Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """As :meth:`Level.call`. The most common call, of an op with a formula and one result, uses
        as few Python frames as possible: :func:`op_of` and :meth:`_recorded` are inlined for it."""
        op = _OPS.get(id(func)) or op_of(func)
        try:
            special = op.special
            if special:
                if op.kind is INPLACE:
                    return inplace.run(self, op, args, kwargs)
                record = op.record
                if op.kind is OUT or (op.composite if record is None else record.nondiff is True):
                    return self._unrecorded(op, args, kwargs)
            inner, edges, wanted, spans = self.collect(op, args)
            if kwargs:
                if _grad_enabled() and self._any_with_history(kwargs.values()):
                    return self.run_inside(written_out(op, "vjp"), args, kwargs)
                kwargs = self.lowered_kwargs(kwargs)
            if not wanted or not _grad_enabled():
                return self._wrap_plain(op, args, kwargs, self.outward(op, inner, kwargs))
            if special and (record is None or (record.vjp is None and not record.nondiff)):
                decomposed = decomposition_of(op, "vjp")
                if decomposed is not None:
                    return self.run_inside(decomposed, args, kwargs)
            if HOOKS.innermost():
                return self._record_packed(op, args, inner, kwargs, edges, wanted, spans)
            outs = self.outward(op, inner, kwargs)
            if not isinstance(outs, torch.Tensor):
                return self._recorded(
                    op, args, inner, kwargs, outs, OpNode.of(op, self, edges, (), wanted, spans)
                )
            dtype = outs.dtype
            if dtype not in DIFFERENTIABLE or (special and op.nondiff):
                return self._wrap_plain(op, args, kwargs, outs)
            node = OpNode.of(op, self, edges, (), wanted, spans)
            v = self.wrap(outs, (node, 0))
            try:
                node.metas = ((outs.shape, dtype),)
            except RuntimeError:  # a nested tensor has no shape
                check_origin(op, args)
                node.metas = (meta_of(outs, dtype),)
            if type(node) is not Undifferentiable:
                node.save_unpacked(inner, kwargs, outs)
            if op.kind is VIEW:
                view_history.mark_view(v, op, args, kwargs)
            return v
        except RuntimeError as error:
            refuse_nested(args, error)
            raise

    def _any_with_history(self, args: Iterable[Any]) -> bool:
        return any(
            isinstance(a, Value) and a._level is self and edge_of(a) is not None for a in args
        )

    def _unrecorded(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run a call that makes no node: the op writes to ``out=``, is composite, or has no
        derivative by nature."""
        if op.kind is OUT:
            return self._out(op, args, kwargs)
        if op.record is None:
            return self.run_inside(op.func.decompose, args, kwargs)
        return self._wrap_plain(
            op, args, kwargs, self.outward(op, self.lowered_args(args), self.lowered_kwargs(kwargs))
        )

    def _record_packed(
        self,
        op: Op,
        args: Any,
        inner: list[Any],
        kwargs: dict[str, Any],
        edges: tuple[Edge | None, ...],
        wanted: int,
        spans: dict[int, int] | None,
    ) -> Any:
        """Run a call under pack hooks. They see the saved arguments before the kernel runs, so a
        hook can stop the call."""
        node = OpNode.of(op, self, edges, (), wanted, spans)
        if type(node) is not Undifferentiable and not op.nondiff and not op.fills_argument:
            node.save(inner, kwargs, None)
        return self._recorded(op, args, inner, kwargs, self.outward(op, inner, kwargs), node)

    def _recorded(
        self, op: Op, args: Any, inner: list[Any], kwargs: dict[str, Any], outs: Any, node: Node
    ) -> Any:
        """Return the results of the call as values with the history ``node``, which saves what its
        formulas need. Results that have no gradient by nature get no history."""
        results: Sequence[Any] = (outs,) if isinstance(outs, torch.Tensor) else outs
        if not isinstance(results, (tuple, list)):
            return outs
        recorded = [
            isinstance(o, torch.Tensor) and i not in op.nondiff and o.dtype in DIFFERENTIABLE
            for i, o in enumerate(results)
        ]
        if not any(recorded):
            return self._wrap_plain(op, args, kwargs, outs)
        try:
            node.metas = tuple(
                (o.shape, o.dtype) if isinstance(o, torch.Tensor) else None for o in results
            )
        except RuntimeError:
            check_origin(op, args)
            node.metas = tuple(
                meta_of(o, o.dtype) if isinstance(o, torch.Tensor) else None for o in results
            )
        if isinstance(node, OpNode):
            node.save(inner, kwargs, outs)
        view = op.kind is VIEW

        def wrapped(o: torch.Tensor, i: int | None) -> Any:
            if not (recorded[i or 0] or view or o.dtype in self.wrapped_dtypes):
                return o
            v = self.wrap(o, (node, i or 0) if recorded[i or 0] else None)
            if view:
                view_history.mark_view(v, op, args, kwargs, i)
            return v

        return rewrapped(outs, wrapped)

    def _wrap_plain(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any], outs: Any) -> Any:
        """Return the results as values without history. Integers of a transform stay unwrapped,
        because they can never get a history."""
        view = op.kind is VIEW
        if not isinstance(outs, torch.Tensor):
            return rewrapped(
                outs,
                lambda o, i: (
                    self._plain(o, op, args, kwargs, i)
                    if view or o.dtype in self.wrapped_dtypes
                    else o
                ),
            )
        if not view and outs.dtype not in self.wrapped_dtypes:
            return outs
        v = self.wrap(outs)  # `_plain`, without its frame
        if v._nested:
            check_origin(op, args)
        if view and not op.nondiff:
            view_history.mark_view(v, op, args, kwargs)
        return v

    def _plain(
        self, out: torch.Tensor, op: Op, args: Sequence[Any], kwargs: dict[str, Any], i: int | None
    ) -> Any:
        v = self.wrap(out)
        if v._nested:
            check_origin(op, args)
        if op.kind is VIEW:
            view_history.mark_view(v, op, args, kwargs, i)
        return v

    def _out(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensors = _items((*args, *kwargs.values()))
        if _grad_enabled() and self._any_with_history(tensors):
            raise RuntimeError(
                f"{op.base_name}(): functions with out=... arguments don't support automatic "
                "differentiation, but one of the arguments requires grad."
            )
        outer = self.outward(op, self.lowered_args(args), self.lowered_kwargs(kwargs))
        given = _tensors_of_out(op, kwargs)
        for g in given:
            if isinstance(g, Value) and g._level is self:
                if g.shape != g._inner.shape:
                    inplace.follow_inner(g)
                inplace.unrecorded(g)
        if isinstance(outer, torch.Tensor):
            return given[0] if given else outer
        # an op whose out= is a list returns nothing
        return tuple(given) if given and outer is not None else outer


def _tensors_of_out(op: Op, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """List the tensors that a call is to write to: those of ``out``, ``U``, ``values``, …"""
    written = [
        kwargs.get(a.name)
        for a in op.func._schema.arguments
        if a.kwarg_only and a.alias_info is not None
    ]
    return [t for t in _items(written) if isinstance(t, torch.Tensor)]


def _items(args: Iterable[Any]) -> Iterator[Any]:
    """Yield each of ``args``, and in place of a list or tuple each of its items."""
    for a in args:
        if isinstance(a, (list, tuple)):
            yield from a
        else:
            yield a
