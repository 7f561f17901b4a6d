"""Ops that change sizes and strides in place do so at every level: the value, its derivative and
its views are those of the view op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop
from runtime.autograd import forward_ad
from runtime.func import functionalize, grad, jvp, vmap

Op = Callable[[Any], Any]
OPS: dict[str, tuple[Op, Op]] = {  # of a tensor of shape (2, 1, 3): in place, and the view
    "t_": (lambda y: y.squeeze_(1).t_(), lambda y: y.squeeze(1).t()),
    "transpose_": (lambda y: y.transpose_(0, 2), lambda y: y.transpose(0, 2)),
    "swapaxes_": (lambda y: y.swapaxes_(0, 1), lambda y: y.swapaxes(0, 1)),
    "swapdims_": (lambda y: y.swapdims_(-1, 0), lambda y: y.swapdims(-1, 0)),
    "unsqueeze_": (lambda y: y.unsqueeze_(-1), lambda y: y.unsqueeze(-1)),
    "squeeze_": (lambda y: y.squeeze_(), lambda y: y.squeeze()),
    "squeeze_ of a dimension": (lambda y: y.squeeze_(1), lambda y: y.squeeze(1)),
    "as_strided_": (
        lambda y: y.as_strided_((3, 2), (1, 3)),
        lambda y: y.as_strided((3, 2), (1, 3)),
    ),
}
X = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(2, 1, 3)


def _programs(name: str, then: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    in_place, view = OPS[name]

    def write(y: Any) -> Any:
        return {"nothing": lambda: y, "a write": lambda: y.mul_(3), "a part": lambda: y[0].mul_(3)}[
            then
        ]()

    def ours(x: Any) -> Any:
        y = x * x
        assert in_place(y) is y
        write(y)
        return y

    def theirs(x: Any) -> Any:
        y = view(x * x)
        write(y)
        return y

    return ours, theirs


RUNS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "jvp": lambda f: jvp(f, (X,), (X + 1,)),
    "grad": lambda f: grad(lambda x: (f(x) * f(x).detach()).sum())(X),
    "vmap": lambda f: vmap(f)(torch.stack([X, -X])),
    "vmap of jvp": lambda f: vmap(lambda x: jvp(f, (x,), (x,)))(torch.stack([X, 2 * X])),
    "jvp of grad": lambda f: jvp(grad(lambda x: (f(x) * f(x)).sum()), (X,), (X,)),
    "functionalize": lambda f: functionalize(f)(X),
    "jvp of functionalize": lambda f: jvp(functionalize(f), (X,), (X,)),
    "compiled": lambda f: aot_function(f, nop)(X),
    "the session": lambda f: _in_session(f),
    "a dual level": lambda f: _dual(f),
}


def _in_session(f: Callable[[Any], Any]) -> Any:
    x = runtime.wrap(X.clone(), requires_grad=True)
    y = f(x)
    (g,) = runtime.autograd.grad((y * y.detach()).sum(), x)
    return runtime.unwrap(y.detach()), runtime.unwrap(g)


def _dual(f: Callable[[Any], Any]) -> Any:
    with forward_ad.dual_level():
        found: Any = forward_ad.unpack_dual(f(forward_ad.make_dual(runtime.wrap(X.clone()), X + 1)))
        return runtime.unwrap(found.primal), runtime.unwrap(found.tangent)


@pytest.mark.parametrize("then", ["nothing", "a write", "a part"])
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("run", [r for r in RUNS if r != "a dual level"])
def test_a_change_of_geometry_in_place_gives_what_the_view_gives(
    run: str, name: str, then: str
) -> None:
    ours, theirs = _programs(name, then)
    found, expected = RUNS[run](ours), RUNS[run](theirs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [n for n in OPS if n != "as_strided_"])
def test_a_dual_tensor_keeps_its_tangent(name: str) -> None:
    ours, theirs = _programs(name, "nothing")
    torch.testing.assert_close(_dual(ours), _dual(theirs), rtol=0, atol=0)


@pytest.mark.parametrize("name", OPS)
def test_the_value_shows_its_new_sizes_inside_the_program(name: str) -> None:
    in_place, view = OPS[name]
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = x * 1
        in_place(y)
        seen.append(_shown(y))
        return y.sum()

    for transform in (
        lambda f: jvp(f, (X,), (X,)),
        lambda f: grad(f)(X),
        lambda f: vmap(f)(X[None]),
        lambda f: functionalize(f)(X),
    ):
        transform(f)  # type: ignore[no-untyped-call]
    assert seen == [_shown(view(X))] * 4


def _shown(y: Any) -> Any:
    """Sizes, and strides where there are several elements."""
    return (
        tuple(y.shape),
        [s for s, n in zip(y.stride(), y.shape, strict=True) if n > 1],
        y.numel(),
        y.dim(),
    )


BESIDE: dict[str, Op] = {
    "diagonal": lambda y: y.diagonal().as_strided((2,), (1,), 1),
    "columns": lambda y: y[:, ::2].as_strided((2,), (1,), 0),
    "another row": lambda y: y[0].as_strided((2,), (3,), 0),
    "after a write": lambda y: y.mul_(2)[1].as_strided((2,), (2,), 0),
}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("turned", [False, True])
def test_a_view_by_strides_beside_a_view_has_the_tangent_of_the_base(
    name: str, turned: bool
) -> None:
    def f(x: Any) -> Any:
        return BESIDE[name](x * 1)

    x = torch.rand(2, 3, dtype=torch.float64)
    t = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)
    expected = f(t)  # it is linear
    for given in (t, t.t().contiguous().t(), t[:1].expand(2, 3) + t - t[:1]):
        torch.testing.assert_close(jvp(f, (x,), (given,))[1], expected)
    if turned:
        x, expected = x.t().contiguous().t(), f(t.t().contiguous().t())
        torch.testing.assert_close(jvp(f, (x,), (t,))[1], expected)
