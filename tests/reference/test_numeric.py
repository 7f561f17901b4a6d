"""Central differences against values worked out by hand, and what they say where there
is no derivative."""

from typing import Any

import pytest
import torch
from torch import tensor

from gen.reference import Loop, Numeric

D = torch.float64


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)


def test_vjp_of_a_cube() -> None:
    outputs, pullback = Numeric().vjp(lambda x: (x**3,), tensor([1.0, 2.0], dtype=D))
    same(outputs, (tensor([1.0, 8.0], dtype=D),))
    same(pullback((tensor([1.0, 10.0], dtype=D),)), (tensor([3.0, 120.0], dtype=D),))


def test_a_complex_gradient_is_conjugated() -> None:
    z = tensor([1.0 + 2.0j], dtype=torch.complex128)
    _, pullback = Numeric().vjp(lambda z: (z * z,), z)
    same(pullback((torch.ones_like(z),)), (tensor([2.0 - 4.0j], dtype=torch.complex128),))


@pytest.mark.parametrize(
    "f", [lambda z: (z.abs(),), lambda z: (z.conj() * z * z,), lambda z: (torch.view_as_real(z),)]
)
def test_complex_gradients_agree_with_the_engine(f: Any) -> None:
    z = tensor([[1.0 + 2.0j, -0.5 + 0.25j]], dtype=torch.complex128)
    outputs, pullback = Numeric().vjp(f, z)
    cotangent = (torch.full_like(outputs[0], 0.5),)
    same(pullback(cotangent), Loop().vjp(f, z)[1](cotangent))


def test_jvp_of_a_product() -> None:
    x, y = tensor([2.0, 3.0], dtype=D), tensor([5.0, 7.0], dtype=D)
    _, tangents = Numeric().jvp(
        lambda x, y: (x * y,), (x, y), (torch.ones_like(x), torch.full_like(y, 10.0))
    )
    same(tangents, (tensor([25.0, 37.0], dtype=D),))


def test_second_order_is_the_difference_of_the_engines_first() -> None:
    reference = Numeric()
    x, v = tensor([2.0], dtype=D), tensor([5.0], dtype=D)
    _, pullback = reference.vjp(lambda x, v: reference.vjp(lambda x: (x**3,), x)[1]((v,)), x, v)
    same(pullback((tensor([1.0], dtype=D),)), (tensor([60.0], dtype=D), tensor([12.0], dtype=D)))


def test_jacobian_and_hessian() -> None:
    matrix = tensor([[2.0, 1.0], [1.0, 4.0]], dtype=D)
    x = torch.ones(2, dtype=D)
    same(Numeric().jacfwd(lambda x: (matrix @ x,), (0,))(x), ((matrix,),))
    same(Numeric().jacrev(lambda x: (matrix @ x,), (0,))(x), ((matrix,),))
    # of (1 2; 3 4) times x, by elements of x
    each = torch.diag(torch.arange(1.0, 5, dtype=D)).reshape(2, 2, 2, 2)
    same(
        Numeric().jacfwd(lambda x: (torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=D) * x,), (0,))(
            matrix
        ),
        ((each,),),
    )
    same(Numeric().hessian(lambda x: (x @ matrix @ x,), (0,))(x), (((2 * matrix,),),))


def test_at_a_kink_the_derivative_is_unknown_and_next_to_it_is_not() -> None:
    x = tensor([0.0, 1.0, -1.0], dtype=D)
    _, pullback = Numeric().vjp(lambda x: (torch.relu(x),), x)
    (found,) = pullback((torch.ones(3, dtype=D),))
    assert found[0].isnan()
    same(found[1:], tensor([1.0, 0.0], dtype=D))


def test_a_kink_within_one_step_is_unknown_unless_a_smaller_step_clears_it() -> None:
    _, tangents = Numeric().jvp(
        lambda x: (x.abs(),), (tensor([3e-4, 1e-6], dtype=D),), (torch.ones(2, dtype=D),)
    )
    same(tangents[0][0], tensor(1.0, dtype=D))
    assert tangents[0][1].isnan()


def test_a_steep_function_is_differentiated_with_the_smaller_step() -> None:
    x = tensor([0.01], dtype=D)
    _, tangents = Numeric().jvp(lambda x: (x.log(),), (x,), (torch.ones(1, dtype=D),))
    torch.testing.assert_close(tangents[0], tensor([100.0], dtype=D), rtol=1e-6, atol=0)


def test_large_gradients_are_compared_along_random_directions() -> None:
    weights = torch.arange(1.0, 41.0, dtype=D)
    reference = Numeric(project=True, seed=1)
    _, pullback = reference.vjp(lambda x: ((x * weights).sum(),), torch.ones(40, dtype=D))
    (along,) = pullback((torch.ones((), dtype=D),))
    assert along.shape == (6,)
    same(reference.project((weights,)), (along,))
    wrong = weights.clone()
    wrong[17] *= 1.01
    assert not torch.allclose(reference.project((wrong,))[0], along, rtol=1e-6)


def test_results_that_cannot_be_projected_are_refused_when_large() -> None:
    with pytest.raises(ValueError, match="too large for differences"):
        Numeric().vjp(lambda x: (x,), torch.ones(100, dtype=D))
