"""What a program calls by name, for tensors of the model.

    world = ModelWorld()
    exec("a = leaf(numbers(2, 3, seed=1))\\nb = torch.sin(a)", world.names)

The names are those of :mod:`gen.grammar.prelude`, which has them for torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from gen.grammar.model_objects import Arrays, Block, Counter, Layer, Norm
from gen.grammar.prelude import (
    Options,
    closure,
    doubled,
    factor_of,
    halved,
    rows_until,
    turned_rows,
    value,
)
from gen.reference.model import chain_rule
from gen.reference.model.cell_geometry import Refused
from gen.reference.model.model_tensor import Tensor, joined
from gen.reference.model.stored_cells import recording


class Transforms:
    """The functions of ``torch.func`` that a program calls."""

    @staticmethod
    def grad(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the function of the derivative of a number by a real tensor."""

        def derivative(x: Tensor) -> Tensor:
            if x.kind != "real":
                raise Refused("a derivative by real numbers")
            # New numbers, computed from the old ones: other uses of `x` are no part of this
            # derivative, but it has a derivative by `x` in turn.
            arguments = []
            for cell in x.numbers():
                sources = chain_rule.sources_of(cell)
                arguments.append(chain_rule.Number(chain_rule.value_of(cell), sources))
            # torch.func.grad differentiates inside of no_grad as well
            with recording(True):
                roots = function(Tensor.of(list(arguments), x.shape)).numbers()
            slopes = chain_rule.derivatives([(root, 1.0) for root in roots], arguments)
            return Tensor.of(slopes, x.shape)

        return derivative


class Names:
    """The functions of ``torch`` that a program calls. Others are methods of a tensor."""

    float32, float64 = "float32", "float64"
    func = Transforms()
    get_default_dtype = staticmethod(lambda: "float32")

    @staticmethod
    def set_default_dtype(dtype: str) -> None:
        """Take no notice of the dtype: the model has real numbers."""

    @staticmethod
    def full(shape: tuple[int, ...], number: float, dtype: str) -> Tensor:
        """Return one number everywhere."""
        return Tensor.of([number] * math.prod(shape), shape).in_order()

    @staticmethod
    def from_numpy(array: Tensor) -> Tensor:
        """Return the tensor that shares the array's memory."""
        return array

    as_tensor = from_numpy

    @staticmethod
    def inference_mode() -> AbstractContextManager[None]:
        """Let results have no history, as ``no_grad`` does."""
        return recording(False)

    @staticmethod
    def vmap(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the function of each slice of the first dimension."""
        return lambda x: joined(list(map(function, x.unbind())), 0, new=True)

    @staticmethod
    def cond(
        condition: Tensor,
        one: Callable[..., Tensor],
        other: Callable[..., Tensor],
        arguments: Sequence[Tensor],
    ) -> Tensor:
        """Return the result of one of two functions."""
        return (one if condition else other)(*arguments)

    @staticmethod
    def zeros_like(x: Tensor) -> Tensor:
        """Return zeros of the shape and kind of a tensor, without a history."""
        if x.kind == "bool":
            raise Refused("zeros like truths are truths")
        return x.detach().mul(0.0)

    @staticmethod
    def no_grad() -> AbstractContextManager[None]:
        """Let results have no history."""
        return recording(False)

    @staticmethod
    def enable_grad() -> AbstractContextManager[None]:
        """Let results have a history, also inside of ``no_grad``."""
        return recording(True)

    @staticmethod
    def tensor(numbers: list[Any], dtype: str = "") -> Any:
        """Return a new tensor if `dtype` is given, else indices."""
        return Tensor.of(numbers, (len(numbers),)).in_order() if dtype else numbers

    @staticmethod
    def _foreach_mul_(tensors: Sequence[Tensor], factor: float) -> None:
        for tensor in tensors:
            tensor.mul_(factor)

    @staticmethod
    def stack(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Return tensors as slices of a new dimension."""
        return joined(parts, dim, new=True)

    @staticmethod
    def cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Return tensors one after another in a dimension."""
        return joined(parts, dim)

    @staticmethod
    def where(condition: Tensor, one: Tensor, other: Any) -> Tensor:
        """Return the numbers of `one` where the condition is true, else those of `other`."""
        return one.where(condition, other)

    @staticmethod
    def view_as_real(x: Tensor) -> Tensor:
        """Return complex numbers as pairs of real ones, of the same cells."""
        if x.kind != "complex" or x.conjugate or x.negative:
            raise Refused("view_as_real takes a complex tensor without a conjugate")
        return replace(x, kind="real", geometry=x.geometry.insert(x.dim(), 2, 1))

    @staticmethod
    def view_as_complex(x: Tensor) -> Tensor:
        """Return pairs of numbers as complex ones."""
        if x.kind != "real" or x.negative:
            raise Refused("view_as_complex takes real numbers that are no negative")
        if not _has_pairs(x):
            raise Refused("view_as_complex takes pairs of numbers side by side")
        return replace(x, kind="complex", geometry=x.geometry.without(x.dim() - 1))

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        """Return a method of the tensor as a function, which may write to `out`."""

        def call(x: Tensor, *args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
            result: Tensor = getattr(x, name)(*args, **kwargs)
            if out is None:
                return result
            cells = result.numbers()
            is_recorded = any(isinstance(cell, chain_rule.Number) for cell in cells)
            if out.memory.has_history or is_recorded:
                raise Refused("out= takes no tensors with a history")
            return out.take(result, x, *args)

        return call


def _has_pairs(x: Tensor) -> bool:
    """Return whether the last dimension has two cells side by side, from an even cell on.

    A complex element is as large as two real ones, and begins where one of these pairs does.
    """
    if x.shape[-1:] != (2,) or x.geometry.strides[-1] != 1:
        return False
    starts = (x.geometry.offset, *x.geometry.strides[:-1])
    return all(start % 2 == 0 for start in starts)


class ModelWorld:
    """The names of one program, and the leaves that it has made."""

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.options = Options()
        times, rebind = closure()
        self.names: dict[str, Any] = {
            "torch": Names(),
            "numbers": _numbers,
            "complex_numbers": _complex_numbers,
            "leaf": self._leaf,
            "rounded": _rounded,
            "tripled": lambda x: _with_slope(x, 2.0, 3.0),
            "same": _same,
            "doubled_in": _doubled_in,
            "pair": lambda x: (_with_slope(x, 2.0, 5.0), _with_slope(x, 3.0, 7.0)),
            "halted": lambda x: ((x * 2).detach(), _with_slope(x, 3.0, 4.0)),
            "inferred": lambda x: x.detach().clone(),
            "Named": Tensor,
            "noise": _noise,
            "from_bits": Tensor.from_bits,
            "np": Arrays(),
            "block": Block(_numbers(3, seed=36)),
            "parameter": self._leaf,
            "doubled": doubled,
            "halved": halved,
            "factor_of": factor_of,
            "rows_until": rows_until,
            "turned_rows": turned_rows,
            "unrecorded_product": _recording_of(False, lambda x, y: x * y),
            "unrecorded_row": _recording_of(False, lambda x: x[0]),
            "recorded_product": _recording_of(True, lambda x, y: x * y),
            "times": times,
            "rebind": rebind,
            "options": self.options,
            "offset": _numbers(3, seed=34),
            "norm": Norm(),
            "checkpoint": lambda f, *args: f(*args),
            "hook": lambda x, factor: x.register_hook(factor),
            "layer": Layer(self._leaf(_numbers(3, 3, seed=31)), self._leaf(_numbers(3, seed=32))),
            "counter": Counter(_numbers(seed=33)),
        }

    def _leaf(self, x: Tensor) -> Tensor:
        self.leaves.append(x.requires_grad_())
        return x

    def set_dtype(self, name: str) -> None:
        """Take no notice of the dtype: the model has real numbers."""


def _numbers(*shape: int, seed: int = 0) -> Tensor:
    numbers = [value(seed, index) for index in range(math.prod(shape))]
    return Tensor.of(numbers, shape).in_order()


def _complex_numbers(*shape: int, seed: int = 0) -> Tensor:
    count = math.prod(shape)
    # the seeds of the two parts are those of the prelude
    pairs = [(value(seed, index), value(seed + 7, index)) for index in range(count)]
    return Tensor.of(pairs, shape, "complex").in_order()


def _recording_of(flag: bool, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function with results that have a history, or none."""

    def call(*args: Tensor) -> Tensor:
        with recording(flag):
            return function(*args)

    return call


def _with_slopes(x: Tensor, function: Callable[[float], float], slope: float) -> Tensor:
    """Return a function of each number, with a handwritten backward."""
    cells = []
    for cell in x.numbers():
        number = function(chain_rule.value_of(cell))
        cells.append(chain_rule.with_slope(number, cell, slope))
    # The numbers of a complex tensor are its real and imaginary parts in turn.
    if x.kind == "complex":
        return Tensor.of(list(zip(cells[::2], cells[1::2], strict=True)), x.shape, x.kind)
    return Tensor.of(cells, x.shape, x.kind)


def _with_slope(x: Tensor, factor: float, slope: float) -> Tensor:
    """Return a multiple of a real or complex tensor, with a handwritten backward."""
    if x.kind == "bool":
        raise Refused("truths have no multiples")
    return _with_slopes(x, lambda value: factor * value, slope)


def _rounded(x: Tensor) -> Tensor:
    """Round, with a backward that passes the gradient on."""
    if x.kind != "real":
        raise Refused("real numbers are rounded")
    return _with_slopes(x, lambda value: float(round(value)), 1.0)


def _doubled_in(x: Tensor) -> Tensor:
    """Double in place, with a backward that triples."""
    return x.take(_with_slope(x, 2.0, 3.0))


def _same(x: Tensor) -> Tensor:
    """Return the argument, with a backward that doubles. Nothing says what a write to it is."""
    x.memory.writable = False
    result = _with_slopes(x, lambda value: value, 2.0)
    result.memory.writable = False
    return result


def _noise(x: Tensor) -> Tensor:
    """Return the random numbers that torch draws: a run seeds the generator before each call."""
    drawn = torch.rand(x.shape, dtype=torch.float64)
    return Tensor.of(drawn.reshape(-1).tolist(), x.shape)
