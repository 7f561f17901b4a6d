"""Tangents in other memory than their primals: a view shows of both the same elements."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.func import functionalize, jacfwd, jvp, linearize, vmap

Tensor = torch.Tensor
X = torch.arange(1.0, 17.0, dtype=torch.float64).view(4, 4) / 16

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "as_strided": lambda y: y.as_strided((2, 2), (3, 1), 1),
    "view": lambda y: y.view(2, 8)[1],
    "as_strided of a view": lambda y: y.view(16).as_strided((3,), (2,), 2),
}
WAYS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "jvp": lambda f, x, t: jvp(f, (x,), (t,))[1],
    "jacfwd": lambda f, x, t: tuple((j * t).sum((-1, -2)) for j in jacfwd(f)(x)),
    "linearize": lambda f, x, t: linearize(f, x)[1](t),
    "functionalize of jvp": lambda f, x, t: functionalize(lambda *a: jvp(f, a[:1], a[1:])[1])(x, t),
    "vmap of jvp": lambda f, x, t: tuple(
        o[0] for o in vmap(lambda s: jvp(f, (x,), (s,))[1], in_dims=2)(torch.stack([t, 2 * t], 2))
    ),
}


def written_through(view: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        v = view(y)
        v.sin_()
        return y * 1, v * 1

    return program


def written_below(view: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        v = view(y)
        y.sin_()
        return y * 1, v * 1

    return program


@pytest.mark.parametrize("written", [written_through, written_below])
@pytest.mark.parametrize(
    ("view", "x"),
    [
        ("as_strided", X),
        ("as_strided", X.t()),
        ("as_strided of a view", X),
        ("view", X),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_view_of_a_tangent_is_that_of_its_primal(
    way: str, view: str, x: Tensor, written: Any
) -> None:
    f = written(VIEWS[view])
    t = X.cos() if x.stride() != X.stride() else X.cos().t()  # of other strides than x
    step = 1e-6
    expected = tuple(
        (b - a) / (2 * step)
        for a, b in zip(f(x.clone().sub_(step * t)), f(x.clone().add_(step * t)), strict=True)
    )
    torch.testing.assert_close(WAYS[way](f, x, t), expected, rtol=1e-6, atol=1e-6)
