"""Define the functions, layers and inputs that a program calls by name, for tensors of torch.

A program is text such as ``rounded(leaf(numbers(3)))``, which runs with the names of a
:class:`World`. The script of a finding contains this file, so the file imports nothing of the
project.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint

DTYPES = {"double": (torch.float64, torch.complex128), "single": (torch.float32, torch.complex64)}


def value(seed: int, index: int) -> float:
    """Return the number at an index of an input: one of -1.875, -1.625, …, 2.125."""
    # Quarters plus an eighth are exact in single precision, and never 0.
    return ((seed * 7 + index * 5 + 3) % 17 - 8) / 4 + 0.125


class Rounded(torch.autograd.Function):
    """Round, with a backward that passes the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Tripled(torch.autograd.Function):
    """Double, with a backward that triples."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


class Same(torch.autograd.Function):
    """Return a view of the argument, with a backward that doubles."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


class Scaled(torch.autograd.Function):
    """Double the argument in place, with a backward that triples."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


class Pair(torch.autograd.Function):
    """Return two results, with a backward whose weights are not their derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, one: Any, two: Any) -> Any:
        return one * 5 + two * 7


class Halted(torch.autograd.Function):
    """Return a result without a gradient, and one whose backward is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        fixed = x * 2
        ctx.mark_non_differentiable(fixed)
        return fixed, x * 3

    @staticmethod
    def backward(ctx: Any, fixed: Any, gradient: Any) -> Any:
        return gradient * 4


class Named(torch.Tensor):
    """A subclass that changes nothing."""


class Counter(torch.nn.Module):
    """A module whose buffer adds up what it has seen."""

    def __init__(self, total: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("total", total)

    def forward(self, x: Any) -> Any:
        self.total.add_(x.detach().sum())  # type: ignore[operator]
        return x * self.total


def raised(module: Any, arguments: Any, result: Any) -> Any:
    """Add one to the result of a module, as a hook."""
    return result + 1


def doubled(module: Any, arguments: Any, result: Any) -> Any:
    """Double the result of a module, as a hook."""
    return result * 2


def halved(module: Any, arguments: Any) -> Any:
    """Halve the argument of a module, as a hook."""
    return (arguments[0] * 0.5,)


class Block(torch.nn.Module):
    """A weight, a function and a number, all of which may be replaced, and a hook."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.factor = 1.5
        self.activation = torch.sin
        self.handle = self.register_forward_hook(raised)

    def forward(self, x: Any) -> Any:
        return self.activation(x * self.weight) * self.factor

    def plain(self, x: Any) -> Any:
        """Return the product alone. A program may put this method in place of ``forward``."""
        return x * self.weight


def closure() -> tuple[Callable[[Any], Any], Callable[[float], None]]:
    """Return a function that multiplies by a number of its closure, and one that sets it."""
    factor = 1.5

    def times(x: Any) -> Any:
        return x * factor

    def rebind(number: float) -> None:
        nonlocal factor
        factor = number

    return times, rebind


def turned_rows(x: Any) -> Iterator[Any]:
    """Yield the rows from the last to the first. Multiply the first by 1, the second by 2, …"""
    for number, row in enumerate(reversed(list(x))):
        yield row * (number + 1)


def rows_until(x: Any, limit: float) -> Iterator[Any]:
    """Yield the double of each row, up to the first later row whose sum exceeds a limit."""
    for number, row in enumerate(x):
        if number and row.sum() > limit:
            return
        yield row * 2


@contextmanager
def factor_of(options: Options, factor: float) -> Iterator[None]:
    """Give the options another factor until the block ends."""
    before, options.factor = options.factor, factor
    try:
        yield
    finally:
        options.factor = before


@torch.no_grad()
def unrecorded_product(x: Any, y: Any) -> Any:
    """Return a product without a history."""
    return x * y


@torch.no_grad()
def unrecorded_row(x: Any) -> Any:
    """Return a view without a history."""
    return x[0]


@torch.enable_grad()
def recorded_product(x: Any, y: Any) -> Any:
    """Return a product with a history, also inside of ``no_grad``."""
    return x * y


class Options:
    """Numbers that a program reads, and that change between calls."""

    def __init__(self) -> None:
        self.count = 2
        self.factor = 1.5


class World:
    """The names of one program, and the leaves that it has made."""

    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []
        self.dtypes = DTYPES["double"]
        self.options = Options()
        # The seeds of the layers differ from those of a program's inputs, which are smaller.
        layer = torch.nn.Linear(3, 3, dtype=torch.float64)
        layer.weight = torch.nn.Parameter(self._numbers(3, 3, seed=31))
        layer.bias = torch.nn.Parameter(self._numbers(3, seed=32))
        block = Block(self._numbers(3, seed=36))
        times, rebind = closure()
        self.leaves += [layer.weight, layer.bias]
        self.names: dict[str, Any] = {
            "torch": torch,
            "numbers": self._numbers,
            "complex_numbers": self._complex_numbers,
            "leaf": self._leaf,
            "rounded": Rounded.apply,
            "tripled": Tripled.apply,
            "same": Same.apply,
            "doubled_in": Scaled.apply,
            "pair": Pair.apply,
            "halted": Halted.apply,
            "inferred": inferred,
            "Named": Named,
            "noise": noise,
            "from_bits": from_bits,
            "np": np,
            "block": block,
            "parameter": self._parameter,
            "doubled": doubled,
            "halved": halved,
            "factor_of": factor_of,
            "rows_until": rows_until,
            "turned_rows": turned_rows,
            "unrecorded_product": unrecorded_product,
            "unrecorded_row": unrecorded_row,
            "recorded_product": recorded_product,
            "times": times,
            "rebind": rebind,
            "options": self.options,
            "offset": self._numbers(3, seed=34),
            "norm": torch.nn.BatchNorm1d(3, affine=False, dtype=torch.float64),
            "checkpoint": checkpoint,
            "hook": hook,
            "layer": layer,
            "counter": Counter(self._numbers(seed=33)),
        }

    def set_dtype(self, name: str) -> None:
        """Let inputs have another precision from now on."""
        self.dtypes = DTYPES[name]

    def _leaf(self, x: torch.Tensor) -> torch.Tensor:
        self.leaves.append(x.requires_grad_())
        return x

    def _parameter(self, x: torch.Tensor) -> torch.nn.Parameter:
        parameter = torch.nn.Parameter(x)
        self.leaves.append(parameter)
        return parameter

    def _numbers(self, *shape: int, seed: int = 0) -> torch.Tensor:
        numbers = [value(seed, index) for index in range(math.prod(shape))]
        # A reshaped tensor is a view of another one, but an input has to own its memory.
        return torch.tensor(numbers, dtype=self.dtypes[0]).reshape(shape).clone()

    def _complex_numbers(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return torch.complex(self._numbers(*shape, seed=seed), self._numbers(*shape, seed=seed + 7))


def checkpoint(function: Any, *arguments: Any) -> Any:
    """Call a function without saving its intermediate results. Backward computes it again."""
    return torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)


def inferred(x: torch.Tensor) -> torch.Tensor:
    """Return a copy that is an inference tensor."""
    with torch.inference_mode():
        return x.clone()


def from_bits(x: torch.Tensor) -> torch.Tensor:
    """Return a view of the numbers through a view of their bits as integers."""
    integers = {torch.float64: torch.int64, torch.float32: torch.int32}[x.dtype]
    return x.view(integers).view(x.dtype)


def noise(x: torch.Tensor) -> torch.Tensor:
    """Return random numbers, as many as `x` has."""
    return torch.rand(x.shape, dtype=torch.float64)


def hook(x: torch.Tensor, factor: float) -> None:
    """Multiply the gradient of `x` by a factor, with a hook."""
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * factor)
