"""Transforms nest freely: every pair and some triples agree with torch.func."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime.func

W = torch.linspace(-1, 1, 25, dtype=torch.float64).reshape(5, 5)


def layer(x: Any) -> Any:
    return torch.tanh(x @ W) * x.exp()


def scalar(x: Any) -> Any:
    return layer(x).sum()


def push(lib: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """The tangent of ``f`` along its own argument, so that it is a function of one
    tensor and nests."""
    return lambda x: lib.jvp(f, (x,), (x,))[1]


def pull(lib: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    def g(x: Any) -> Any:
        out, back = lib.vjp(f, x)
        return back(out)[0]

    return g


def each(lib: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` over a batch made from one argument, and summed over it."""
    return lambda x: lib.vmap(f)(torch.stack([x, 2 * x])).sum(0)


STEPS = {"jvp": push, "vjp": pull, "vmap": each}


@pytest.mark.parametrize("outer", STEPS)
@pytest.mark.parametrize("middle", STEPS)
@pytest.mark.parametrize("inner", STEPS)
def test_three_deep(outer: str, middle: str, inner: str) -> None:
    x = torch.randn(5, dtype=torch.float64)

    def composed(lib: Any) -> Any:
        return STEPS[outer](lib, STEPS[middle](lib, STEPS[inner](lib, layer)))(x)

    torch.testing.assert_close(composed(runtime.func), composed(torch.func))


@pytest.mark.parametrize("name", ["hessian", "jacrev", "jacfwd"])
def test_jacobians(name: str) -> None:
    x = torch.randn(5, dtype=torch.float64)
    ours, theirs = getattr(runtime.func, name), getattr(torch.func, name)
    torch.testing.assert_close(ours(layer)(x), theirs(layer)(x))
    torch.testing.assert_close(
        ours(lambda a, b: (a @ W) * b, argnums=(0, 1))(x, x),
        theirs(lambda a, b: (a @ W) * b, argnums=(0, 1))(x, x),
    )


def test_jacobians_of_trees_in_chunks() -> None:
    x = torch.randn(5, dtype=torch.float64)

    def f(tree: Any) -> Any:
        return {"a": tree["x"].sin(), "b": (tree["x"] * tree["y"], tree["y"].sum())}

    args = {"x": x, "y": x + 1}
    expected = torch.func.jacrev(f)(args)
    torch.testing.assert_close(runtime.func.jacrev(f)(args), expected)
    torch.testing.assert_close(runtime.func.jacrev(f, chunk_size=2)(args), expected)
    torch.testing.assert_close(runtime.func.jacfwd(f)(args), expected)


def test_third_derivative_is_the_same_rule_run_again() -> None:
    x = torch.tensor(0.7, dtype=torch.float64)
    third = runtime.func.grad(runtime.func.grad(runtime.func.grad(torch.sin)))
    torch.testing.assert_close(third(x), -x.cos())


def test_grad_of_one_level_ignores_the_other() -> None:
    """The derivative of x·(d/dy of x·y) by x is 2x: the two levels keep their variables apart
    (perturbation confusion)."""
    x = torch.tensor(3.0)
    found = runtime.func.grad(lambda x: x * runtime.func.grad(lambda y: x * y)(torch.tensor(2.0)))(
        x
    )
    torch.testing.assert_close(found, 2 * x)
    found = runtime.func.jvp(
        lambda x: x * runtime.func.jvp(lambda y: x * y, (x,), (torch.ones(()),))[1],
        (x,),
        (torch.ones(()),),
    )[1]
    torch.testing.assert_close(found, 2 * x)


def test_no_grad_inside_holds_and_outside_does_not() -> None:
    x = torch.tensor(2.0)

    def f(x: Any) -> Any:
        with torch.no_grad():
            c = x * x
        return c * x

    torch.testing.assert_close(runtime.func.grad(f)(x), torch.tensor(4.0))
    with torch.no_grad():
        torch.testing.assert_close(runtime.func.grad(lambda x: x * x)(x), torch.tensor(4.0))


def test_no_grad_inside_holds_for_the_outer_transform_too() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            c = x * x
            b = x * 1
            b.mul_(c)
        return c * x + b

    x = torch.tensor(3.0)
    for lib in (torch.func, runtime.func):
        assert lib.grad(f)(x) == 9
        assert lib.grad(lib.grad(f))(x) == 0
        with torch.no_grad():
            assert lib.grad(lib.grad(lambda x: x**3))(x) == 18


def test_aux_and_value() -> None:
    x = torch.randn(5, dtype=torch.float64)
    grads, (value, aux) = runtime.func.grad_and_value(
        lambda x: (scalar(x), {"twice": 2 * x}), has_aux=True
    )(x)
    torch.testing.assert_close(grads, torch.func.grad(scalar)(x))
    torch.testing.assert_close(value, scalar(x))
    torch.testing.assert_close(aux["twice"], 2 * x)
    assert type(aux["twice"]) is torch.Tensor
    out, back, aux = runtime.func.vjp(lambda x: (layer(x), x + 1), x, has_aux=True)
    torch.testing.assert_close(
        (out, back(out)[0], aux), (layer(x), torch.func.vjp(layer, x)[1](out)[0], x + 1)
    )
    torch.testing.assert_close(
        runtime.func.jvp(lambda x: (layer(x), x), (x,), (x,), has_aux=True)[2], x
    )


def test_eager_session_inside_transforms() -> None:
    """A tensor of level zero that a transform closes over keeps its own history."""
    w = runtime.tensor([1.0, 2.0], requires_grad=True)
    x = torch.tensor([3.0, 4.0])
    g = runtime.func.grad(lambda x: (x * x * w).sum())(x)
    g.sum().backward()
    torch.testing.assert_close(runtime.unwrap(g), 2 * x * torch.tensor([1.0, 2.0]))
    assert w.grad is not None
    torch.testing.assert_close(runtime.unwrap(w.grad), 2 * x)


def test_a_write_under_no_grad_keeps_the_history_of_the_tangent() -> None:
    """ATen's cosine_similarity clamps its norms in place under no_grad; a gradient of a tangent
    must still pass through them."""
    x, y, t, u, g = torch.randn(5, 3, 4, dtype=torch.float64)

    def tangent(module: Any) -> Any:
        return lambda *v: module.jvp(torch.nn.functional.cosine_similarity, v[:2], v[2:])[1]

    found = runtime.func.vjp(tangent(runtime.func), x, y, t, u)[1](g[:, 0])
    torch.testing.assert_close(found, torch.func.vjp(tangent(torch.func), x, y, t, u)[1](g[:, 0]))


def test_a_write_under_no_grad_gives_each_element_its_tangent_where_all_shared_one_before() -> None:
    def power(x: Any) -> Any:
        y = x * 1
        with torch.no_grad():
            y *= x
        return y

    x, t = W[:2], W[3]
    found = runtime.func.vmap(lambda x: runtime.func.jvp(power, (x,), (t,))[1])(x)
    torch.testing.assert_close(found, 2 * x * t)


def test_a_list_may_hold_values_of_several_transforms_and_tensors_of_none() -> None:
    plain = torch.tensor([2.0])

    def f(lib: Any, x: Any) -> Any:
        inner = lib.grad(
            lambda y: (torch.cat([x, y, plain]) ** 3).sum() * torch.stack([plain, y * x, y]).prod()
        )
        return inner(x).sum()

    expected = torch.func.grad(lambda x: f(torch.func, x))(torch.tensor([1.5]))
    torch.testing.assert_close(
        runtime.func.grad(lambda x: f(runtime.func, x))(torch.tensor([1.5])), expected
    )
