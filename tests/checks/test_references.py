"""References that were wrong. Each test is a false alarm or a gap that a sweep over torch's
own database found."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from gen.outcomes import Mismatch
from tests.checks.cells import Answering, answer, case, row_of


@pytest.mark.parametrize("op", ["torch.sin", "torch.deg2rad", "torch.log10"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_integers_of_8_bits_are_compared_with_a_reference_in_double_not_in_float16(
    op: Any, dtype: Any
) -> None:
    case(op, dtype).assert_same("forward", against="reference")


def test_a_reference_may_give_a_numpy_number_that_torch_converts_only_as_an_array() -> None:
    case("torch.hash_tensor", "uint8").assert_same("forward", against="reference")


def test_a_reference_that_fails_says_nothing() -> None:
    case("torch.nn.functional.conv_transpose2d", "complex128").assert_same(
        "forward", against="reference"
    )


@pytest.mark.parametrize(
    "op", ["torch.cholesky_solve", "torch.triangular_solve", "torch.cholesky_inverse"]
)
def test_a_wrapper_for_derivatives_is_seen_where_it_is_a_lambda(op: str) -> None:
    case(op).assert_same("vjp", against="numeric")


_shapes: set[tuple[torch.Size, torch.Size]] = set()


def product_of_pair(pair: list[list[torch.Tensor]]) -> torch.Tensor:
    """Multiply two tensors, and note their shapes."""
    (x,), (y,) = pair
    _shapes.add((x.shape, y.shape))
    return x * y


def test_a_tensor_given_twice_stays_one_tensor() -> None:
    """An ill-formed call has another shape in both places."""
    x = torch.ones(2, 3)
    # a list in a list is handed on as it is
    row = row_of({"args": [[[x], [x]]]}, call="tests.checks.test_references:product_of_pair")
    made = case("own.product", "float32", axes={"values": "ill_formed"}, ops={"own.product": row})
    made.assert_same("vmap", against="loop")
    assert len(_shapes) > 2 and all(left == right for left, right in _shapes)


def test_not_implemented_is_the_type_error_that_python_makes_of_it() -> None:
    case("torch.Tensor.__rmod__").assert_same("forward", against="raises")


def test_where_one_part_of_a_complex_number_is_infinite_the_other_has_a_tolerance() -> None:
    expected = torch.complex(
        torch.tensor([float("inf")], dtype=torch.float64), torch.tensor([3.0], dtype=torch.float64)
    )
    near, far = expected + 1e-15j, expected + 1e-3j
    answer([near], [expected])
    answer([near.conj()], [expected.conj()])
    with pytest.raises(Mismatch):
        answer([far], [expected])


def test_unsigned_integers_of_64_bits_are_counted() -> None:
    numbers = torch.tensor([1, 2], dtype=torch.uint64)
    assert answer([numbers], [numbers.clone()]).compared == 1


def pole(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 - x)


def test_a_narrow_result_near_a_pole_may_be_off_by_what_an_ulp_of_the_input_changes() -> None:
    x = torch.tensor([1.0 - 1e-6], dtype=torch.float32).double()
    exact, nudged = 1 / (1 - x), 1 / (1 - x * (1 + torch.finfo(torch.float32).eps))
    row = row_of({"args": [x.float()]}, call="tests.checks.test_references:pole")
    for share, is_right in ((0.5, True), (100, False)):
        target = Answering([(exact + share * (nudged - exact)).float()])
        made = case("own.pole", "float32", target, ops={"own.pole": row})
        with nullcontext() if is_right else pytest.raises(Mismatch):
            made.assert_same("forward", against="float64")


def test_a_memory_format_of_rank_4_is_not_asked_of_a_batch() -> None:
    some = case("torch.float", "float64")
    some.assert_same("vmap", against="loop")
    assert some.compared
