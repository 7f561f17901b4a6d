"""A cut is drawn as in ``pictures/``: ``python -m tests.runtime.aot.partition.pictures``
draws them anew."""

from __future__ import annotations

import pytest

from .pictures import PROGRAMS, picture, stored


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cut_is_drawn_as_before(name: str) -> None:
    assert picture(name) == stored(name)
