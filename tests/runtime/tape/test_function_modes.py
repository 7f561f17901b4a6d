"""What a mode over torch's functions sees of a backward pass: programs of the user's, and no call
of our formulas, as in torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import runtime


class Seen(TorchFunctionMode):
    """Notes the names of the functions that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(getattr(func, "__name__", ""))
        return func(*args, **kwargs or {})


def _seen_of_torch(f: Callable[[Tensor], Tensor]) -> set[str]:
    x = torch.ones(3, requires_grad=True)
    y = f(x).sum()
    seen = Seen()
    # around the engine alone: of `torch.autograd.grad` the mode sees the call, and nothing in it
    with seen:
        (g,) = torch.autograd.Variable._execution_engine.run_backward(
            (y,), (torch.ones(()),), False, False, (x,), True, False
        )
    assert g.shape == (3,)
    return seen.names


def _seen_of_ours(f: Callable[[Any], Any]) -> set[str]:
    x = runtime.tensor([1.0, 1.0, 1.0], requires_grad=True)
    y = f(x).sum()
    seen = Seen()
    with seen:
        (g,) = runtime.autograd.grad(y, x)
    assert g.shape == (3,)
    return seen.names


@pytest.mark.parametrize(
    "f", [lambda x: x.sin(), lambda x: (x * x).tanh(), lambda x: x.exp().cumsum(0)]
)
def test_it_sees_no_call_of_a_formula(f: Callable[[Any], Any]) -> None:
    formulas = {"cos", "mul", "neg", "tanh_backward", "flip", "cumsum", "expand", "add"}
    assert formulas.isdisjoint(_seen_of_torch(f))
    assert formulas.isdisjoint(_seen_of_ours(f))


def test_it_sees_a_hook() -> None:
    def hooked(x: Any) -> Any:
        y = x * 2
        y.register_hook(lambda g: g.erf())
        return y

    assert "erf" in _seen_of_torch(hooked) and "erf" in _seen_of_ours(hooked)


def test_it_sees_an_unpack_hook() -> None:
    def packed(hooks: Any, x: Any) -> Any:
        with hooks(lambda t: t, lambda t: t.atan()):
            return x.sin()

    assert "atan" in _seen_of_torch(lambda x: packed(torch.autograd.graph.saved_tensors_hooks, x))
    assert "atan" in _seen_of_ours(lambda x: packed(runtime.autograd.graph.saved_tensors_hooks, x))


def test_it_sees_the_backward_of_a_function() -> None:
    def scaled(function: Any, x: Any) -> Any:
        class Scaled(function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g.erf()

        return Scaled.apply(x)

    assert "erf" in _seen_of_torch(lambda x: scaled(torch.autograd.Function, x))
    assert "erf" in _seen_of_ours(lambda x: scaled(runtime.autograd.Function, x))
