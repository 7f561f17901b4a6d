"""Which results count as equal, and what the message says if they differ."""

from typing import Any

import pytest
import torch
from torch import tensor

from gen.checks.compare import Rule, Tally, compare
from gen.outcomes import Mismatch

D = torch.float64


def check(actual: Any, expected: Any, rule: Any = None, second: Any = None) -> Any:
    tally = Tally()
    compare(actual, expected, rule or Rule(), tally, second)
    return tally


def test_a_factor_of_one_thousandth_is_seen_in_float64_whatever_the_magnitude() -> None:
    for magnitude in (1e-6, 1.0, 1e6):
        value = torch.full((3,), magnitude, dtype=D)
        with pytest.raises(Mismatch):
            check([value * 1.001], [value])


def test_the_message_names_the_output_the_index_and_both_values() -> None:
    expected = torch.zeros(2, 3, dtype=D) + 1
    actual = expected.clone()
    actual[1, 2] = 5
    with pytest.raises(
        Mismatch,
        match=(
            r"output 1 of 2, float64\[2, 3\]: largest error 4 at index \[1, 2\]: "
            r"got 5\.0, expected 1\.0"
        ),
    ):
        check([expected, actual], [expected, expected])


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ([], [tensor(1.0)], "0 outputs, expected 1"),
        ([tensor([1.0])], [tensor(1.0)], r"shape \[1\], expected \[\]"),
        ([tensor(1.0)], [tensor(1.0, dtype=D)], "dtype torch.float32, expected torch.float64"),
        ([tensor(1)], [tensor(2)], "got 1, expected 2"),
        ([tensor(float("nan"))], [tensor(1.0)], "largest error inf"),
    ],
)
def test_structure_shape_dtype_integers_and_nan(actual: Any, expected: Any, message: Any) -> None:
    with pytest.raises(Mismatch, match=message):
        check(actual, expected)


def test_nan_and_infinities_agree_with_their_own_kind() -> None:
    odd = tensor([float("nan"), float("inf"), -float("inf")])
    assert check([odd], [odd.clone()]).entries == 3
    with pytest.raises(Mismatch):
        check([odd], [-odd])


def test_a_narrow_result_passes_if_it_is_as_near_to_float64_as_the_reference_is() -> None:
    exact, reference = tensor([1.0], dtype=D), tensor([1.01])
    check([tensor([0.97])], [reference], second=lambda: [exact])
    with pytest.raises(Mismatch):
        check([tensor([0.9])], [reference], second=lambda: [exact])


def test_a_float64_result_passes_if_rounding_of_the_inputs_explains_its_error() -> None:
    expected = tensor([1.0], dtype=D)
    check([expected + 1e-5], [expected], second=lambda: [expected + 1e-6])
    with pytest.raises(Mismatch):
        check([expected + 1e-5], [expected], second=lambda: [expected + 1e-9])


def test_an_explicit_tolerance_is_the_last_word() -> None:
    check([tensor(1.05)], [tensor(1.0)], Rule(rtol=0.1, atol=0.0))
    with pytest.raises(Mismatch, match=r"rtol 0\.01"):
        check(
            [tensor(1.05)], [tensor(1.0)], Rule(rtol=0.01, atol=0.0), second=lambda: [tensor(1.05)]
        )


def test_unknown_entries_of_a_numeric_reference_are_left_out_and_counted() -> None:
    tally = check(
        [tensor([1.0, 7.0], dtype=D)], [tensor([1.0, float("nan")], dtype=D)], Rule(numeric=True)
    )
    assert (tally.entries, tally.unknown) == (1, 1)


def test_a_numeric_reference_has_the_dtype_of_the_result_unless_it_was_widened() -> None:
    narrow, wide = tensor([1.0]), tensor([1.0], dtype=D)
    check([narrow], [wide], Rule(numeric=True, widened=True))
    with pytest.raises(Mismatch, match="dtype"):
        check([narrow], [wide], Rule(numeric=True))


def test_zeros_are_counted_apart() -> None:
    assert check([torch.zeros(3)], [torch.zeros(3)]).nonzero == 0
    assert check([torch.ones(3)], [torch.ones(3)]).nonzero == 6
