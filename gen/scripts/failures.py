"""Which program shows what a case found."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gen.checks.case import Case
from gen.checks.evaluate import Comparison
from gen.scripts.python_values import NoScript
from gen.scripts.raising import of_call
from gen.scripts.standalone import Script, script

Found = tuple[Comparison, str, Exception | None]
"""A comparison, its reference and its error, as :meth:`Case.failing` gives them."""


def of_failure(case: Case, sample: int) -> str | None:
    """The program of a sample of `case` that failed, if one of at most 40 lines shows the failure.
    The text says if writing it failed."""
    if not case.asserted:
        return None
    again = replace(case, only=sample)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = of_case(again, **case.asserted)
    except NoScript:
        return None
    except Exception as error:  # it must not take the place of the failure that is reported
        return f"# it could not be written: {type(error).__name__}: {error}"
    short = found.text.count("\n") <= _LINES and len(found.text) <= _CHARACTERS
    return found.text if found.differs and short else None


def of_case(case: Case, **asserted: Any) -> Script:
    """The program of the first call whose error is not the one due, else of the first comparison
    that fails, else of the first one.

    `asserted`: the arguments of :meth:`Case.assert_same`. Raises NoScript if there is no program.
    """
    reasons: dict[str, None] = {}
    for call in case.raising(**asserted):
        try:
            return of_call(case, *call)
        except NoScript as reason:
            reasons[str(reason)] = None
    found = [(comparison, word, error) for _, comparison, word, error in case.failing(**asserted)]
    if reasons and not found:
        raise NoScript("; ".join(reasons))
    return first(case, found)


def first(case: Case, found: list[Found]) -> Script:
    """The first program that shows a difference, else the first one."""
    if not found:
        raise NoScript("nothing is compared on this sample")
    reasons: dict[str, None] = {}
    shown = list(
        _written(case, sorted(found, key=lambda one: (one[2] is None, _size(one[0]))), reasons)
    )
    if not shown:
        raise NoScript("; ".join(reasons))
    return next((one for one in shown if one.differs), shown[0])


def _written(case: Case, found: list[Found], reasons: dict[str, None]) -> Iterator[Script]:
    fails = any(error is not None for *_, error in found)
    for comparison, word, error in found[:_TRIED]:
        if fails and error is None:
            return
        try:
            made = script(case, comparison, word)
        except NoScript as reason:
            reasons[str(reason)] = None
            continue
        yield made
        if made.differs or not fails:
            return


def _size(comparison: Comparison) -> float:
    """The elements of all inputs. A program on none shows the least."""
    return sum(x.numel() for x in comparison.program.inputs) or math.inf


_TRIED = 40  # comparisons of a cell
_LINES, _CHARACTERS = 40, 6_000  # of a program in a report of a failure
