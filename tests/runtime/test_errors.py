"""What tests take for the same error in both libraries."""

import pytest

from .errors import first_sentence, told


@pytest.mark.parametrize(
    "text",
    ["Can't do it. Do that.", "Can't do it.\nDo", "Can't do it.Do that instead", "Can't do it", "Can't  do it.", "\nCan't do it\n\nDo"],
)
def test_the_fault_is_told_by_the_first_sentence(text: str) -> None:
    assert first_sentence(text) == "Can't do it"


@pytest.mark.parametrize("text", ["a torch.FloatTensor [2], at 0.5: x", "lib.f: `a=1` and .b() do not go together (yet)", "[1], i.e., one"])
def test_dots_within_names_and_numbers_end_no_sentence(text: str) -> None:
    assert first_sentence(f"{text}. And more. And more") == text


def test_advice_makes_no_other_error() -> None:
    assert told(RuntimeError("a leaf was written to. Clone it")) == told(RuntimeError("a leaf was written to. Use no_grad."))


@pytest.mark.parametrize(
    "other",
    [
        ValueError("output 0 was written to. Clone it."),
        RuntimeError("output 1 was written to. Clone it."),
        RuntimeError("Clone it. output 0 was written to."),
        RuntimeError("output 0 was written to by a hook. Clone it."),
        RuntimeError(""),
    ],
)
def test_another_type_or_another_fault_is_another_error(other: Exception) -> None:
    assert told(other) != told(RuntimeError("output 0 was written to. Clone it."))
