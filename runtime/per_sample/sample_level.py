"""Run a loss of one sample for all samples of a batch, and note where it uses parameters.

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
from ..seam.call_types import Arguments
from ..seam.levels import Value
from ..seam.shells import VALUES
from ..tape.grad_level import GradLevel
from ..tape.metas import meta_of
from ..tape.nodes import Edge
from ..tape.values import edge_of
from ..torch_private.dispatcher import OpOverload
from . import linear, recurrent_nodes
from .uses import Layout, ParameterCall, Tap, Uses, flattened, unflattened


class Samples(BatchLevel):
    """One run of a loss for a batch of ``size`` samples. ``uses``: the uses that the taps have
    noted, once a backward pass has run."""

    __slots__ = ("tape", "uses")
    what = "per_sample_grads"
    shows_strides = False  # a parameter's uses are calls that it knows

    def __init__(self, size: int, randomness: str, tape: GradLevel) -> None:
        super().__init__(size, randomness)
        self.tape = tape
        self.uses = Uses()

    def call(self, func: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> Any:
        """Run an op: as any batch does, or as a use of the parameters among its arguments."""
        if not self._uses_any(args) and not (kwargs and self._uses_any(kwargs.values())):
            return super().call(func, args, kwargs)
        op = op_of(func)
        if op.record is None and op.composite:
            return super().call(func, args, kwargs)  # in terms of other ops, which come here
        # the formulas for the parameter read the target, so they must find it as it was
        if op.kind is INPLACE and self.source(args[0]) is None:
            return self._write_copy(op, args, kwargs)
        # a draw cannot be repeated for the gradients
        if torch.is_grad_enabled() and is_random(op, args, kwargs):
            return self._call_on_spread(func, args, kwargs)
        return self._call_on_constants(op, func, args, kwargs)

    def _call_on_spread(
        self, func: OpOverload, args: Sequence[object], kwargs: dict[str, object]
    ) -> object:
        """Run a call that draws on batches in place of the parameters. To run it again for their
        gradients would draw again."""
        flat, layout = flattened(args, kwargs)
        for index in self._sources(flat):
            flat[index] = self.spread(flat[index])
        spread_args, spread_kwargs = unflattened(flat, layout)
        return super().call(func, spread_args, spread_kwargs)

    def _call_on_constants(
        self, op: Op, func: OpOverload, args: Sequence[object], kwargs: dict[str, object]
    ) -> object:
        """Run a call on constants in place of the parameters, with a tap of its results."""
        flat, layout = flattened(args, kwargs)
        sources = self._sources(flat)
        for index in sources:
            flat[index] = self.tape.lowered(flat[index])
        constant_args, constant_kwargs = unflattened(flat, layout)
        outputs = super().call(func, constant_args, constant_kwargs)
        if not torch.is_grad_enabled():
            return outputs
        return self._tap(self._for_each(op, flat, layout, sources), outputs)

    def layer(self, func: object, args: Sequence[object]) -> Any:
        """Run a linear or recurrent layer as one node. NotImplemented for any other call."""
        if func is linear.LINEAR:
            return linear.run(self, *args)
        return recurrent_nodes.run(self, func, args)

    def is_shared(self, argument: object) -> bool:
        """Return whether all samples have one ``argument``."""
        return not (isinstance(argument, Value) and argument._level is self)

    def spread_once(self, tensor: Tensor) -> Any:
        """Return ``tensor`` as a batch, if it is none."""
        if not self.is_shared(tensor):
            return tensor
        return self.spread(tensor)

    def spread(self, tensor: Tensor) -> Any:
        """Return ``tensor`` as a batch. A parameter is used by this, so the result has a tap."""
        edge = self.source(tensor)
        if edge is None:
            return super().spread(tensor)
        if not torch.is_grad_enabled():
            return super().spread(self.tape.lowered(tensor))
        # a copy for each sample, by stride 0; its cotangent is the gradient of each sample
        wide = self.tape.lowered(tensor).expand(self.size, *tensor.shape)

        def note(grads: list[torch.Tensor]) -> None:
            self.uses.add([(edge, Dense(grads[0]))])

        # no edge to the parameter, where a cotangent of the whole batch must not arrive
        tap = Tap(self.tape, (None,), (meta_of(wide, wide.dtype),), note)
        return self.wrap(self.tape.wrap(wide, (tap, 0)))

    def elementwise(self, formula: Callable[..., object], args: Arguments) -> Any:
        """Run a formula on the physical tensors, or op by op if it uses a parameter."""
        if any(self.source(argument) is not None for argument in args):
            return formula(*args)  # each op then comes to `call`, which notes the use
        return super().elementwise(formula, args)

    def batchwise(self, formula: Callable[..., object], args: Any) -> Any:
        """Run a formula on the physical tensors, or on the values if it uses a parameter."""
        if any(self.source(argument) is not None for argument in args):
            return formula(*args, (False,) * len(args))
        return super().batchwise(formula, args)

    def _uses_any(self, args: Iterable[Any]) -> bool:
        """Return whether one of these arguments, or of the lists among them, is computed of
        parameters alone. It runs for every call."""
        tape = self.tape
        for argument in args:
            kind = type(argument)
            if kind in VALUES:
                if argument._level is tape and edge_of(argument) is not None:
                    return True
            elif (kind is list or kind is tuple) and self._uses_any(argument):
                return True
        return False

    def source(self, a: object) -> Edge | None:
        """Return the edge of ``a`` on the tape, if only parameters were used to compute it."""
        if isinstance(a, Value) and a._level is self.tape:
            return edge_of(a)
        return None

    def _write_copy(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """Run a write that takes a parameter: ``x.mul_(w)`` becomes ``x.copy_(x.clone().mul(w))``.

        The gradients of ``w`` need ``x`` as it was.
        """
        if op.functional is None or not isinstance(args[0], torch.Tensor):
            raise RuntimeError(
                f"per_sample_grads: {op.func} writes in place and takes a parameter. "
                "Use an op that returns its result."
            )
        return args[0].copy_(op.functional.func(args[0].clone(), *args[1:], **kwargs))

    def _sources(self, flat: list[object]) -> dict[int, Edge]:
        """Return where the arguments that follow from parameters come from, by their numbers."""
        sources: dict[int, Edge] = {}
        for index, argument in enumerate(flat):
            edge = self.source(argument)
            if edge is not None:
                sources[index] = edge
        return sources

    def _for_each(
        self, op: Op, constants: list[object], layout: Layout, sources: dict[int, Edge]
    ) -> ParameterCall:
        """Return a call on ``constants`` as one for each sample. ``sources``: by the numbers of the
        parameters that they stand for, where these come from."""
        batched = [
            isinstance(constant, Value) and constant._level is self for constant in constants
        ]
        plain = list(map(self._without_history, constants))
        return ParameterCall(op, plain, batched, layout, sources, self.size)

    def _without_history(self, a: object) -> object:
        """Return an argument as a tensor below the tape."""
        if isinstance(a, Value) and a._level is self:
            a = a._inner
        return self.tape.lowered(a)

    def _tap(self, call: ParameterCall, outs: Any) -> object:
        """Return the results of a call, each with a history that leads to one tap."""
        flat: list[Any] = [outs]
        if not isinstance(outs, torch.Tensor):
            flat = list(outs)
        n_results = len(flat)
        tapped = [
            index for index, result in enumerate(flat) if self._is_differentiable_batch(result)
        ]
        if not tapped:
            return outs
        # results in the shape that the tape sees, with the batch in front
        inner = [flat[index]._inner for index in tapped]
        lowered = list(map(self.tape.lowered, inner))

        def note(grads: Sequence[object]) -> None:
            """Note the gradients of the parameters, for cotangents of the tapped results."""
            each: list[Any] = [None] * n_results
            for index, grad in zip(tapped, grads, strict=True):
                each[index] = grad
            self.uses.add(call.uses(each))

        # one tap for all results, since a formula may need several cotangents
        metas = tuple(meta_of(tensor, tensor.dtype) for tensor in lowered)
        tap = Tap(self.tape, tuple(map(self.source, inner)), metas, note)
        for position, (index, tensor) in enumerate(zip(tapped, lowered, strict=True)):
            flat[index] = self.wrap(self.tape.wrap(tensor, (tap, position)))
        return _rebuild(outs, flat)

    def _is_differentiable_batch(self, result: object) -> bool:
        return (
            isinstance(result, Value) and result._level is self and result.dtype in DIFFERENTIABLE
        )


def _rebuild(outs: Any, flat: list[torch.Tensor]) -> object:
    """Return the results ``flat`` in the form of ``outs``."""
    if isinstance(outs, torch.Tensor):
        return flat[0]
    # a rule may return a namedtuple, which takes its fields one by one
    if hasattr(outs, "_fields"):
        return type(outs)(*flat)
    return type(outs)(flat)
