"""The loop reference against values worked out by hand. Every other check of the
project leans on these."""

from typing import Any

import pytest
import torch
from torch import tensor

from gen.reference import Loop

D = torch.float64


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def cube(x: Any) -> Any:
    return (x**3,)


def test_vjp_of_a_cube_is_three_squares_times_the_cotangent() -> None:
    outputs, pullback = Loop().vjp(cube, tensor([1.0, 2.0], dtype=D))
    same(outputs, (tensor([1.0, 8.0], dtype=D),))
    same(pullback((tensor([1.0, 10.0], dtype=D),)), (tensor([3.0, 120.0], dtype=D),))


def test_an_input_that_is_not_used_has_a_gradient_of_zeros() -> None:
    _, pullback = Loop().vjp(lambda x, y: (x * 2,), torch.ones(2, dtype=D), torch.ones(3, dtype=D))
    same(
        pullback((torch.ones(2, dtype=D),)), (tensor([2.0, 2.0], dtype=D), torch.zeros(3, dtype=D))
    )


def test_vjp_of_vjp_of_a_cube() -> None:
    def first(x: Any, v: Any) -> Any:
        return Loop.vjp(reference, cube, x)[1]((v,))

    reference = Loop()
    x, v = tensor([2.0], dtype=D), tensor([5.0], dtype=D)
    outputs, pullback = reference.vjp(first, x, v)
    same(outputs, (tensor([60.0], dtype=D),))  # 3x²v
    # 6xv and 3x²
    same(pullback((tensor([1.0], dtype=D),)), (tensor([60.0], dtype=D), tensor([12.0], dtype=D)))


def test_results_at_the_boundary_do_not_require_grad() -> None:
    outputs, pullback = Loop().vjp(cube, torch.ones(1, dtype=D))
    assert not outputs[0].requires_grad
    assert not pullback((torch.ones(1, dtype=D),))[0].requires_grad


def test_jvp_of_a_product() -> None:
    x, y = tensor([2.0, 3.0], dtype=D), tensor([5.0, 7.0], dtype=D)
    outputs, tangents = Loop().jvp(
        lambda x, y: (x * y,), (x, y), (torch.ones_like(x), torch.full_like(y, 10.0))
    )
    same(outputs, (tensor([10.0, 21.0], dtype=D),))
    same(tangents, (tensor([25.0, 37.0], dtype=D),))  # y·1 + x·10


def test_jvp_of_jvp_of_a_cube() -> None:
    reference = Loop()
    one = torch.ones(1, dtype=D)
    _, second = reference.jvp(
        lambda x: reference.jvp(cube, (x,), (one,))[1], (tensor([2.0], dtype=D),), (one,)
    )
    same(second, (tensor([12.0], dtype=D),))  # 6x


def test_jvp_where_the_derivative_cannot_be_differentiated_uses_forward_mode() -> None:
    x = tensor([0.5, 9.0], dtype=D)
    _, tangents = Loop().jvp(
        lambda x: (torch.nn.functional.hardsigmoid(x),), (x,), (torch.ones_like(x),)
    )
    # the kernel's 1/6 is a float
    torch.testing.assert_close(tangents, (tensor([1 / 6, 0.0], dtype=D),), rtol=1e-6, atol=0)


def test_a_complex_gradient_is_conjugated() -> None:
    z = tensor([1.0 + 2.0j], dtype=torch.complex128)
    _, pullback = Loop().vjp(lambda z: (z * z,), z)
    # conj(2z)
    same(pullback((torch.ones_like(z),)), (tensor([2.0 - 4.0j], dtype=torch.complex128),))


def test_a_complex_tangent_is_not() -> None:
    z = tensor([1.0 + 2.0j], dtype=torch.complex128)
    _, tangents = Loop().jvp(lambda z: (z * z,), (z,), (torch.full_like(z, 1j),))
    same(tangents, (tensor([-4.0 + 2.0j], dtype=torch.complex128),))  # 2z·i


def test_grad_of_the_sum_of_squares() -> None:
    x = tensor([1.0, -2.0], dtype=D)
    same(Loop().grad(lambda x: (x * 3).square().sum())(x), (tensor([18.0, -36.0], dtype=D),))


def test_jacobians_of_a_linear_map_are_its_matrix() -> None:
    matrix = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=D)
    x = torch.ones(3, dtype=D)
    same(Loop().jacrev(lambda x: (matrix @ x,), (0,))(x), ((matrix,),))
    same(Loop().jacfwd(lambda x: (matrix @ x,), (0,))(x), ((matrix,),))


def test_blocks_of_a_jacobian_are_by_output_then_argument() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * y.sum(), y * 2

    x, y = tensor([1.0, 2.0], dtype=D), tensor([3.0], dtype=D)
    expected = (
        (3.0 * torch.eye(2, dtype=D), tensor([[1.0], [2.0]], dtype=D)),
        (torch.zeros(1, 2, dtype=D), tensor([[2.0]], dtype=D)),
    )
    same(Loop().jacrev(f, (0, 1))(x, y), expected)
    same(Loop().jacfwd(f, (0, 1))(x, y), expected)


def test_hessian_of_a_quadratic_form() -> None:
    matrix = tensor([[2.0, 1.0], [1.0, 4.0]], dtype=D)
    same(
        Loop().hessian(lambda x: (x @ matrix @ x,), (0,))(torch.ones(2, dtype=D)),
        (((2 * matrix,),),),
    )


def test_a_jacobian_of_nothing_is_empty() -> None:
    x = torch.ones(0, dtype=D)
    same(Loop().jacrev(lambda x: (x * 2,), (0,))(x), ((torch.zeros(0, 0, dtype=D),),))


def test_vmap_takes_entries_along_in_dims_and_stacks_at_the_front() -> None:
    x = torch.arange(6.0, dtype=D).reshape(2, 3)
    (rows,) = Loop().vmap(lambda x, y: (x.sum() + y,), (1, None))(x, tensor(10.0, dtype=D))
    same(rows, tensor([13.0, 15.0, 17.0], dtype=D))


def test_vmap_of_vjp_and_vjp_of_vmap_agree_on_a_square() -> None:
    reference = Loop()
    x, v = tensor([[1.0], [2.0]], dtype=D), torch.ones(2, 1, dtype=D)
    inner = reference.vmap(lambda x, v: reference.vjp(lambda x: (x * x,), x)[1]((v,)), (0, 0))(x, v)
    outer = reference.vjp(reference.vmap(lambda x: (x * x,), (0,)), x)[1]((v,))
    same(inner, (tensor([[2.0], [4.0]], dtype=D),))
    same(outer, inner)


def test_entries_of_a_batch_are_contiguous_and_their_own() -> None:
    seen: list[torch.Tensor] = []

    def note(x: Any) -> Any:
        seen.append(x)
        return (x,)

    Loop().vmap(note, (-1,))(torch.zeros(3, 2, dtype=D))
    assert all(entry.is_contiguous() and entry.storage_offset() == 0 for entry in seen)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_per_sample_gradients_of_a_linear_map(reduction: Any) -> None:
    batch, weight = tensor([[1.0, 0.0], [2.0, 3.0]], dtype=D), tensor([[1.0, 1.0]], dtype=D)
    found = Loop().per_sample(
        lambda x, w: (x @ w.mT,), batch, (weight,), loss_reduction=reduction, input_grad=False
    )
    same(found, (tensor([[[2.0, 0.0]], [[20.0, 30.0]]], dtype=D),))  # 2·(x·w)·x for each sample
    found = Loop().per_sample(
        lambda x, w: (x @ w.mT,), batch, (weight,), loss_reduction=reduction, input_grad=True
    )
    same(found[1:], (tensor([[2.0, 2.0], [10.0, 10.0]], dtype=D),))  # 2·(x·w)·w


@pytest.mark.parametrize(
    ("of", "given", "expected"),
    [
        ("norms", None, [2.0, 1300.0**0.5]),
        ("clipped_sum", 2.0, [[2.0 + 2 * 20 / 1300**0.5, 2 * 30 / 1300**0.5]]),
        ("dot", [tensor([[1.0, 10.0]], dtype=D)], [2.0, 320.0]),
        ("gram", tensor([[0.0, 1.0]], dtype=D), [[0.0], [60.0]]),  # of gradients (0, 2)
        ("project", 3, [[2.0, 0.0, 0.0], [20.0, 30.0, 0.0]]),
    ],
)
def test_answers_from_the_per_sample_gradients_of_a_linear_map(
    of: str, given: Any, expected: Any
) -> None:
    batch, weight = tensor([[1.0, 0.0], [2.0, 3.0]], dtype=D), tensor([[1.0, 1.0]], dtype=D)
    found = Loop().per_sample_answer(
        lambda x, w: (x @ w.mT,), batch, (weight,), of=of, given=given, each=False
    )
    same(found, (tensor(expected, dtype=D),))


def test_observe_tells_differentiable_outputs_from_others() -> None:
    x = torch.rand(4, dtype=D)
    outputs, flags = Loop().observe(lambda x: tuple(torch.topk(x, 2)), (x,), (True,))
    assert flags == (True, False)
    assert not outputs[0].requires_grad
