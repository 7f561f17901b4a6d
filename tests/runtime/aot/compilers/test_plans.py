"""The replay runs what ``plans.txt`` says. A change there is one of time or memory:
``python -m tests.runtime.aot.compilers.plans``."""

from __future__ import annotations

import pytest

from .plans import SECTIONS, section, stored

STORED = stored()


def test_there_is_a_plan_of_each_program() -> None:
    assert list(STORED) == list(SECTIONS)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_replay_runs_what_is_planned(title: str) -> None:
    assert section(title) == STORED[title]
