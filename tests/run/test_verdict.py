"""An xfail accepts only the failure that it names."""

from __future__ import annotations

import pytest

from gen.checks import known
from gen.run.results import CellResult, read

pytest_plugins = "pytester"

BOOM = known(
    "xfail", raises="RuntimeError", match="bo+m", reason="it booms", source="matrix.yaml:3:1"
)
MODULE = """
import torch
from gen.checks import cases, family, known, op
from gen.outcomes import Lacking, Mismatch, Vacuous

def failing(x):
    "Fail by the number of elements, and pass for one element."
    error = {{2: RuntimeError("booom"), 3: ValueError("other"), 4: Mismatch("largest error 1")}}
    if x.numel() in error:
        raise error[x.numel()]
    return x * 2

def row(*sizes):
    samples = [{{"args": [{{"shape": [size]}}]}} for size in sizes]
    return {{"call": "test_demo:failing", "samples": samples}}

FAMILY = family(
    "demo",
    ops={{"own.f": row({sizes})}},
    known={{
        "boom": known(
            "xfail", raises="RuntimeError", match="bo+m", reason="it booms",
            source="matrix.yaml:3:1",
        ),
        "wrong": known("xfail", raises="Mismatch", match="largest error", reason="it is wrong"),
        "here": known(
            "xfail", device="meta", raises="Mismatch", match="has shape",
            reason="its meta kernel is wrong",
        ),
        "slow": known("skip", reason="takes minutes"),
        "old_skip": known("skip", until="2026-04-30", reason="r"),
        "old_xfail": known("xfail", raises="E", until="2026-04-30", reason="r"),
        "old_vanishes": known("vanishes", until="2026-04-30", reason="r"),
        "old_tolerance": known("tolerance", rtol=1.0, until="2026-04-30", reason="r"),
    }},
)

@cases(op("own.f", smoke="float64", known="{entries}"))
def test_forward(case):
    {body}
"""
COMPARE = 'case.assert_same("forward", against="eager")'


class Verdicts:
    """Runs of one cell, each in a folder of its own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(
        self, sizes: str, *args: str, entries: str = "", body: str = COMPARE, device: str = "cpu"
    ) -> CellResult:
        """Return the result of a cell whose samples have these sizes."""
        self.pytester.makepyfile(test_demo=MODULE.format(sizes=sizes, entries=entries, body=body))
        self.pytester.syspathinsert()
        self.pytester.runpytest_inprocess(
            *("-p", "gen.run.plugin", "-p", "no:cacheprovider", "--target", "torch"),
            *("--device", device, "--results", "r.jsonl", *args),
        )
        (cell,) = read(self.pytester.path / "r.jsonl").cells
        return cell


@pytest.fixture
def verdict(pytester: pytest.Pytester) -> Verdicts:
    return Verdicts(pytester)


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


def test_nothing_failed_and_nothing_known_is_a_pass(verdict: Verdicts) -> None:
    found = verdict("1,")
    assert (found.outcome, found.why, found.entries) == ("passed", "", ())
    assert (found.samples, found.failing) == (1, None)


def test_the_expected_failure_is_xfailed_with_its_reason(verdict: Verdicts) -> None:
    found = verdict("1, 2", entries="boom")
    assert (found.outcome, found.why, found.entries) == ("xfailed", "it booms", ("demo:boom",))


def test_one_unexpected_failure_among_expected_ones_fails_and_shows_both(
    verdict: Verdicts,
) -> None:
    found = verdict("1, 2, 3", entries="boom")
    assert found.outcome == "failed"
    assert "expected RuntimeError('bo+m') [boom], got ValueError: other" in found.why
    assert found.entries == ("demo:boom",)
    assert verdict("1, 2, 3", "--sample", str(found.failing)).why == "ValueError: other"


def test_samples_may_fail_in_different_known_ways(verdict: Verdicts) -> None:
    found = verdict("2, 4", entries="boom wrong")
    assert (found.outcome, set(found.entries)) == ("xfailed", {"demo:boom", "demo:wrong"})


def test_an_entry_that_does_not_happen_fails_and_says_which_to_remove(verdict: Verdicts) -> None:
    found = verdict("1,", entries="boom")
    assert found.outcome == "xpassed"
    assert "'boom' «it booms» (matrix.yaml:3:1)" in found.why


def test_an_entry_need_not_happen_in_the_one_sample_of_a_rerun(verdict: Verdicts) -> None:
    assert verdict("1, 2", "--sample", "0", entries="boom").outcome in ("passed", "xfailed")
    assert verdict("1,", "--sample", "0", entries="boom").outcome == "passed"


def test_an_entry_that_names_no_device_need_not_happen_where_tensors_have_no_values(
    verdict: Verdicts,
) -> None:
    assert verdict("1,", entries="wrong", device="meta").outcome == "passed"
    assert verdict("2,", entries="wrong", device="meta").outcome == "failed"
    assert verdict("1,", entries="here", device="meta").outcome == "xpassed"


def test_zeros_compared_with_zeros_are_a_failure_of_their_own_name(verdict: Verdicts) -> None:
    found = verdict("0,")
    assert found.outcome == "vacuous" and "nothing was compared" in found.why


UNREACHABLE = 'raise AssertionError("ran")'


def test_a_skipped_case_does_not_run(verdict: Verdicts) -> None:
    found = verdict("1,", entries="slow", body=UNREACHABLE)
    assert (found.outcome, found.entries) == ("skipped", ("demo:slow",))
    assert "takes minutes" in found.why


@pytest.mark.parametrize("kind", ["skip", "xfail", "vanishes", "tolerance"])
def test_an_entry_past_its_date_fails_whatever_it_says(kind: str, verdict: Verdicts) -> None:
    found = verdict("1,", entries=f"old_{kind}", body=UNREACHABLE)
    assert found.outcome == "failed" and "held until 2026-04-30" in found.why


def test_a_transform_that_the_target_lacks_is_no_failure_and_no_pass(verdict: Verdicts) -> None:
    found = verdict("1,", entries="boom", body='raise Lacking("target toy lacks jvp")')
    assert (found.outcome, found.why) == ("lacking", "target toy lacks jvp")


def test_an_error_outside_of_any_sample_can_be_expected_too(verdict: Verdicts) -> None:
    body = 'raise RuntimeError("boom while making samples")'
    assert verdict("1,", entries="boom", body=body).outcome == "xfailed"
    found = verdict("1,", body=body)
    assert (found.outcome, found.failing) == ("failed", None)
