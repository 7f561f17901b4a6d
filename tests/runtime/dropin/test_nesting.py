"""Transforms of this package and of torch in one another, without the drop-in: right, or refused
with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, functional

import runtime
from runtime import aot, func

x = torch.tensor([[0.5, 2.0], [1.5, -1.0]], dtype=torch.float64)


def f(v: torch.Tensor) -> torch.Tensor:
    return (v.sin() * v).sum(0)


def number(v: torch.Tensor) -> torch.Tensor:
    return f(v).pow(2).sum()


OURS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda v: func.grad(number)(v),
    "vjp": lambda v: func.vjp(f, v)[1](v[0])[0],
    "jvp": lambda v: func.jvp(f, (v,), (v.cos(),))[1],
    "linearize": lambda v: func.linearize(f, v)[1](v.cos()),
    "jacrev": lambda v: func.jacrev(f)(v),
    "jacfwd": lambda v: func.jacfwd(f)(v),
    "hessian": lambda v: func.hessian(number)(v),
    "vmap": lambda v: func.vmap(torch.sin)(v),
    "functionalize": lambda v: func.functionalize(lambda w: w.clone().mul_(2))(v),
    "make_fx": lambda v: aot.make_fx(f)(v)(v),
}
OF_TORCH: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "grad": lambda g: torch.func.grad(lambda v: g(v).sum())(x),
    "vjp": lambda g: torch.func.vjp(g, x),
    "jvp": lambda g: torch.func.jvp(g, (x,), (x,)),
    "jacrev": lambda g: torch.func.jacrev(g)(x),
    "jacfwd": lambda g: torch.func.jacfwd(g)(x),
    "hessian": lambda g: torch.func.hessian(lambda v: g(v).sum())(x),
    "vmap": lambda g: torch.vmap(g)(x[None]),
    "functionalize": lambda g: torch.func.functionalize(g)(x),
}


@pytest.mark.parametrize("inner", OURS)
@pytest.mark.parametrize("outer", OF_TORCH)
def test_a_transform_inside_of_torchs_is_refused(outer: str, inner: str) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)inside of one of torch's own.*test_nesting\.py"):
        OF_TORCH[outer](OURS[inner])


@pytest.mark.parametrize("inner", OURS)
@pytest.mark.parametrize("outer", OF_TORCH)
def test_a_transform_of_what_is_outside_of_torchs_is_refused(outer: str, inner: str) -> None:
    with pytest.raises(RuntimeError, match=r"inside of one of torch's own"):
        OF_TORCH[outer](lambda a: (OURS[inner](x), a)[1])


@pytest.mark.parametrize("inner", OURS)
def test_a_transform_of_a_value_inside_of_torchs_is_refused(inner: str) -> None:
    def program(v: torch.Tensor) -> Any:
        return torch.func.grad(lambda a: (OURS[inner](v), a.sum())[1])(v)

    with pytest.raises(RuntimeError, match=r"inside of one of torch's own"):
        func.vjp(program, x)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_runtime_tensor_of_a_value_of_torchs_transform_is_refused(requires_grad: bool) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)inside of one of torch's own.*test_nesting\.py"):
        torch.func.grad(lambda a: runtime.wrap(a, requires_grad).pow(3).sum())(x)


def test_a_runtime_tensor_that_is_made_inside_of_torchs_transform_is_a_constant() -> None:
    gradient = torch.func.grad(lambda a: (a * runtime.tensor([1.0, 2.0])[:1]).sum())(x)
    assert gradient.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def _indexed(v: Any) -> Any:
    b = v * 1
    b[1:].mul_(v[1:])
    return b


def _filled(v: Any) -> Any:
    b = v.new_zeros(v.shape)
    b[:1] = v[1:] * 2
    return b


@pytest.mark.parametrize("f", [_indexed, _filled, lambda v: v.clone().mul_(v)])
@pytest.mark.parametrize("outer", sorted(OF_TORCH.keys() & {"grad", "vjp", "jvp", "functionalize"}))
def test_the_session_records_what_runs_inside_of_torchs_transform(
    outer: str, f: Callable[[Any], Any]
) -> None:
    def gradient(v: Any) -> list[float]:
        kept: list[Any] = []

        def inner(a: Any) -> Any:
            kept.append(f(v))
            return a * 1

        OF_TORCH[outer](inner)
        kept[0].sum().backward()
        found: list[float] = v.grad.tolist()
        return found

    expected = gradient(torch.tensor([1.5, 2.5], requires_grad=True))
    assert gradient(runtime.tensor([1.5, 2.5], requires_grad=True)) == expected


@pytest.mark.parametrize("inner", sorted(OURS.keys() - {"make_fx"}))
def test_a_transform_of_a_dual_tensor_of_torch_is_refused(inner: str) -> None:
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="inside of one of torch's own"):
        OURS[inner](forward_ad.make_dual(x, x.cos()))


def test_a_batch_of_torch_that_a_program_closes_over_is_refused() -> None:
    def program(v: torch.Tensor) -> Any:
        return func.grad(lambda w: (w.sin() * v).sum())(torch.ones(2))

    with pytest.raises(RuntimeError, match="inside of one of torch's own"):
        torch.vmap(program)(x)


def test_a_compiled_program_has_the_tangents_of_torchs_dual_level() -> None:
    expected = torch.func.jvp(f, (x,), (x.cos(),))[1]
    with forward_ad.dual_level():
        for compiled in (runtime.jit(f), aot.aot_function(f, aot.nop)):
            tangent = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, x.cos()))).tangent
            torch.testing.assert_close(tangent, expected)


@pytest.mark.parametrize(
    "capture", [runtime.jit, lambda g: aot.make_fx(g)(x)], ids=["jit", "make_fx"]
)
def test_a_gradient_of_a_tensor_with_a_tangent_of_torch_is_refused(capture: Any) -> None:
    def program(v: torch.Tensor) -> Any:
        return functional.hessian(
            number, v * 1, vectorize=True, outer_jacobian_strategy="forward-mode"
        )

    with pytest.raises(RuntimeError, match=r"would lack its tangent.*test_nesting\.py"):
        capture(program)(x)


def with_numbers(v: torch.Tensor) -> Any:
    """A tangent through writes of numbers, for which torch asks what number is in a zero."""
    with forward_ad.dual_level():
        d = forward_ad.make_dual(v * 1, v.cos()).sin()
        d.add_(1)
        d.sub_(2).mul_(3)
        return forward_ad.unpack_dual(d).tangent


@pytest.mark.parametrize(
    "inside",
    [
        lambda g: func.functionalize(g)(x),
        lambda g: func.vmap(func.functionalize(g))(x[None])[0],
        lambda g: func.jvp(func.functionalize(g), (x,), (x,))[0],
        lambda g: aot.make_fx(g)(x + 1)(x),
        lambda g: runtime.jit(g)(x),
        lambda g: aot.export(g, (x + 1,)).module()(x),
    ],
    ids=["functionalize", "vmap", "jvp", "make_fx", "jit", "export"],
)
def test_torchs_forward_mode_runs_inside(inside: Callable[..., Any]) -> None:
    torch.testing.assert_close(inside(with_numbers), 3 * x.cos() ** 2)


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda g: func.jvp(g, (x,), (x,))[1],
        lambda g: func.vmap(lambda v, t: func.jvp(g, (v,), (t,))[1])(x[None], x[None])[0],
    ],
    ids=["jvp", "vmap of jvp"],
)
def test_a_tangent_of_torch_that_is_expanded_can_be_differentiated(differentiate: Any) -> None:
    def program(v: torch.Tensor) -> Any:
        return torch.func.jvp(torch.sin, (v,), (torch.ones((), dtype=v.dtype).expand(2, 2),))[1]

    torch.testing.assert_close(differentiate(program), -x.sin() * x)
