"""An xfail accepts only the failure that it names."""

import datetime

import pytest

from gen.checks import Case, Cell, Family, Known, known
from gen.checks.case import SampleFailure
from gen.language.axes import USUAL
from gen.outcomes import Lacking, Mismatch, Vacuous
from gen.run.verdict import Verdict, attempt, settle
from gen.targets import load

TODAY = datetime.date(2026, 5, 1)
BOOM = known(
    "xfail", raises="RuntimeError", match="bo+m", reason="it booms", source="matrix.yaml:3:1"
)
WRONG = known("xfail", raises="Mismatch", match="largest error", reason="it is wrong")


def failing(*errors: Exception) -> list[SampleFailure]:
    return [SampleFailure(number, "float64[3]", error) for number, error in enumerate(errors)]


class Custom(NotImplementedError):
    pass


@pytest.mark.parametrize(
    "raises",
    [
        "Custom",
        "NotImplementedError",
        "RuntimeError",
        "builtins.RuntimeError",
        f"{__name__}.Custom",
    ],
)
def test_an_exception_is_known_by_its_class_or_a_base_class_plain_or_qualified(raises: str) -> None:
    assert known("xfail", raises=raises, reason="r").expects(Custom("x"))


def test_another_class_or_message_is_not_expected() -> None:
    assert not BOOM.expects(ValueError("boom"))
    assert not BOOM.expects(RuntimeError("bm"))


def test_nothing_failed_and_nothing_known_is_a_pass() -> None:
    assert settle({}, []) == Verdict("passed")


def test_the_expected_failure_is_xfailed_with_its_reason() -> None:
    verdict = settle({"boom": BOOM}, failing(RuntimeError("booom")))
    assert (verdict.outcome, verdict.why, verdict.happened) == ("xfailed", "it booms", ("boom",))


def test_one_unexpected_failure_among_expected_ones_fails_and_shows_both() -> None:
    verdict = settle({"boom": BOOM}, failing(RuntimeError("boom"), ValueError("other")))
    assert verdict.outcome == "failed"
    assert "expected RuntimeError('bo+m') [boom], got ValueError: other" in verdict.why
    assert [failure.sample for failure in verdict.failures] == [1]


def test_samples_may_fail_in_different_known_ways() -> None:
    verdict = settle(
        {"boom": BOOM, "wrong": WRONG}, failing(RuntimeError("boom"), Mismatch("largest error 1"))
    )
    assert (verdict.outcome, set(verdict.happened)) == ("xfailed", {"boom", "wrong"})


def test_an_entry_that_does_not_happen_fails_and_says_which_to_remove() -> None:
    verdict = settle({"boom": BOOM}, [])
    assert verdict.outcome == "xpassed" and verdict.failed
    assert "'boom' «it booms» (matrix.yaml:3:1)" in verdict.why


def test_an_entry_need_not_happen_in_the_one_sample_of_a_rerun() -> None:
    assert settle({"boom": BOOM}, [], partial=True).outcome == "passed"


def test_an_entry_that_names_no_device_need_not_happen_where_tensors_have_no_values() -> None:
    assert settle({"wrong": WRONG}, [], values=False).outcome == "passed"
    assert settle({"wrong": WRONG}, failing(RuntimeError("boom")), values=False).outcome == "failed"
    here = known(
        "xfail",
        device="meta",
        raises="Mismatch",
        match="has shape",
        reason="its meta kernel is wrong",
    )
    assert settle({"here": here}, [], values=False).outcome == "xpassed"


def test_zeros_compared_with_zeros_are_a_failure_of_their_own_name() -> None:
    verdict = settle({}, [SampleFailure(None, "", Vacuous("nothing was compared"))])
    assert verdict.outcome == "vacuous" and verdict.failed


def run(body: object, **entries: Known) -> Verdict:
    case = Case(
        Cell("f", "float64", USUAL, "smoke", ()),
        "check",
        Family("demo"),
        load("torch"),
        entries=entries,
    )
    return attempt(body, case, entries, TODAY)  # type: ignore[arg-type]


def unreachable(case: Case) -> None:
    raise AssertionError("ran")


def test_a_skipped_case_does_not_run() -> None:
    assert run(unreachable, slow=known("skip", reason="takes minutes")) == Verdict(
        "skipped", "takes minutes", happened=("slow",)
    )


@pytest.mark.parametrize("kind", ["skip", "xfail", "vanishes", "tolerance"])
def test_an_entry_past_its_date_fails_whatever_it_says(kind: str) -> None:
    extra = {"raises": "E"} if kind == "xfail" else {"rtol": 1.0} if kind == "tolerance" else {}
    verdict = run(unreachable, old=known(kind, until="2026-04-30", reason="r", **extra))
    assert verdict.outcome == "failed" and "held until 2026-04-30" in verdict.why


def test_a_transform_that_the_target_lacks_is_no_failure_and_no_pass() -> None:
    def body(case: Case) -> None:
        raise Lacking("target toy lacks jvp")

    assert run(body, boom=BOOM) == Verdict("lacking", "target toy lacks jvp")


def test_an_error_outside_of_any_sample_can_be_expected_too() -> None:
    def body(case: Case) -> None:
        raise RuntimeError("boom while making samples")

    assert run(body, boom=BOOM).outcome == "xfailed"
    assert run(body).failures[0].sample is None


def test_a_real_comparison_passes_through() -> None:
    cell = Cell("torch.sin", "float64", USUAL, "smoke", ())
    case = Case(cell, "vjp", Family("unary"), load("torch"))
    assert (
        attempt(lambda case: case.assert_same("vjp", against="upstream"), case, {}, TODAY).outcome
        == "passed"
    )
    assert case.compared > 0
