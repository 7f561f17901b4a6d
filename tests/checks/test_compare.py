"""Which results count as equal, and what the message says if they differ."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import tensor

from gen.checks import known
from gen.outcomes import Mismatch, Unsuitable, Vacuous
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import answer, case, row_of

D = torch.float64


def test_a_factor_of_one_thousandth_is_seen_in_float64_whatever_the_magnitude() -> None:
    for magnitude in (1e-6, 1.0, 1e6):
        value = torch.full((3,), magnitude, dtype=D)
        with pytest.raises(Mismatch):
            answer([value * 1.001], [value])


def test_the_message_names_the_output_the_index_and_both_values() -> None:
    right = torch.zeros(2, 3, dtype=D) + 1
    wrong = right.clone()
    wrong[1, 2] = 5
    with pytest.raises(
        Mismatch,
        match=(
            r"output 1 of 2, float64\[2, 3\]: largest error 4 at index \[1, 2\]: "
            r"got 5\.0, expected 1\.0"
        ),
    ):
        answer([right, wrong], [right, right])


@pytest.mark.parametrize(
    ("actual", "right", "message"),
    [
        ([], [tensor(1.0)], "0 outputs, expected 1"),
        ([tensor([1.0])], [tensor(1.0)], r"shape \[1\], expected \[\]"),
        ([tensor(1.0)], [tensor(1.0, dtype=D)], "dtype torch.float32, expected torch.float64"),
        ([tensor(1)], [tensor(2)], "got 1, expected 2"),
        ([tensor(float("nan"))], [tensor(1.0)], "largest error inf"),
    ],
)
def test_structure_shape_dtype_integers_and_nan(
    actual: Sequence[torch.Tensor], right: Sequence[torch.Tensor], message: str
) -> None:
    with pytest.raises(Mismatch, match=message):
        answer(actual, right)


def test_nan_and_infinities_agree_with_their_own_kind() -> None:
    odd = tensor([float("nan"), float("inf"), -float("inf")])
    assert answer([odd], [odd.clone()]).compared == 1
    with pytest.raises(Mismatch):
        answer([odd], [-odd])


def rounded_to_float32(exact: float, rounded: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an op whose result is `exact` in float64, and `rounded` in float32."""

    def op(x: torch.Tensor) -> torch.Tensor:
        return tensor([exact if x.dtype is D else rounded], dtype=x.dtype)

    return op


def test_a_narrow_result_passes_if_it_is_as_near_to_float64_as_the_reference_is() -> None:
    op = rounded_to_float32(1.0, 1.01)
    answer([tensor([0.97])], op, dtype="float32")
    with pytest.raises(Mismatch):
        answer([tensor([0.9])], op, dtype="float32")


def sensitive_to_an_ulp(change: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an op whose result grows by `change` if its input is off by an ulp."""

    def op(x: torch.Tensor) -> torch.Tensor:
        return tensor([1.0 if bool((x == 1).all()) else 1.0 + change], dtype=x.dtype)

    return op


def test_a_float64_result_passes_if_rounding_of_the_inputs_explains_its_error() -> None:
    off = tensor([1.0 + 1e-5], dtype=D)
    answer([off], sensitive_to_an_ulp(1e-6))
    with pytest.raises(Mismatch):
        answer([off], sensitive_to_an_ulp(1e-9))


def test_an_explicit_tolerance_is_the_last_word() -> None:
    loose = {"loose": known("tolerance", rtol=0.1, atol=0.0, reason="for the test")}
    tight = {"tight": known("tolerance", rtol=0.01, atol=0.0, reason="for the test")}
    answer([tensor([1.05])], [tensor([1.0])], entries=loose)
    op = rounded_to_float32(1.05, 1.0)
    answer([tensor([1.05])], op, dtype="float32")
    with pytest.raises(Mismatch, match=r"rtol 0\.01"):
        answer([tensor([1.05])], op, dtype="float32", entries=tight)


class Changed(TorchTarget):
    """A target whose gradients are changed."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def vjp(self, f: Callable[..., Any], *primals: Any) -> Any:
        outputs, pullback = super().vjp(f, *primals)
        return outputs, lambda v: tuple(map(self.change, pullback(v)))


def check_slope(change: Callable[[torch.Tensor], torch.Tensor], dtype: str = "float64") -> int:
    """Compare changed gradients of relu at its kink and beside it with differences of values."""
    row = row_of({"args": [tensor([0.0, 1.0], dtype=getattr(torch, dtype))]}, call="torch:relu")
    made = case("own.slope", dtype, Changed(change), ops={"own.slope": row})
    made.assert_same("vjp", against="numeric")
    return made.compared


def test_unknown_entries_of_a_numeric_reference_are_left_out() -> None:
    assert check_slope(lambda g: g + tensor([7.0, 0.0], dtype=D)) == 1
    with pytest.raises(Mismatch, match=r"at index \[1\]"):
        check_slope(lambda g: g + tensor([0.0, 7.0], dtype=D))


def test_a_numeric_reference_has_the_dtype_of_the_result_unless_it_was_widened() -> None:
    assert check_slope(lambda g: g, "float32") == 1
    with pytest.raises(Mismatch, match="dtype"):
        check_slope(lambda g: g.float())


def test_zeros_alone_show_nothing() -> None:
    with pytest.raises(Vacuous, match="all results are zero on both sides"):
        answer([torch.zeros(3)], [torch.zeros(3)])
    answer([torch.ones(3)], [torch.ones(3)])


def single_alone(x: torch.Tensor) -> torch.Tensor:
    """A program that cannot be asked in double precision."""
    if x.dtype is torch.float64:
        raise Unsuitable("refused: not in double precision")
    return x * 2


def test_a_difference_stays_one_where_the_second_run_cannot_be_asked() -> None:
    row = {
        "call": "tests.checks.test_compare:single_alone",
        "samples": [{"args": [{"shape": [4]}]}],
    }

    class Off(TorchTarget):
        def forward(self, f: Any) -> Any:
            return lambda *args: tuple(y + 1 for y in f(*args))

    made = case("own.single", "float32", Off(), ops={"own.single": row})
    with pytest.raises(Mismatch, match="largest error"):
        made.assert_same("forward", against="eager")
    case("own.single", "float32", ops={"own.single": row}).assert_same("forward", against="eager")
