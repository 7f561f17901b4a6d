"""The modules and arrays that a program calls by name, for tensors of the model.

    block = Block(numbers(3, seed=36))
    block.register_forward_hook(doubled)
    np.clip(a.numpy(), -0.5, 0.5)       # with `np` an object of `Arrays`

:mod:`gen.grammar.prelude` has those for torch. An array is a tensor without a history here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gen.grammar.prelude import raised
from gen.reference.model import chain_rule
from gen.reference.model.cell_geometry import Refused
from gen.reference.model.model_tensor import Tensor, joined

Hook = Callable[..., Any]


class Arrays:
    """The functions of NumPy that a program calls."""

    @staticmethod
    def array(x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    @staticmethod
    def sin(x: Tensor) -> Tensor:
        """Return the sines."""
        return x.sin().detach()

    @staticmethod
    def multiply(x: Tensor, y: Tensor | float) -> Tensor:
        """Return the product."""
        return x.mul(y).detach()

    @staticmethod
    def clip(x: Tensor, low: float, high: float) -> Tensor:
        """Return the numbers between two others, and these where they are outside."""
        raised = x.clamp(min=low)
        return raised.where(Tensor.of([high], ()).gt(raised), high)

    @staticmethod
    def where(condition: Tensor, one: float, other: float) -> Tensor:
        """Return one of two numbers for each truth."""
        chosen = Tensor.of([one], ()).where(condition, other)
        return chosen.clone()

    @staticmethod
    def cumsum(x: Tensor, axis: int) -> Tensor:
        """Return the sums up to each number of a dimension."""
        return x.cumsum(axis)

    @staticmethod
    def concatenate(parts: Sequence[Tensor]) -> Tensor:
        """Return arrays one after another."""
        return joined(parts, 0)

    @staticmethod
    def mean(x: Tensor) -> float:
        """Return the mean of all numbers."""
        return x.mean().item()


class Layer:
    """A linear layer: ``x @ weight.t() + bias``."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return x.matmul(self.weight.t()) + self.bias

    def requires_grad_(self, flag: bool) -> None:
        """Let results have a history by the parameters, or none."""
        self.weight.history = self.bias.history = flag


class Norm:
    """Batch normalization of three columns, with running statistics.

    The momentum of a tenth and the epsilon of 1e-5 are the defaults of ``torch.nn.BatchNorm1d``.
    """

    def __init__(self) -> None:
        self.training = True
        self.mean = Tensor.of([0.0] * 3, (3,))
        self.variance = Tensor.of([1.0] * 3, (3,))

    def eval(self) -> None:
        """Use the running statistics from now on."""
        self.training = False

    def __call__(self, x: Tensor) -> Tensor:
        if x.kind != "real" or x.dim() != 2 or x.shape[1] != 3:
            raise Refused("a batch of three columns")
        if not self.training:
            return (x - self.mean) * (self.variance + 1e-5)._each(chain_rule.reciprocal_root)
        count = x.shape[0]
        if count < 2:
            raise Refused("a batch of one has no variance")
        mean = x.sum(0) * (1.0 / count)
        variance = (x - mean).square().sum(0) * (1.0 / count)
        # As torch: the running variance is the unbiased one, but the batch is divided by the other.
        self._note(mean.detach(), variance.detach() * (count / (count - 1)))
        return (x - mean) * (variance + 1e-5)._each(chain_rule.reciprocal_root)

    def _note(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics a tenth of the way."""
        self.mean = self.mean * 0.9 + mean * 0.1
        self.variance = self.variance * 0.9 + variance * 0.1


class Counter:
    """A module whose buffer adds up what it has seen."""

    def __init__(self, total: Tensor) -> None:
        self.total = total

    def __call__(self, x: Tensor) -> Tensor:
        self.total.add_(x.detach().sum())
        return x * self.total


class Block:
    """A weight, a function and a number, all of which may be replaced, and hooks."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.factor = 1.5
        self.activation: Callable[[Tensor], Tensor] = Tensor.sin
        self.before: list[Hook] = []
        self.after: list[Hook] = []
        self.handle = Handle(self.after, raised)

    def __call__(self, x: Tensor) -> Tensor:
        for hook in self.before:
            (x,) = hook(self, (x,))
        result: Tensor = self.forward(x)
        for hook in self.after:
            result = hook(self, (x,), result)
        return result

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x * self.weight) * self.factor

    def plain(self, x: Tensor) -> Tensor:
        """Return what a program may put in place of ``forward``."""
        return x * self.weight

    def register_forward_hook(self, hook: Hook) -> Handle:
        """Let `hook` change results from now on."""
        return Handle(self.after, hook)

    def register_forward_pre_hook(self, hook: Hook) -> Handle:
        """Let `hook` change arguments from now on."""
        return Handle(self.before, hook)


class Handle:
    """A hook among others, which may be removed."""

    def __init__(self, hooks: list[Hook], hook: Hook) -> None:
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)

    def remove(self) -> None:
        """Let results be as they are without the hook."""
        if self.hook in self.hooks:
            self.hooks.remove(self.hook)
