"""The ``ctx`` of a :class:`~runtime.autograd.function.Function`, which is also its node on the tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..levels import Value
from .nodes import AccumulateGrad, Edge, Node
from .saved import FREED, HOOKS, Packed, Saved


class FunctionCtx:
    """What ``forward`` or ``setup_context`` tells a Function's derivatives. As ``torch.autograd.function.FunctionCtx``."""

    needs_input_grad: tuple[bool, ...] = ()
    to_save: tuple[Any, ...] | None = None
    saved_for_forward: tuple[Any, ...] | None = None
    dirty_tensors: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    materialize_grads: bool = True

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Keep inputs, outputs or intermediate tensors; ``backward`` finds them as ``ctx.saved_tensors``."""
        for i, t in enumerate(tensors):
            if t is not None and not isinstance(t, torch.Tensor):
                raise TypeError(f"save_for_backward can only save variables, but argument {i} is of type {type(t).__name__}")
        self.to_save = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Keep tensors for ``jvp``, which finds them as ``ctx.saved_tensors``."""
        for t in tensors:
            if t is not None and not isinstance(t, torch.Tensor):
                raise AssertionError(
                    "save_for_forward expects all arguments to be tensors; you should save non-tensors as attributes on ctx."
                )
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: torch.Tensor) -> None:
        """Name the inputs that ``forward`` writes to; each must be an output too."""
        self.dirty_tensors = _tensors("mark_dirty can only accept variables, but argument", args)

    def mark_non_differentiable(self, *args: torch.Tensor) -> None:
        """Name the outputs that have no gradient."""
        self.non_differentiable = _tensors("mark_non_differentiable only accepts variable arguments, but got", args)

    def set_materialize_grads(self, value: bool) -> None:
        """Whether ``backward`` and ``jvp`` are given zeros (the default) or ``None`` where no gradient arrives."""
        self.materialize_grads = value


def _tensors(complaint: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    for i, a in enumerate(args):
        if not isinstance(a, torch.Tensor):
            raise RuntimeError(f"{complaint} {i} is of type {type(a).__name__}")
    return args


class FunctionNode(Node, FunctionCtx):
    """A Function on the tape: ``apply`` runs the user's ``backward``.

    At level zero ``backward`` sees tensors of the session, as ``forward`` did; at a level further in, tensors one level further out
    (with ``create_graph``: values of the level, whose history then matters).
    """

    _forward_cls: Any
    _saved: list[tuple[Any, Any]] | None = None  # (what is kept, its edge)
    _freed = False
    _outward = False  # while ``backward`` runs: show what values hold rather than the values
    _positions: tuple[int, ...] = ()  # of the tensor arguments, one per edge
    _n_inputs = 0
    _shapes: tuple[Any, ...] = ()  # per output what zeros of it take, or None

    def name(self) -> str:
        return type(self).__name__

    def record(self, args: Sequence[Any], given: Sequence[Any], outs: Sequence[Any]) -> None:
        """``forward`` has run: keep what backward needs. ``given``: ``args`` as it saw them, ``outs``: as it returned them."""
        tensors = [isinstance(o, torch.Tensor) for o in outs]
        self.metas = tuple((o.shape, o.dtype) if is_tensor else None for o, is_tensor in zip(outs, tensors, strict=True))
        self._shapes = tuple(
            {"size": o.shape, "dtype": o.dtype, "device": o.device, "layout": o.layout} if is_tensor else None
            for o, is_tensor in zip(outs, tensors, strict=True)
        )
        self._positions = tuple(i for i, a in enumerate(args) if isinstance(a, torch.Tensor))
        self._n_inputs = len(args)
        self._saved = [self._keep(t, given, outs) for t in self.to_save or ()]

    def forget_marks(self) -> None:
        """Drop what was only of use until the outputs were made, as it may lead back to this node."""
        for name in ("to_save", "dirty_tensors", "non_differentiable"):
            self.__dict__.pop(name, None)

    def _keep(self, t: Any, given: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, Any]:
        """``t`` as what it holds, with where its gradient goes: an output of this node, an input, or neither."""
        from .level import edge_of

        if t is None:
            return None, None
        level: Any = self.level
        edge: Edge | None = None
        output = next((i for i, o in enumerate(outs) if o is t), None)
        if output is not None:
            edge = (self, output)
        elif isinstance(t, Value) and t._level is level:
            edge = edge_of(t)
        else:
            at = next((k for k, i in enumerate(self._positions) if given[i] is t), None)
            edge = self.edges[at] if at is not None else None
        inner = t._inner if isinstance(t, Value) and t._level is level else t
        if output is not None:  # this node itself: kept as a number, for it would be a cycle
            return self._pack(inner), output
        return self._pack(inner), edge

    def _pack(self, t: torch.Tensor) -> Any:
        if HOOKS.disabled is not None:
            raise RuntimeError(HOOKS.disabled)
        if HOOKS.stack and self.level.number == 0:
            pack, unpack = HOOKS.stack[-1]
            with torch.no_grad():
                return Packed(pack(self.level.wrap(t, None)), unpack)  # type: ignore[attr-defined]
        return Saved(t)

    def _give(self, s: Any, edge: Any) -> Any:
        if isinstance(edge, int):
            edge = (self, edge)
        if isinstance(s, Saved):
            t = s.check(self.name())
        elif isinstance(s, Packed):
            t = s.unpack(s.payload)
            if isinstance(t, Value) and t._level is self.level:
                t = t._inner
        else:
            return s
        if self._outward:
            return t
        if edge is not None and type(edge[0]) is AccumulateGrad:
            return edge[0].variable
        return self.level.wrap(t, edge)  # type: ignore[attr-defined]

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        if self.saved_for_forward is not None:  # while jvp runs
            return self.saved_for_forward
        if self._freed:
            raise RuntimeError(FREED)
        return tuple(self._give(s, edge) for s, edge in self._saved or ())

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> tuple[Any, ...]:
        from .function import backward_of

        level: Any = self.level
        values = level.is_root or create_graph
        shown = []
        for g, like in zip(grads, self._shapes, strict=True):
            if g is None and like is not None and self.materialize_grads:
                g = torch.zeros(**like)
            shown.append(_raised(level, g) if values else g)
        before, self._outward = self._outward, not values
        try:
            result = backward_of(self._forward_cls)(self, *shown)
        finally:
            self._outward = before
        return self._edges_of(result if isinstance(result, tuple) else (result,), create_graph)

    def _edges_of(self, result: tuple[Any, ...], create_graph: bool) -> tuple[Any, ...]:
        """What ``backward`` returned, one per argument of ``forward``, checked and taken per edge."""
        n = self._n_inputs
        if len(result) > n and all(r is None for r in result[n:]):
            result = result[:n]
        if len(result) != n:
            raise RuntimeError(f"function {self.name()} returned an incorrect number of gradients (expected {n}, got {len(result)})")
        level = self.level
        for i, r in enumerate(result):
            if r is None:
                continue
            if not isinstance(r, torch.Tensor):
                raise RuntimeError(f"expected Variable or None (got {type(r).__name__})")
            if i not in self._positions:
                raise RuntimeError(
                    f"function {self.name()} returned a gradient different than None at position {i + 1}, but the corresponding forward "
                    "input was not a Variable"
                )
        found = (result[i] for i in self._positions)
        if create_graph:
            return tuple(_raised(level, r) for r in found)
        return tuple(r._inner if isinstance(r, Value) and r._level is level else r for r in found)

    def release(self) -> None:
        self._saved = None
        self._freed = True


def _raised(level: Any, g: Any) -> Any:
    """``g`` as a value of ``level``; what belongs to it or to a level further in stays as it is."""
    return g if g is None or (isinstance(g, Value) and g._level.number >= level.number) else level.wrap(g, None)
