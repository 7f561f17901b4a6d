"""The level at which a loss of one sample runs for all samples of a batch, and notes where it uses parameters.

From the outside in: a tape, whose inputs are the parameters, and this batch level. An op without a batched argument computes a tensor of
parameters alone, and the tape records it. An op with both *uses* a parameter: it runs on a constant in its place, and a :class:`Tap` on the
tape takes the cotangent of its result on the way back. There the batch is dimension 0 by construction. Nothing guesses where samples lie,
and no two samples meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..func import vmap
from ..func.batch import BatchLevel
from ..func.draws import is_random
from ..rules.ops import DIFFERENTIABLE, INPLACE, Op, op_of
from ..rules.per_sample import Dense, Tensor, Term, reduced
from ..rules.record import parameters
from ..seam.levels import Value
from ..tape.grad_level import GradLevel
from ..tape.metas import meta_of
from ..tape.nodes import Edge, Node
from ..tape.saved import FREED
from ..tape.values import edge_of
from .general import General

Use = tuple[Edge, Term]
"""Where a parameter, or a tensor computed of parameters, comes from on the tape, and the gradients that one use of it has."""


def versions(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Each tensor with its version. A tensor of inference mode has none."""
    return [(t, t._version) for t in tensors if not t.is_inference()]


def refuse_written(known: Iterable[tuple[Tensor, int]], what: str) -> None:
    """Raise if one of these tensors has been written to since. ``what``: what it is."""
    for t, version in known:
        if t._version != version:
            raise RuntimeError(
                f"per_sample_grads: {what}, of shape {list(t.shape)}, has been modified by an inplace operation: it is at version "
                f"{t._version}, and gradients need version {version}. Write to a copy, or compute what you need before."
            )


class Tap(Node):
    """Takes the cotangents of the results of one call, and passes them on. ``found`` is called with them once."""

    __slots__ = ("found",)

    def __init__(self, level: GradLevel, edges: tuple[Edge | None, ...], metas: Any, found: Callable[[list[Any]], None]) -> None:
        super().__init__(level, edges, metas)
        self.found: Callable[[list[Any]], None] | None = found

    def apply(self, grads: list[Any], wanted: object, create_graph: bool) -> tuple[Any, ...]:
        if self.found is None:
            raise RuntimeError(FREED)
        self.found(grads)
        return tuple(g if e is not None else None for g, e in zip(grads, self.edges, strict=True))

    def release(self) -> None:
        self.found = None


class Samples(BatchLevel):
    """One run of a loss for a batch of ``size`` samples. ``uses``: what the taps have found, once a backward pass has run."""

    __slots__ = ("tape", "uses")
    what = "per_sample_grads"

    def __init__(self, size: int, randomness: str, tape: GradLevel) -> None:
        super().__init__(size, randomness)
        self.tape = tape
        self.uses: list[Use] = []

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        flat, spec = pytree.tree_flatten((list(args), kwargs))
        used = [i for i, a in enumerate(flat) if self._edge(a) is not None]
        if not used:
            return super().call(func, args, kwargs)
        op = op_of(func)
        if op.record is None and op.composite:
            return super().call(func, args, kwargs)  # in terms of other ops, which come here
        if op.kind is INPLACE and self._edge(args[0]) is None:
            return self._written(op, args, kwargs)
        if is_random(op, args, kwargs):  # to run it again for the gradients would draw again
            spread_args, spread_kwargs = pytree.tree_unflatten([self.spread(a) if i in used else a for i, a in enumerate(flat)], spec)
            return super().call(func, spread_args, spread_kwargs)
        constants = [self.tape.lowered(a) if i in used else a for i, a in enumerate(flat)]
        plain_args, plain_kwargs = pytree.tree_unflatten(constants, spec)
        outs = super().call(func, plain_args, plain_kwargs)
        return self._tapped(_Call(self, op, flat, constants, spec, used), outs)

    def spread(self, t: Tensor) -> Any:
        edge = self._edge(t)
        if edge is None:
            return super().spread(t)
        wide = self.tape.lowered(t).expand(self.size, *t.shape)

        def found(grads: list[Any]) -> None:
            self.uses.append((edge, Dense(grads[0])))

        return self.wrap(self.tape.wrap(wide, (Tap(self.tape, (None,), (meta_of(wide, wide.dtype),), found), 0)))

    def elementwise(self, formula: Callable[..., Any], args: Any) -> Any:
        if any(self._edge(a) is not None for a in args):
            return formula(*args)  # op by op
        return super().elementwise(formula, args)

    def batchwise(self, formula: Callable[..., Any], args: Any) -> Any:
        if any(self._edge(a) is not None for a in args):
            return formula(*args, (False,) * len(args))
        return super().batchwise(formula, args)

    def _edge(self, a: Any) -> Edge | None:
        """Where ``a`` comes from, if it is computed of parameters alone."""
        return edge_of(a) if isinstance(a, Value) and a._level is self.tape else None

    def _written(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """``x.mul_(w)``: what the op without the write returns is copied to ``x``. The gradients of ``w`` need ``x`` as it was."""
        if op.functional is None or not isinstance(args[0], torch.Tensor):
            raise RuntimeError(f"per_sample_grads: {op.func} writes in place and takes a parameter. Use an op that returns its result.")
        return args[0].copy_(op.functional.func(args[0].clone(), *args[1:], **kwargs))

    def _tapped(self, call: _Call, outs: Any) -> Any:
        """The results of a call, each with a history that leads to one tap."""
        flat, spec = pytree.tree_flatten(outs)
        at = [i for i, o in enumerate(flat) if isinstance(o, Value) and o._level is self and o.dtype in DIFFERENTIABLE]
        if not at:
            return outs
        inner = [flat[i]._inner for i in at]
        edges = tuple(edge_of(t) if isinstance(t, Value) and t._level is self.tape else None for t in inner)
        lowered = [self.tape.lowered(t) for t in inner]
        number = dict(zip(at, range(len(at)), strict=True))

        def found(grads: list[Any]) -> None:
            self.uses += call.uses([grads[number[i]] if i in number else None for i in range(len(flat))])

        tap = Tap(self.tape, edges, tuple(meta_of(t, t.dtype) for t in lowered), found)
        for i, t in zip(at, lowered, strict=True):
            flat[i] = self.wrap(self.tape.wrap(t, (tap, number[i])))
        return pytree.tree_unflatten(flat, spec)


class _Call:
    """A call that uses parameters. ``flat``, ``constants``: its arguments in one list, as given and without the history of parameters."""

    def __init__(self, level: Samples, op: Op, flat: list[Any], constants: list[Any], spec: pytree.TreeSpec, used: list[int]) -> None:
        self.op, self.spec, self.size = op, spec, level.size
        self.edges = {i: level._edge(flat[i]) for i in used}
        self.given = []
        self.batched: list[bool] = []
        for a in constants:
            own = isinstance(a, Value) and a._level is level
            self.batched.append(own)
            self.given.append(level.tape.lowered(a._inner) if own else level.tape.lowered(a) if isinstance(a, torch.Tensor) else a)
        self.versions = versions(a for a in self.given if isinstance(a, torch.Tensor))

    def uses(self, gs: list[Any]) -> list[Use]:
        """The gradients of the parameters by the cotangents of the results. None for a result without one."""
        if all(g is None for g in gs):
            return []
        refuse_written(self.versions, f"an argument of {self.op.func}")
        return [(edge, self._term(i, gs)) for i, edge in self.edges.items() if edge is not None]

    def _term(self, i: int, gs: list[Any]) -> Term:
        first, *others = gs
        term = self._factored(i, first) if first is not None and all(g is None for g in others) else None
        if term is not None:
            return Dense(term.dense()) if term.needs_dense() and term.dense_bytes <= sum(t.nbytes for t in term.held()) else term
        general = self._general(i, gs)
        few = general.shape.numel() * self.size <= max(g.numel() for g in gs if g is not None)
        return _of_dtype(Dense(general.dense()), general.dtype) if few else general

    def _factored(self, i: int, g: Tensor) -> Term | None:
        """The gradients by the op's record: its factors, or the formula of an elementwise op."""
        record = self.op.record
        if record is None:
            return None
        args, kwargs = pytree.tree_unflatten(list(range(len(self.given))), self.spec)
        numbers = dict(zip(self.op.arg_names, args, strict=False)) | kwargs
        name = next((name for name, number in numbers.items() if number == i), None)  # None for one of a list
        factors, formula = (None if table is None or name is None else table.get(name) for table in (record.per_sample, record.vjp))
        defaults = dict(zip(self.op.arg_names, self.op.defaults, strict=True))
        if factors is not None:
            found: Term | None = factors(*(self._operand(name, numbers, defaults, g) for name in parameters(factors)))
            return found
        if formula is None or not record.elementwise or any(p not in ("g", *defaults) for p in parameters(formula)):
            return None
        operands = [g if p == "g" else self.given[numbers[p]] if p in numbers else defaults[p] for p in parameters(formula)]
        dims = [0 if p == "g" or (p in numbers and self.batched[numbers[p]]) else None for p in parameters(formula)]
        parameter = self.given[i]

        def by_element(*given: Any) -> Tensor:
            found = formula(*given)
            return g.new_zeros(g.shape[1:]) if found is None else found

        return _of_dtype(reduced(vmap(by_element, in_dims=tuple(dims))(*operands), parameter.shape), parameter.dtype)

    def _operand(self, name: str, numbers: dict[str, Any], defaults: dict[str, Any], g: Tensor) -> Any:
        if name == "g":
            return g
        if name not in defaults:  # weight_shape
            return self.given[numbers[name.removesuffix("_shape")]].shape
        number = numbers.get(name)
        if number is None:
            return defaults[name]
        if not isinstance(number, int):
            return pytree.tree_map(self.given.__getitem__, number)
        a = self.given[number]
        return a.expand(self.size, *a.shape) if isinstance(a, torch.Tensor) and not self.batched[number] else a

    def _general(self, i: int, gs: list[Any]) -> General:
        tensors = [j for j, a in enumerate(self.given) if isinstance(a, torch.Tensor)]

        def op(*given: Tensor) -> Any:
            full = list(self.given)
            for j, a in zip(tensors, given, strict=True):
                full[j] = a
            args, kwargs = pytree.tree_unflatten(full, self.spec)
            return self.op.func(*args, **kwargs)

        dims = [0 if self.batched[j] else None for j in tensors]
        return General(op, [self.given[j] for j in tensors], dims, tensors.index(i), gs)


def _of_dtype(term: Dense, dtype: torch.dtype) -> Dense:
    """Gradients in the dtype of the parameter. Of a real one they are real: a complex cotangent comes from a complex operand beside it."""
    values = term.values.real if term.dtype.is_complex and not dtype.is_complex else term.values
    return Dense(values.to(dtype))
