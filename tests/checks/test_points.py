"""Degenerate points: what each word makes of a sample, and what a case says where an op
has no such points."""

from typing import Any

import pytest
import torch

from gen.language.axes import AXES, DEGENERATE
from gen.outcomes import Lacking, Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, inputs_of

D = torch.float64


def fillings(word: str, op: str, *args: Any, **kwargs: Any) -> list[Any]:
    """Return the inputs that a word makes of a call."""
    return inputs_of(op, *args, axes={"values": word}, **kwargs)


def test_degenerate_points_are_words_of_the_axis() -> None:
    assert set(DEGENERATE) < set(AXES["values"])


def test_ties_are_of_two_values_or_of_one() -> None:
    found = fillings("ties", "torch.amax", torch.randn(4, 5, dtype=D))
    assert [set(x.unique().tolist()) for (x,) in found] == [{1.0, 2.0}, {1.0}]


def test_zero_factors_are_one_two_or_all() -> None:
    found = fillings("zero_factor", "torch.prod", torch.full((4,), 2.0, dtype=D))
    assert [int((x == 0).sum()) for (x,) in found] == [1, 2, 4]


def test_one_number_is_replaced_in_one_input_at_a_time() -> None:
    found = fillings("one_nan", "torch.cdist", torch.ones(2, 3, dtype=D), torch.ones(2, 3, dtype=D))
    assert [[int(x.isnan().sum()) for x in inputs] for inputs in found] == [[1, 0], [0, 1]]


def test_a_masked_row_is_minus_infinity_or_a_mask_that_hides_it() -> None:
    found = fillings("masked_row", "torch.softmax", torch.zeros(2, 3, dtype=D), dim=-1)
    assert [x.isinf().tolist() for (x,) in found] == [
        [[True] * 3, [False] * 3],
        [[True, True, False], [False] * 3],
    ]
    mask = torch.ones(2, 2, dtype=torch.bool)
    hidden = fillings("masked_row", "torch.masked_fill", torch.ones(2, 2), mask, 0.0)[0][1]
    assert hidden.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_squares_of_huge_numbers_overflow_and_those_of_tiny_ones_vanish(dtype: Any) -> None:
    x = torch.ones(3, dtype=dtype)
    ((huge,),) = fillings("huge", "torch.linalg.vector_norm", x)
    ((tiny,),) = fillings("tiny", "torch.linalg.vector_norm", x)
    assert bool(huge.isfinite().all())
    assert bool((huge * huge).isinf().all())
    assert bool(((tiny > 0) & (tiny * tiny == 0)).all())


def test_singular_values_are_equal() -> None:
    found = fillings("equal_singular_values", "torch.linalg.svdvals", torch.randn(3, 4, dtype=D))
    assert found
    for (x,) in found:
        torch.testing.assert_close(torch.linalg.svdvals(x), torch.ones(3, dtype=D))


def test_triangular_matrices_are_unit_or_far_from_the_identity() -> None:
    a = torch.randn(3, 3, dtype=D)
    b = torch.ones(3, dtype=D)
    unit = fillings("unit_triangular", "torch.linalg.solve", a, b)
    far = fillings("far_from_identity", "torch.linalg.solve", a, b)
    assert unit and far
    for x, _ in unit:
        assert x.diagonal().tolist() == [1.0] * 3
        assert torch.equal(x, x.tril()) or torch.equal(x, x.triu())
    assert all(x.diagonal().tolist() == [0.5, -1.5, 2.5] for x, _ in far)


def test_indices_are_fewer_repeated_or_none() -> None:
    args = (
        torch.zeros(4, 4, dtype=D),
        0,
        torch.tensor([[0, 1, 2], [3, 2, 1]]),
        torch.ones(2, 3, dtype=D),
    )
    shapes = {
        word: fillings(word, "torch.scatter_add", *args)[-1][1]
        for word in ("smaller_index", "repeated_index", "empty_index")
    }
    assert list(shapes["smaller_index"].shape) == [1, 2]
    assert shapes["repeated_index"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert list(shapes["empty_index"].shape) == [0, 3]


@pytest.mark.parametrize("word", ["tails", "huge", "tiny", "subnormal"])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_an_elementwise_op_gets_a_vector_of_numbers_of_its_dtype(word: str, dtype: Any) -> None:
    ((x,),) = fillings(word, "torch.exp", torch.ones(2, 2, dtype=dtype))
    assert (x.ndim, x.dtype) == (1, dtype)
    assert bool(x.isfinite().all())
    ones = torch.ones(2, dtype=dtype)
    ((left, right),) = fillings(word, "torch.mul", ones, ones.clone())
    assert len(set(zip(left.tolist(), right.tolist(), strict=True))) == len(left)


def test_a_case_says_why_an_op_has_no_such_points() -> None:
    with pytest.raises(Lacking, match=r"no smaller index to compare at: .* has no such points"):
        case("torch.sum", axes={"values": "smaller_index"}).assert_same("vjp", against="numeric")


class DividingByTheFactor(TorchTarget):
    """A target with the gradient of `prod` that divides the product by each factor."""

    def vjp(self, f: Any, *primals: Any) -> Any:
        outputs, _ = super().vjp(f, *primals)
        return outputs, lambda v: tuple(v[0] * outputs[0] / p for p in primals)


def test_a_gradient_that_divides_by_a_factor_is_noticed_where_the_factor_is_zero() -> None:
    wrong = case("torch.prod", target=DividingByTheFactor(), axes={"values": "zero_factor"})
    with pytest.raises(Mismatch, match="one zero"):
        wrong.assert_same("vjp", against="numeric")
    case("torch.prod", axes={"values": "zero_factor"}).assert_same("vjp", against="numeric")
