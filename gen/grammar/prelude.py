"""What a program calls by name, for tensors of torch. A script of a finding has this file."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.utils.checkpoint

DTYPES = {"double": (torch.float64, torch.complex128), "single": (torch.float32, torch.complex64)}


def value(seed: int, i: int) -> float:
    """Return number `i` of an input."""
    # An eighth off the quarters: exact in single precision, and never 0.
    return ((seed * 7 + i * 5 + 3) % 17 - 8) / 4 + 0.125


class Rounded(torch.autograd.Function):
    """Rounds, with a backward that passes the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Tripled(torch.autograd.Function):
    """Doubles, with a backward that triples."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


class Same(torch.autograd.Function):
    """Returns its argument, with a backward that doubles."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


class Scaled(torch.autograd.Function):
    """Doubles its argument in place, with a backward that triples."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


class Pair(torch.autograd.Function):
    """Returns two results, with a backward that weighs them otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, one: Any, two: Any) -> Any:
        return one * 5 + two * 7


class Halted(torch.autograd.Function):
    """Returns a result that has no gradient, and one whose backward is not its derivative."""

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
        layer = torch.nn.Linear(3, 3, dtype=torch.float64)
        layer.weight = torch.nn.Parameter(self._numbers(3, 3, seed=31))
        layer.bias = torch.nn.Parameter(self._numbers(3, seed=32))
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

    def _numbers(self, *shape: int, seed: int = 0) -> torch.Tensor:
        numbers = [value(seed, index) for index in range(math.prod(shape))]
        # a copy, since a reshaped tensor is a view
        return torch.tensor(numbers, dtype=self.dtypes[0]).reshape(shape).clone()

    def _complex_numbers(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return torch.complex(self._numbers(*shape, seed=seed), self._numbers(*shape, seed=seed + 7))


def checkpoint(function: Any, *arguments: Any) -> Any:
    """Compute the function again in the backward pass."""
    return torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)


def inferred(x: torch.Tensor) -> torch.Tensor:
    """Return a copy that is a tensor of inference mode."""
    with torch.inference_mode():
        return x.clone()


def from_bits(x: torch.Tensor) -> torch.Tensor:
    """Return a view of the bits as integers, seen as numbers again."""
    integers = {torch.float64: torch.int64, torch.float32: torch.int32}[x.dtype]
    return x.view(integers).view(x.dtype)


def noise(x: torch.Tensor) -> torch.Tensor:
    """Return random numbers, as many as `x` has."""
    return torch.rand(x.shape, dtype=torch.float64)


def hook(x: torch.Tensor, factor: float) -> None:
    """Multiply the gradient of `x`."""
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * factor)
