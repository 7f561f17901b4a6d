"""Formulas that run once on a whole batch return the same as formulas that run on each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.extend import Value
from runtime.func import grad, jvp, vjp, vmap

torch.manual_seed(0)
X, ROW, S = (
    torch.randn(3, 4, 5, dtype=torch.float64),
    torch.randn(5, dtype=torch.float64),
    torch.randn(3, dtype=torch.float64),
)


def _dispatches(monkeypatch: pytest.MonkeyPatch, f: Callable[[], Any]) -> int:
    seen: list[Any] = []
    dispatch = Value.__torch_dispatch__.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(func)
        return dispatch(cls, func, types, args, kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Value, "__torch_dispatch__", classmethod(counted))
        f()
    return len(seen)


@pytest.mark.parametrize(
    "f",
    (
        lambda x: (torch.sin(x) * x).sum(),
        lambda x: (x * ROW).tanh().sum(),
        lambda x: (x / (1 + ROW.exp())).pow(3).sum(),
        lambda x: torch.logaddexp(x, ROW).sum(),
        lambda x: (x.reshape(20) * 2).sigmoid().sum(),
        lambda x: (x @ x.mT).relu().sum(),
        lambda x: torch.bmm(x.unsqueeze(0), x.mT.unsqueeze(0)).sum(),
    ),
)
def test_gradients_of_a_batch_are_those_of_its_elements(f: Callable[..., Any]) -> None:
    torch.testing.assert_close(vmap(grad(f))(X), torch.stack([grad(f)(x) for x in X]))
    torch.testing.assert_close(
        vmap(grad(lambda x: grad(f)(x).square().sum()))(X), torch.stack([_twice(f, x) for x in X])
    )


def _twice(f: Callable[..., Any], x: torch.Tensor) -> Any:
    return grad(lambda y: grad(f)(y).square().sum())(x)


def test_a_broadcast_argument_gets_the_sum_of_each_element() -> None:
    f = grad(lambda row, x: (x * row).sin().sum())
    torch.testing.assert_close(
        vmap(f, in_dims=(None, 0))(ROW, X), torch.stack([f(ROW, x) for x in X])
    )
    keep = torch.randn(4, 1, dtype=torch.float64)
    torch.testing.assert_close(
        vmap(f, in_dims=(None, 0))(keep, X), torch.stack([f(keep, x) for x in X])
    )


def test_a_batch_of_numbers_is_promoted_as_each_of_them() -> None:
    wider = torch.tensor(2.0, dtype=torch.float64)
    for f in (lambda s: s * wider, lambda s: wider - s, lambda s: torch.where(s > 0, s, wider)):
        out = vmap(f)(S.float())
        assert out.dtype is torch.float64
        torch.testing.assert_close(out, torch.stack([f(s) for s in S.float()]))
    f = grad(lambda s, x: (s * x).sum())
    torch.testing.assert_close(
        vmap(f, in_dims=(0, None))(S, X), torch.full((3,), X.sum().item(), dtype=torch.float64)
    )


def test_cotangents_alone_may_be_batched() -> None:
    x = X[0]
    out, pullback = vjp(lambda y: (y * ROW).tanh(), x)
    cotangents = torch.randn(7, *out.shape, dtype=torch.float64)
    torch.testing.assert_close(
        vmap(pullback)(cotangents)[0], torch.stack([pullback(c)[0] for c in cotangents])
    )


def test_tangents_of_ops_with_several_results_keep_those_without_one() -> None:
    def f(x: torch.Tensor) -> Any:
        return jvp(lambda y: torch.frexp(y).mantissa, (x,), (torch.ones_like(x),))[1]

    torch.testing.assert_close(vmap(f)(X), torch.stack([f(x) for x in X]))


def test_a_shell_of_a_shell_follows_a_change_of_geometry() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.t_()
        assert y.shape == (5, 4) and (y * 1).shape == (5, 4)
        return (y * torch.arange(20.0, dtype=torch.float64).reshape(5, 4)).sum()

    torch.testing.assert_close(vmap(grad(f))(X), torch.stack([grad(f)(x) for x in X]))


def test_an_elementwise_formula_costs_no_dispatch_for_each_of_its_ops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asinh' = (x² + 1)^(-1/2): four ops, of which none passes through the dispatcher."""
    _, pullback = vjp(torch.asinh, X[0])
    cotangents = torch.randn(7, 4, 5, dtype=torch.float64)
    assert _dispatches(monkeypatch, lambda: vmap(pullback)(cotangents)) == 0
