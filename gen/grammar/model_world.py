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

from gen.grammar.prelude import value
from gen.reference.model import chain_rule as n
from gen.reference.model.cell_geometry import Refused
from gen.reference.model.model_tensor import Tensor, joined
from gen.reference.model.stored_cells import recording


class Names:
    """The functions of ``torch`` that a program calls. Others are methods of a tensor."""

    @staticmethod
    def no_grad() -> AbstractContextManager[None]:
        return recording(False)

    @staticmethod
    def enable_grad() -> AbstractContextManager[None]:
        return recording(True)

    @staticmethod
    def tensor(numbers: list[int]) -> list[int]:
        return numbers

    @staticmethod
    def stack(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        return joined(parts, dim, new=True)

    @staticmethod
    def cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        return joined(parts, dim)

    @staticmethod
    def where(condition: Tensor, one: Tensor, other: Any) -> Tensor:
        return one.where(condition, other)

    @staticmethod
    def view_as_real(x: Tensor) -> Tensor:
        if x.kind != "complex" or x.conjugate or x.negative:
            raise Refused("view_as_real takes a complex tensor without a conjugate")
        return replace(x, kind="real", geometry=x.geometry.insert(x.dim(), 2, 1))

    @staticmethod
    def view_as_complex(x: Tensor) -> Tensor:
        g = x.geometry
        even = all(s % 2 == 0 for s in g.strides[:-1]) and g.offset % 2 == 0
        if x.kind != "real" or not g.shape or g.shape[-1] != 2 or g.strides[-1] != 1 or not even:
            raise Refused("view_as_complex takes pairs of numbers side by side")
        if x.negative:
            raise Refused("view_as_complex of a negative")
        return replace(x, kind="complex", geometry=g.without(x.dim() - 1))

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        def call(x: Tensor, *args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
            result: Tensor = getattr(x, name)(*args, **kwargs)
            if out is None:
                return result
            if out.memory.has_history or any(
                isinstance(cell, n.Number) for cell in result.numbers()
            ):
                raise Refused("out= takes no tensors with a history")
            return out.take(result, x, *args)

        return call


class Layer:
    """A linear layer: ``x @ weight.t() + bias``."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return x.matmul(self.weight.t()) + self.bias


class Counter:
    """A module whose buffer adds up what it has seen."""

    def __init__(self, total: Tensor) -> None:
        self.total = total

    def __call__(self, x: Tensor) -> Tensor:
        self.total.add_(x.detach().sum())
        return x * self.total


class ModelWorld:
    """The names of one program, and the leaves that it has made."""

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.names: dict[str, Any] = {
            "torch": Names(),
            "numbers": _numbers,
            "complex_numbers": _complex_numbers,
            "leaf": self._leaf,
            "rounded": _rounded,
            "tripled": _tripled,
            "same": _same,
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
    return Tensor.of([value(seed, i) for i in range(math.prod(shape))], shape).in_order()


def _complex_numbers(*shape: int, seed: int = 0) -> Tensor:
    count = math.prod(shape)
    pairs = [(value(seed, i), value(seed + 7, i)) for i in range(count)]
    return Tensor.of(pairs, shape, "complex").in_order()


def _with_slope(x: Tensor, function: Callable[[float], float], slope: float) -> Tensor:
    """Return a function of each number, with a handwritten backward."""
    found = [n.with_slope(function(n.value_of(cell)), cell, slope) for cell in x.numbers()]
    if x.kind == "complex":
        return Tensor.of(list(zip(found[::2], found[1::2], strict=True)), x.shape, x.kind)
    return Tensor.of(found, x.shape, x.kind)


def _rounded(x: Tensor) -> Tensor:
    """Round, with a backward that passes the gradient on."""
    if x.kind != "real":
        raise Refused("real numbers are rounded")
    return _with_slope(x, lambda value: float(round(value)), 1.0)


def _tripled(x: Tensor) -> Tensor:
    """Double, with a backward that triples."""
    return _with_slope(x, lambda value: 2 * value, 3.0)


def _same(x: Tensor) -> Tensor:
    """Return the argument, with a backward that doubles. Nothing says what a write to it is."""
    x.memory.writable = False
    made = _with_slope(x, lambda value: value, 2.0)
    made.memory.writable = False
    return made
