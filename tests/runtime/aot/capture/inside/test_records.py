"""What a capture writes down is not changed afterwards, and two places are one only if they are one
object.

Inside: the records of ``aot.capture``, ``aot.python_state`` and ``jit.outcome``. Users get none of
them, so nobody but this package could change one or compare two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot.capture.program import Reach
from runtime.aot.capture.pullback import Pullback
from runtime.aot.capture.subclass_parts import Layouts, layout_of
from runtime.aot.python_state.reads import Read, Slots
from runtime.jit import Report
from runtime.jit.outcome import Entry, Float, Layout, Outcome
from tests.runtime.aot.subclass_helpers import two

OWNER: dict[str, Any] = {}
NUMBER = torch.zeros((), dtype=torch.float64)
FIXED: list[Any] = [
    Pullback(),
    Reach({}, {}),
    Slots(OWNER),
    Read(OWNER, "a", 1),
    layout_of(two()),
    Layouts((), (), (), ()),
    Report("f", (), ()),
]


@pytest.mark.parametrize("record", FIXED, ids=lambda x: type(x).__name__)
def test_a_record_is_not_changed(record: Any) -> None:
    name = dataclasses.fields(record)[0].name
    before = getattr(record, name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, 1)
    assert getattr(record, name) is before


PLACES: list[Callable[[], Any]] = [
    lambda: Slots(OWNER),
    lambda: Read(OWNER, "a", 1),
    lambda: Float(NUMBER),
    lambda: Outcome(None, [], None),  # type: ignore[arg-type]
    lambda: Entry(Layout(), [], []),
]


@pytest.mark.parametrize("make", PLACES, ids=lambda make: type(make()).__name__)
def test_two_records_of_the_same_are_two(make: Callable[[], Any]) -> None:
    first, second = make(), make()
    assert first != second and first == first and len({first, second, first}) == 2


def test_layouts_of_the_same_are_equal() -> None:
    first, second = layout_of(two()), layout_of(two())
    assert first is not second and first == second and hash(first) == hash(second)
    assert Layouts((first,), (), (), ()) == Layouts((second,), (), (), ())
