"""References that were wrong. Each test is a false alarm or a gap that a sweep over torch's
own database found."""

from typing import Any

import pytest
import torch

from gen.checks.compare import Rule, Tally, compare
from gen.outcomes import Mismatch
from gen.samples import opinfo
from gen.samples.samples import from_call, make_op
from tests.checks.test_case import case


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


def test_a_wrapper_for_derivatives_is_seen_where_it_is_a_lambda() -> None:
    assert opinfo.has_own_wrapper(opinfo.database()["torch.triangular_solve"])
    assert opinfo.has_own_wrapper(opinfo.database()["torch.cholesky_inverse"])
    assert not opinfo.has_own_wrapper(opinfo.database()["torch.sin"])
    case("torch.cholesky_solve").assert_same("vjp", against="numeric")


def test_a_tensor_given_twice_stays_one_tensor() -> None:
    x = torch.zeros(0)
    sample = from_call(make_op("torch.cat", {}), 0, ((x, torch.ones(2)),), {"out": x})
    args, kwargs = sample.rebuild(sample.inputs)
    assert args[0][0] is kwargs["out"]


def test_not_implemented_is_the_type_error_that_python_makes_of_it() -> None:
    case("torch.Tensor.__rmod__").assert_same("forward", against="raises")


def test_where_one_part_of_a_complex_number_is_infinite_the_other_has_a_tolerance() -> None:
    expected = torch.complex(
        torch.tensor([float("inf")], dtype=torch.float64), torch.tensor([3.0], dtype=torch.float64)
    )
    near, far = expected + 1e-15j, expected + 1e-3j
    compare([near], [expected], Rule(), Tally())
    compare([near.conj()], [expected.conj()], Rule(), Tally())
    with pytest.raises(Mismatch):
        compare([far], [expected], Rule(), Tally())


def test_unsigned_integers_of_64_bits_are_counted() -> None:
    tally = Tally()
    compare(
        [torch.tensor([1, 2], dtype=torch.uint64)],
        [torch.tensor([1, 2], dtype=torch.uint64)],
        Rule(),
        tally,
    )
    assert tally.nonzero == 4


def test_a_narrow_result_near_a_pole_may_be_off_by_what_an_ulp_of_the_input_changes() -> None:
    x = torch.tensor([1.0 - 1e-6], dtype=torch.float32).double()
    exact, nudged = 1 / (1 - x), 1 / (1 - x * (1 + torch.finfo(torch.float32).eps))
    off = (exact + (nudged - exact) / 2).float()
    compare([off], [exact.float()], Rule(), Tally(), lambda: [nudged.float()], True)
    with pytest.raises(Mismatch):
        compare(
            [(exact + 100 * (nudged - exact)).float()],
            [exact.float()],
            Rule(),
            Tally(),
            lambda: [nudged.float()],
            True,
        )


def test_a_memory_format_of_rank_4_is_not_asked_of_a_batch() -> None:
    some = case("torch.float", "float64")
    some.assert_same("vmap", against="loop")
    assert some.compared
