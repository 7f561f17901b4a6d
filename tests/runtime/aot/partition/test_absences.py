"""Backward graphs without some cotangents are those of ``absences.txt``:
``python -m tests.runtime.aot.partition.absences``."""

from __future__ import annotations

import pytest

from .absences import PROGRAMS, section, stored

STORED = stored()


def test_there_are_graphs_of_each_program() -> None:
    assert list(STORED) == list(PROGRAMS)


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_pass_from_some_results_runs_what_is_stored(title: str) -> None:
    assert section(title) == STORED[title]
