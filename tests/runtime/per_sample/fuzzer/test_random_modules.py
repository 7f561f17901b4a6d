"""Random modules have torch's gradients for each sample, or are refused where their samples mix.

    PROGRAMS=2000 pytest tests/runtime/per_sample/fuzzer/test_random_modules.py      # more of them
    SEED=4711 PROGRAMS=1 pytest tests/runtime/per_sample/fuzzer/test_random_modules.py

A module that fails is printed without the statements that do not matter.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from .mixing import MIXING, MIXING_OF
from .outcomes import Outcome, difference, outcome, reference
from .programs import Case, Step, random_case

NUMBER, FIRST = int(os.environ.get("PROGRAMS", "200")), int(os.environ.get("SEED", "0"))

REFUSED = (
    "may be their number",  # a factor that is the size of the batch by chance
    "by their position in the batch",  # some samples are treated in another way than others
)


def described(case: Case, found: Outcome) -> str:
    """The failing part of a case, as source."""
    small = case.shrunk(lambda part: outcome(part).what == found.what)
    return f"{small}\n--> {outcome(small)}\n"


def test_random_modules_have_the_gradients_of_each_sample_or_are_refused() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for seed in range(FIRST, FIRST + NUMBER):
        case = random_case(seed)
        found = outcome(case)
        counts[found.what + (" mixing" if case.mixes else "")] += 1
        # a factor that is the size of the batch by chance; and samples that are treated by their
        # position, as no sample alone is
        known = "may be their number" in found.kind or "by their position" in found.kind
        if found.what in ("different", "error") or (
            found.what == "refused" and not case.mixes and not known
        ):
            wrong.append(described(case, found))
    print(counts)
    assert not wrong, "\n".join(wrong)
    assert NUMBER == 1 or (
        counts["same"] > 0.5 * NUMBER and counts["refused mixing"] > 0.2 * NUMBER
    ), counts


def simple(*texts: str, kind: str = "plain") -> Case:
    """A module of these statements on (B, T, N)."""
    steps = [Step(text, kind, "s", "s") for text in texts]
    return Case(
        0, 3, 3, 4, (*steps, Step("per = h.pow(2).sum((1, 2)); loss = per.sum()", "loss", "s", "s"))
    )


@pytest.mark.parametrize("text", MIXING + MIXING_OF["s"])
def test_every_statement_that_mixes_samples_is_refused_by_itself(text: str) -> None:
    case = simple("h = h * <P N>", text, "h = h * <P N>")
    steps = [replace(step, kind="mixing") if step.text == text else step for step in case.steps]
    found = outcome(replace(case, steps=tuple(steps)))
    assert found.what in ("refused", "nothing"), found


class TestTheFuzzer:
    """A fuzzer that sees nothing finds nothing."""

    def test_a_seed_gives_one_program(self) -> None:
        assert str(random_case(3)) == str(random_case(3)) != str(random_case(4))

    def test_a_sample_that_sees_another_one_has_another_reference(self) -> None:
        alone, mixed = (
            simple("h = h * <P N>", "h = h.tanh()"),
            simple("h = h * <P N>", "h = h + h.mean(0)"),
        )
        assert difference(reference(alone), reference(alone)) == ""
        assert difference(reference(alone), reference(mixed)) != ""

    def test_one_entry_of_one_sample_that_differs_is_found(self) -> None:
        expected, got = reference(simple("h = h * <P N>")), reference(simple("h = h * <P N>"))
        got[1][0][2] += 1e-3
        assert difference(expected, got).startswith("sample 1, parameter 0")

    def test_both_references_agree(self) -> None:
        """Batches of one, and the loss of each sample in the whole batch."""
        case = simple("h = h * <P N>")
        whole = replace(case, steps=(replace(case.steps[0], kind="whole"), case.steps[1]))
        assert difference(reference(case)[:-1], reference(whole)[:-1]) == ""

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("h = h * <P N>", "same"),
            ("h = h * <P N> - h.mean(0)", "refused"),
            ("h = h.tanh()", "nothing"),
        ],
    )
    def test_outcomes_have_names(self, text: str, what: str) -> None:
        assert outcome(simple(text)).what == what

    def test_a_failing_module_loses_what_does_not_matter(self) -> None:
        case = simple("h = h.tanh()", "h = h * <P N>", "h = h.sin()")
        assert [
            step.text
            for step in case.shrunk(lambda part: "torch.randn((N,))" in str(part)).steps[:-1]
        ] == ["h = h * <P N>"]
