"""The level at which a loss of one sample runs for all samples of a batch, and notes where it
uses parameters.

From the outside in: a tape, whose inputs are the parameters, and this batch level. An op without a
batched argument computes a tensor of parameters alone, and the tape records it. An op with both
*uses* a parameter: it runs on a constant in its place, and a :class:`Tap` on the tape takes the
cotangent of its result on the way back. There the batch is dimension 0 by construction. Nothing
guesses where samples lie, and no two samples meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..func.batch import BatchLevel
from ..func.draws import is_random
from ..rules.ops import DIFFERENTIABLE, INPLACE, Op, op_of
from ..rules.samples.factors import Dense, Tensor
from ..seam.levels import Value
from ..seam.shells import VALUES
from ..tape.grad_level import GradLevel
from ..tape.metas import meta_of
from ..tape.nodes import Edge
from ..tape.values import edge_of
from . import linear, recurrent_nodes
from .uses import Layout, ParameterCall, Tap, Uses, flattened, unflattened


class Samples(BatchLevel):
    """One run of a loss for a batch of ``size`` samples. ``uses``: what the taps have found, once a
    backward pass has run."""

    __slots__ = ("tape", "uses")
    what = "per_sample_grads"
    shows_strides = False  # a parameter's uses are calls that it knows

    def __init__(self, size: int, randomness: str, tape: GradLevel) -> None:
        super().__init__(size, randomness)
        self.tape = tape
        self.uses = Uses()

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if not self._uses_any(args) and not (kwargs and self._uses_any(kwargs.values())):
            return super().call(func, args, kwargs)
        op = op_of(func)
        if op.record is None and op.composite:
            return super().call(func, args, kwargs)  # in terms of other ops, which come here
        if op.kind is INPLACE and self._edge(args[0]) is None:
            return self._written(op, args, kwargs)
        flat, layout = flattened(args, kwargs)
        used = [i for i, a in enumerate(flat) if self._edge(a) is not None]
        if not torch.is_grad_enabled():
            constant_args, constant_kwargs = unflattened(
                [self.tape.lowered(a) if i in used else a for i, a in enumerate(flat)], layout
            )
            return super().call(func, constant_args, constant_kwargs)
        if is_random(op, args, kwargs):  # to run it again for the gradients would draw again
            spread_args, spread_kwargs = unflattened(
                [self.spread(a) if i in used else a for i, a in enumerate(flat)], layout
            )
            return super().call(func, spread_args, spread_kwargs)
        constants = [self.tape.lowered(a) if i in used else a for i, a in enumerate(flat)]
        plain_args, plain_kwargs = unflattened(constants, layout)
        outs = super().call(func, plain_args, plain_kwargs)
        return self._tapped(self._call(op, flat, constants, layout, used), outs)

    def layer(self, func: Any, args: Sequence[Any]) -> Any:
        return (
            linear.run(self, *args)
            if func is linear.LINEAR
            else recurrent_nodes.run(self, func, args)
        )

    def is_shared(self, a: Any) -> bool:
        """Return whether all samples have one ``a``."""
        return not (isinstance(a, Value) and a._level is self)

    def spread_once(self, t: Tensor) -> Any:
        """``t`` as a batch, if it is none."""
        return self.spread(t) if self.is_shared(t) else t

    def spread(self, t: Tensor) -> Any:
        edge = self._edge(t)
        if edge is None:
            return super().spread(t)
        if not torch.is_grad_enabled():
            return super().spread(self.tape.lowered(t))
        wide = self.tape.lowered(t).expand(self.size, *t.shape)

        def found(grads: list[Any]) -> None:
            self.uses.add([(edge, Dense(grads[0]))])

        return self.wrap(
            self.tape.wrap(wide, (Tap(self.tape, (None,), (meta_of(wide, wide.dtype),), found), 0))
        )

    def elementwise(self, formula: Callable[..., Any], args: Any) -> Any:
        if any(self._edge(a) is not None for a in args):
            return formula(*args)  # op by op
        return super().elementwise(formula, args)

    def batchwise(self, formula: Callable[..., Any], args: Any) -> Any:
        if any(self._edge(a) is not None for a in args):
            return formula(*args, (False,) * len(args))
        return super().batchwise(formula, args)

    def _uses_any(self, args: Iterable[Any]) -> bool:
        """Return whether one of these arguments, or of the lists among them, is computed of
        parameters alone. It runs for every call."""
        tape = self.tape
        for a in args:
            kind = type(a)
            if kind in VALUES:
                if a._level is tape and edge_of(a) is not None:
                    return True
            elif (kind is list or kind is tuple) and any(
                type(b) in VALUES and b._level is tape and edge_of(b) is not None for b in a
            ):
                return True
        return False

    def _edge(self, a: Any) -> Edge | None:
        """Where ``a`` comes from, if it is computed of parameters alone."""
        return edge_of(a) if isinstance(a, Value) and a._level is self.tape else None

    def _written(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """``x.mul_(w)``: what the op without the write returns is copied to ``x``. The gradients of
        ``w`` need ``x`` as it was."""
        if op.functional is None or not isinstance(args[0], torch.Tensor):
            raise RuntimeError(
                f"per_sample_grads: {op.func} writes in place and takes a parameter. "
                "Use an op that returns its result."
            )
        return args[0].copy_(op.functional.func(args[0].clone(), *args[1:], **kwargs))

    def _call(
        self, op: Op, flat: list[Any], constants: list[Any], layout: Layout, used: list[int]
    ) -> ParameterCall:
        """The call, for its gradients. ``flat``, ``constants``: its arguments, as given and without
        the history of parameters."""
        batched = [isinstance(a, Value) and a._level is self for a in constants]
        lowered = self.tape.lowered
        given = [
            lowered(a._inner) if b else lowered(a) if isinstance(a, torch.Tensor) else a
            for a, b in zip(constants, batched, strict=True)
        ]
        return ParameterCall(
            op, given, batched, layout, {i: self._edge(flat[i]) for i in used}, self.size
        )

    def _tapped(self, call: ParameterCall, outs: Any) -> Any:
        """Return the results of a call, each with a history that leads to one tap."""
        one = isinstance(outs, torch.Tensor)
        flat = [outs] if one else list(outs)
        size = len(flat)
        at = [
            i
            for i, o in enumerate(flat)
            if isinstance(o, Value) and o._level is self and o.dtype in DIFFERENTIABLE
        ]
        if not at:
            return outs
        inner = [flat[i]._inner for i in at]
        edges = tuple(
            edge_of(t) if isinstance(t, Value) and t._level is self.tape else None for t in inner
        )
        lowered = [self.tape.lowered(t) for t in inner]
        number = {i: k for k, i in enumerate(at)}

        def found(grads: list[Any]) -> None:
            self.uses.add(
                call.uses([grads[number[i]] if i in number else None for i in range(size)])
            )

        tap = Tap(self.tape, edges, tuple(meta_of(t, t.dtype) for t in lowered), found)
        for i, t in zip(at, lowered, strict=True):
            flat[i] = self.wrap(self.tape.wrap(t, (tap, number[i])))
        if one:
            return flat[0]
        # a rule may return a namedtuple, which takes its fields one by one
        return type(outs)(*flat) if hasattr(outs, "_fields") else type(outs)(flat)
