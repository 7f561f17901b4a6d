"""Which errors of both libraries count as the same, and the message of a missing rule."""

import pytest
import torch

import runtime
from runtime import func
from runtime.errors import MissingRule

from .errors import first_sentence, told


@pytest.mark.parametrize(
    "text",
    [
        "Can't do it. Do that.",
        "Can't do it.\nDo",
        "Can't do it.Do that instead",
        "Can't do it",
        "Can't  do it.",
        "\nCan't do it\n\nDo",
    ],
)
def test_the_fault_is_told_by_the_first_sentence(text: str) -> None:
    assert first_sentence(text) == "Can't do it"


@pytest.mark.parametrize(
    "text",
    [
        "a torch.FloatTensor [2], at 0.5: x",
        "lib.f: `a=1` and .b() do not go together (yet)",
        "[1], i.e., one",
    ],
)
def test_dots_within_names_and_numbers_end_no_sentence(text: str) -> None:
    assert first_sentence(f"{text}. And more. And more") == text


def test_advice_makes_no_other_error() -> None:
    assert told(RuntimeError("a leaf was written to. Clone it")) == told(
        RuntimeError("a leaf was written to. Use no_grad.")
    )


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


class TestMissingRule:
    """The first sentence tells users what to do, the second tells maintainers where the rule
    goes."""

    def test_of_a_whole_op(self) -> None:
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        with pytest.raises(MissingRule) as caught:
            torch.geqrf(x[None])[0].sum().backward()
        users, maintainers = str(caught.value).split(" For maintainers: ")
        assert users.startswith(
            "aten.geqrf.default has no vjp rule, so its gradient is not known: "
            "detach() the op's arguments"
        )
        assert users.endswith("or report the op.") and "runtime/rules" not in users
        assert "runtime/rules/" in maintainers and "docs/rules.md" in maintainers

    def test_of_one_argument_of_an_op_that_has_rules_for_others(self) -> None:
        weight = runtime.tensor([1.0, 2.0], requires_grad=True)
        x = runtime.tensor([[1.0, 2.0]], requires_grad=True)
        loss = torch.nn.functional.nll_loss(x, torch.tensor([0]), weight)
        known = (
            r"nll_loss_forward\.default has no vjp rule for its argument 'weight' "
            r"\(it has one for 'self'\)"
        )
        with pytest.raises(MissingRule, match=rf"{known}, .* what is passed as 'weight' if"):
            loss.backward()

    def test_of_a_tangent(self) -> None:
        with pytest.raises(
            MissingRule,
            match=(
                r"forward AD with igamma .* no jvp rule for its argument 'self' "
                r"\(it has one for 'other'\)"
            ),
        ):
            func.jvp(torch.igamma, (torch.ones(2), torch.ones(2)), (torch.ones(2), torch.ones(2)))

    def test_of_a_batch(self) -> None:
        assert "fallback_policy" in str(MissingRule(str(torch.ops.aten.geqrf.default), "batch"))
