"""Expected failures of the project's own matrix: an entry of a wrong value names its size, or
says why it cannot."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from gen.checks import Family

ROOT = Path(__file__).parents[2]
# no number, alternatives, inf or pattern of digits behind it
SIZELESS = re.compile(r"largest error(?! [\d(i\\])")
CANNOT = re.compile(r"the numbers differ from (run to run|machine to machine)")


def says_too_little(match: str, reason: str) -> bool:
    """Return whether `match` takes a wrong value of any size, and `reason` does not say that
    the size varies."""
    return bool(SIZELESS.search(match)) and not CANNOT.search(reason)


@pytest.mark.parametrize(
    ("match", "reason", "too_little"),
    [
        ("largest error", "it is wrong", True),
        ("has shape|largest error|entries differ", "it is wrong", True),
        (r"output 0 of 2, float64\[3\]: largest error", "it is wrong", True),
        ("largest error 1|largest error", "it is wrong", True),
        (r"output 0 of 2, float64\[3\]: largest error 0\.5 at index \[1\]", "it is wrong", False),
        (r"largest error (0\.5|inf) at index \[1\]", "it is wrong", False),
        (r"largest error \d\S*e-05", "it is wrong", False),
        (
            "largest error",
            "it reads memory of others, so the numbers differ from run to run",
            False,
        ),
    ],
)
def test_a_match_without_a_size_says_too_little(match: str, reason: str, too_little: bool) -> None:
    assert says_too_little(match, reason) == too_little


def test_expected_wrong_values_are_named_by_their_size() -> None:
    """A match of `largest error` alone would take any other mistake of the cell for
    the expected one."""
    modules = sorted((ROOT / "generated_tests").glob("test_*.py"))
    families: list[Family] = [
        importlib.import_module(f"generated_tests.{path.stem}").FAMILY for path in modules
    ]
    expected = [
        entry for family in families for entry in family.known.values() if entry.kind == "xfail"
    ]
    assert len(expected) > 100
    assert [
        (entry.source, entry.match, entry.reason)
        for entry in expected
        if says_too_little(entry.match or "", entry.reason)
    ] == []
