"""How forward mode and the tape interact, in custom Functions too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad as oracle

import runtime
from runtime import unwrap, wrap
from runtime.autograd import forward_ad as fw
from runtime.autograd import grad

from .duals import close, dual, rand, tangent


def test_a_dual_tensor_is_a_view_of_its_primal_on_the_tape(level: None) -> None:
    x = wrap(rand(2), requires_grad=True)
    d = fw.make_dual(x, wrap(rand(2, seed=1)))
    assert d.requires_grad and d.grad_fn is not None and not d.is_leaf
    with pytest.raises(
        RuntimeError,
        match="a view of a leaf Variable that requires grad is being used in an in-place operation",
    ):
        d.mul_(2)
    (d * d).sum().backward()
    assert x.grad is not None
    close(unwrap(x.grad), 2 * unwrap(x.detach()))
    assert tangent(x.grad) is None, ".grad keeps no tangent"


def test_forward_over_reverse_gives_hessian_vector_products(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)

    def f(z: Any) -> Any:
        return (z.sin() * z[0] + z.prod()).sum()

    d = fw.make_dual(wrap(x, requires_grad=True), wrap(v))
    (g,) = grad(f(d), d)
    close(unwrap(tangent(g)), torch.autograd.functional.hvp(f, x, v)[1])
    (g,) = grad(f(d), d, create_graph=True)
    close(unwrap(tangent(g).detach()), torch.autograd.functional.hvp(f, x, v)[1])


def test_forward_over_reverse_through_writes_to_views(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)

    def f(z: Any) -> Any:
        y = z * z
        y[:2].mul_(z[1:])
        y.exp_()
        return y.sum()

    d = fw.make_dual(wrap(x, requires_grad=True), wrap(v))
    (g,) = grad(f(d), d)
    close(unwrap(tangent(g)), torch.autograd.functional.hvp(f, x, v)[1])


def test_reverse_over_forward_differentiates_tangents(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)
    leaf, direction = wrap(x, requires_grad=True), wrap(v, requires_grad=True)
    t = tangent((fw.make_dual(leaf, direction) ** 3).sin())
    assert t.requires_grad
    by_x, by_v = grad(t.sum(), (leaf, direction))
    close(unwrap(by_v), 3 * x**2 * (x**3).cos())
    close(unwrap(by_x), v * (6 * x * (x**3).cos() - 9 * x**4 * (x**3).sin()))


def test_tangents_of_writes_are_differentiated_too(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)

    def f(z: Any) -> Any:
        y = z * z
        y[:2].mul_(z[1:])
        return y

    leaf = wrap(x, requires_grad=True)
    t = tangent(f(fw.make_dual(leaf, wrap(v))))
    with oracle.dual_level():
        theirs = x.clone().requires_grad_()
        expected = torch.autograd.grad(
            oracle.unpack_dual(f(oracle.make_dual(theirs, v))).tangent.sum(), theirs
        )
    close(unwrap(grad(t.sum(), leaf)[0]), expected[0])


def test_three_derivatives_from_one_dual_level(level: None) -> None:
    """Reverse over forward over reverse: the gradient's tangent is on the tape."""
    x = torch.tensor(0.7, dtype=torch.float64)
    leaf = wrap(x, requires_grad=True)
    d = fw.make_dual(leaf, wrap(torch.ones_like(x)))
    (g,) = grad(d**4, d, create_graph=True)
    (third,) = grad(tangent(g), leaf)
    close(unwrap(third), 24 * x)


def test_gradients_of_other_inputs_carry_tangents(level: None) -> None:
    w = wrap(rand(3), requires_grad=True)
    d = dual(rand(3, seed=1), rand(3, seed=2))
    (g,) = grad((w * d).sin().sum(), w)
    plain_w, p, t = unwrap(w.detach()), rand(3, seed=1), rand(3, seed=2)
    close(unwrap(g), p * (plain_w * p).cos())
    close(unwrap(tangent(g)), t * (plain_w * p).cos() - p * plain_w * t * (plain_w * p).sin())


def test_a_dual_tensor_can_be_a_leaf(level: None) -> None:
    d = dual(rand(2), rand(2, seed=1)).requires_grad_()
    assert d.is_leaf
    (d * d).sum().backward()
    close(unwrap(d.grad), 2 * rand(2))


def test_a_backward_pass_on_dual_tensors_frees_what_was_saved(level: None) -> None:
    d = fw.make_dual(wrap(rand(2), requires_grad=True), wrap(rand(2)))
    y = (d * d).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_transforms_inside_a_level_see_tangents(level: None) -> None:
    x, v = rand(3), rand(3, seed=1)
    d = dual(x, v)
    g = runtime.func.grad(lambda z: (z**3).sum())(d)
    close(unwrap(tangent(g)), 6 * x * v)
    rows = runtime.func.vmap(lambda z: z * z)(d)
    close(unwrap(tangent(rows)), 2 * x * v)


def test_a_batch_of_tangents_pushes_forward_under_vmap() -> None:
    x, tangents = rand(3), rand(5, 3, seed=1)

    def push(t: Any) -> Any:
        with fw.dual_level():
            return tangent((fw.make_dual(wrap(x), t).sin() * 2)[1:])

    close(unwrap(runtime.func.vmap(push)(tangents)), (tangents * 2 * x.cos())[:, 1:])


def test_a_batch_of_tangents_is_laid_out_like_its_primal() -> None:
    primal, batch = rand(2, 3).t(), rand(4, 3, 2, seed=1)

    def push(t: Any) -> Any:
        with fw.dual_level():
            d = fw.make_dual(wrap(primal), t)
            assert tangent(d).stride() == d.stride() == (1, 3)
            return tangent(d.as_strided((6,), (1,), 0))

    close(unwrap(runtime.func.vmap(push)(batch)), batch.transpose(1, 2).reshape(4, 6))


def test_as_strided_under_vmap_does_not_read_the_next_element_of_the_batch() -> None:
    with pytest.raises(RuntimeError, match=r"can access memory outside of `tensor`"):
        runtime.func.vmap(lambda x: x.as_strided((5,), (1,), 0))(rand(20)[:12].reshape(3, 4))


def test_where_the_derivative_vanishes_the_tangent_is_zeros() -> None:
    with fw.dual_level():
        x = fw.make_dual(runtime.tensor([1.0, -2.5]), runtime.tensor([1.0, 1.0]))
        for y in (x.floor(), torch.angle(x), torch.div(x, 2, rounding_mode="trunc")):
            tangent = fw.unpack_dual(y).tangent
            assert tangent is not None and tangent.tolist() == [0.0, 0.0]
        assert fw.unpack_dual(x.detach()).tangent is None


# ---- custom Functions


class Scaled(runtime.autograd.Function):
    """``x * k``, whose tangent and gradient are made by hand."""

    @staticmethod
    def forward(ctx: Any, x: Any, k: float) -> Any:
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.k, None

    @staticmethod
    def jvp(ctx: Any, t: Any, k: Any) -> Any:
        return t if ctx.k == 1 else t * ctx.k


def test_a_function_gives_its_own_tangents_and_the_tape_records_them(level: None) -> None:
    x, v = wrap(rand(2), requires_grad=True), wrap(rand(2, seed=1), requires_grad=True)
    y = Scaled.apply(fw.make_dual(x, v), 3.0)
    close(unwrap(tangent(y).detach()), 3 * unwrap(v.detach()))
    close(unwrap(grad(tangent(y).sum(), v)[0]), torch.full((2,), 3.0, dtype=torch.float64))
    (g,) = grad((y * y).sum(), x)
    close(unwrap(g), 18 * unwrap(x.detach()))
    close(unwrap(tangent(g)), 18 * unwrap(v.detach()))


def test_a_jvp_that_returns_what_it_was_given_shares_nothing(level: None) -> None:
    d = dual(rand(2), torch.ones(2, dtype=torch.float64))
    y = Scaled.apply(d, 1.0)
    y *= 5
    close(unwrap(tangent(d)), torch.ones(2, dtype=torch.float64))
    close(unwrap(tangent(y)), torch.full((2,), 5.0, dtype=torch.float64))


def test_jvp_sees_what_was_saved_for_it_alone(level: None) -> None:
    seen = []

    class Copy(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(len(ctx.saved_tensors))
            return g

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            seen.append(len(ctx.saved_tensors))
            return t

    Copy.apply(fw.make_dual(wrap(rand(2), requires_grad=True), wrap(rand(2)))).sum().backward()
    assert seen == [0, 1]


# ---- second derivatives against finite differences: for most of these torch 2.13 is wrong or
# refuses, so it cannot be the reference


def write_and_read(x: Any) -> Any:
    y = x * x
    y[0].mul_(y[1])
    y.t()[:2].exp_()
    return y


SMOOTH: list[Callable[..., Any]] = [
    lambda x: torch.nn.functional.layer_norm(x, (3,)),
    lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    lambda x: torch.linalg.det(x),
    lambda x: torch.logdet(x @ x.t() + 1),
    lambda x: torch.as_strided_scatter(x, x[0, :2] * x[1, :2], (2,), (1,), 1),
    lambda x: torch.linalg.householder_product(x, x[0] * 0.3),
    lambda x: x.softmax(0).cumprod(1),
    lambda x: torch.fft.fft(x).abs(),
    write_and_read,
]


@pytest.mark.parametrize("f", SMOOTH)
def test_the_gradient_of_a_tangent_is_right(f: Callable[..., Any]) -> None:
    def push(x: Any, v: Any) -> Any:
        with fw.dual_level():
            return tangent(f(fw.make_dual(x, v)))

    assert runtime.autograd.gradcheck(
        push, (wrap(rand(3, 3), True), wrap(rand(3, 3, seed=1), True))
    )


@pytest.mark.parametrize("f", SMOOTH)
def test_the_tangent_of_a_gradient_is_right(f: Callable[..., Any]) -> None:
    assert runtime.autograd.gradgradcheck(f, wrap(rand(3, 3), True), check_fwd_over_rev=True)


def test_a_view_whose_tangent_is_read_first_under_no_grad_has_its_history() -> None:
    """torch keeps the tangent that it made under no_grad, and its gradient is lost: the same
    program that reads nothing is the oracle."""
    found = []
    for read in (False, True):
        x = runtime.tensor([0.5, 2.0], requires_grad=True)
        with fw.dual_level():
            d = fw.make_dual(x, x * 2)
            b = x.new_zeros(2, 2)
            part = b[0]
            b.copy_(d * d)
            if read:
                with torch.no_grad():
                    part * 2
            tangent = fw.unpack_dual((part * d).sum()).tangent
            assert tangent is not None
            found.append(grad(tangent, x)[0])
    torch.testing.assert_close(*map(unwrap, found))
    torch.testing.assert_close(unwrap(found[0]), torch.tensor([4.5, 72.0]))  # of 6·x³
