"""Partitions choose what ``choices.txt`` says. A change there is one of time or memory.

python -m tests.runtime.aot.partition.inside.choices      # writes the file anew

Inside: ``choices`` of ``runtime.aot.partition.budget``. A budget shows one choice, and the file
has all of them with their bytes and their work."""

from __future__ import annotations

import pytest

from .choices import PROGRAMS, section, stored

STORED = stored()


def test_there_are_choices_for_each_program() -> None:
    assert list(STORED) == list(PROGRAMS)


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_partition_chooses_what_is_stored(title: str) -> None:
    assert section(title) == STORED[title]
