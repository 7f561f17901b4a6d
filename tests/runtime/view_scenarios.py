"""The same program of views and writes run on torch's engine and on ours: values, dtypes and
errors must agree."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import runtime
from runtime import unwrap

from .errors import told


def _torch_leaf(*shape: int) -> Any:
    return (
        torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=torch.float64)
        .reshape(shape)
        .clone()
        .requires_grad_()
    )


def _our_leaf(*shape: int) -> Any:
    return runtime.wrap(_torch_leaf(*shape).detach(), True)


TORCH = SimpleNamespace(
    leaf=_torch_leaf, tensor=torch.tensor, grad=torch.autograd.grad, plain=lambda t: t
)
OURS = SimpleNamespace(
    leaf=_our_leaf, tensor=runtime.tensor, grad=runtime.autograd.grad, plain=runtime.wrap
)
Scenario = Callable[[Any], Any]


def shown(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return unwrap(x).detach().tolist(), x.dtype
    return [shown(y) for y in x] if isinstance(x, (list, tuple)) else x


def outcome(scenario: Scenario, lib: Any) -> Any:
    """What ``scenario`` returns, or what its RuntimeError tells."""
    try:
        return shown(scenario(lib))
    except RuntimeError as e:
        return ": ".join(told(e))


def same(scenario: Scenario, *, error: bool = False) -> None:
    expected = outcome(scenario, TORCH)
    assert isinstance(expected, str) is error
    assert outcome(scenario, OURS) == expected


def name(t: Any) -> str | None:
    return None if t.grad_fn is None else t.grad_fn.name()


def gradients(lib: Any, y: Any, *xs: Any) -> Any:
    return lib.grad(y.sum(), xs, allow_unused=True)


def no_grad_view(y: Any) -> Any:
    with torch.no_grad():
        return y[1:]
