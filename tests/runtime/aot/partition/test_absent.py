"""Backward graphs without the derivatives of results that take no part."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop, scan


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cotangent_has_the_strides_of_the_sum_that_it_stands_for(
    order: tuple[int, int], dynamic: bool
) -> None:
    def f(x: Any) -> Any:
        v = x.view(2, 3)
        return v.sum(0) * 2, v.sin()

    def seen(x: Any, f: Any, grad: Any) -> list[Any]:
        found = []
        for i in order:
            (g,) = grad(f(x)[i].sum().sin(), x, create_graph=True)
            (h,) = grad(g.square().sum(), x)
            found += [runtime.unwrap(g.detach()), runtime.unwrap(h)]
        return found

    expected = seen(torch.arange(6.0).requires_grad_(), f, torch.autograd.grad)
    found = seen(
        runtime.wrap(torch.arange(6.0), requires_grad=True),
        aot_function(f, nop, dynamic=dynamic),
        runtime.autograd.grad,
    )
    torch.testing.assert_close(found, expected)


class OneMore(torch.autograd.Function):
    """A derivative that is not linear in its cotangent: one sees whether it has run."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g + 1


class OneMoreHere(runtime.autograd.Function):
    forward = staticmethod(OneMore.forward)
    backward = staticmethod(OneMore.backward)


def transposed(add: Any) -> dict[str, Any]:
    """Programs that differentiate through transposed and broadcast values, some of whose
    cotangents are absent."""
    return {
        "a stack of transposed parts": lambda x: (lambda a, b: (add(a.t()), b.t() * 2))(
            *x.view(2, 2, 3).unbind()
        ),
        "transposed and returned": lambda x: (lambda a, b: (a.log(), b.sin()))(
            *x.view(2, 2, 3).transpose(1, 2).unbind()
        ),
        "a product and a factor": lambda x: (lambda y: (y.t() @ y, add(y).t(), y.t() * 3))(
            x.view(4, 3)
        ),
        "a difference": lambda x: (lambda y, z: (y - z, add(z), y.log()))(
            x.view(3, 4).t(), x.view(4, 3) * 2
        ),
        "doubles of a part": lambda x: (lambda a, b: (a.double().t().exp(), b.t() * 2, add(a)))(
            *x.view(2, 3, 2).unbind()
        ),
        "complex parts": lambda x: (lambda c: (c.real.log(), c.imag * 3, c.abs()))(
            torch.complex(x.view(3, 4).t() + 1, x.view(4, 3) + 1)
        ),
        "an expanded part": lambda x: (lambda a, b: (a.expand(3, 6).log(), b * 3))(
            *x.view(2, 6).unbind()
        ),
        "pieces of one": lambda x: (lambda a, b, c: (add(a), b.log(), c * c))(
            *x.view(3, 4).t().split([1, 2, 1])
        ),
        "a cat of differences": lambda x: (lambda y: (y[:5] - y[1:], add(y[0]), y.sum(0)))(
            torch.cat([x.view(4, 3).t(), x.view(3, 4)])
        ),
    }


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", transposed(None))
def test_any_results_of_transposed_values_can_be_differentiated_twice(
    name: str, dynamic: bool
) -> None:
    plain, f = (
        transposed(OneMore.apply)[name],
        aot_function(transposed(OneMoreHere.apply)[name], nop, dynamic=dynamic),
    )
    start = torch.arange(12.0)

    def seen(x: Any, outs: Any, which: tuple[int, ...], grad: Any) -> list[Any]:
        loss = sum((outs[i] * (outs[i].detach() + 1)).sum().real for i in which)
        (g,) = grad(loss, x, create_graph=True)
        (h,) = grad((g * g.detach()).sum(), x, allow_unused=True) if g.requires_grad else (None,)
        return [runtime.unwrap(g.detach()), torch.zeros(12) if h is None else runtime.unwrap(h)]

    number = len(plain(start))
    for which in itertools.chain.from_iterable(
        itertools.combinations(range(number), k) for k in range(1, number + 1)
    ):
        x, y = start.clone().requires_grad_(), runtime.wrap(start, requires_grad=True)
        expected, found = (
            seen(x, plain(x), which, torch.autograd.grad),
            seen(y, f(y), which, runtime.autograd.grad),
        )
        where = partial("results {}: {}".format, which)
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4, msg=where)


def test_steps_whose_elements_all_are_absent_are_as_many_as_before() -> None:
    """The derivative of the second result alone takes elements, none of which is there."""

    def f(x: Any) -> Any:
        return scan(lambda carry, e: (carry * 2, e * 3), x[:4] * 1, x.view(3, 4), unroll=False)

    compiled = aot_function(f, nop)
    for which, expected in ((0, [8.0] * 4 + [0.0] * 8), (1, [3.0] * 12)):
        x: Any = runtime.wrap(torch.arange(12.0), requires_grad=True)
        (g,) = runtime.autograd.grad(compiled(x)[which].sum(), x)
        assert g.tolist() == expected
