"""Single questions of a call: what a tensor says of itself, what an optimizer has.

Inside: ``runtime.aot.python_state.reads``. A call asks all questions of its guard in turn, and a
program shows only that one of them failed."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.python_state.reads import (
    ELEMENTS,
    FACTS,
    Read,
    Slots,
    asked_for,
    facts,
    look_up,
    once,
    same,
    unchanged,
)
from runtime.aot.python_state.values import MISSING


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 1.0


def by_source(read: Read) -> bool:
    names: dict[str, Any] = {}

    def constant(x: Any) -> str:
        names[f"k{len(names)}"] = x
        return f"k{len(names) - 1}"

    source = read.condition(constant)
    return bool(eval(source, names))


def an_item(value: Any, other: Any, key: Any = "a") -> tuple[Read, Callable[[], Any]]:
    owner = {key: value}
    return Read(owner, key, value), lambda: owner.__setitem__(key, other)


def in_slot() -> tuple[Read, Callable[[], Any]]:
    s = Slotted()
    return Read(Slots(s), "rate", 1.0), lambda: setattr(s, "rate", 2.0)


def of_tensor(name: Any, value: Any, change: Callable[[Any], Any]) -> Any:
    t = torch.ones(2)
    return Read(t, name, value(t)), lambda: change(t)


CASES: dict[str, Callable[[], tuple[Read, Callable[[], Any]]]] = {
    "an item": lambda: an_item(1.5, 2.5),
    "an item of another type": lambda: an_item(1, 1.0),
    "an object": lambda: an_item(object(), object()),
    "a tuple": lambda: an_item((1, (0.0,)), (1, (-0.0,))),
    "a tensor as a key": lambda: an_item(1, 2, torch.ones(1)),
    "what is not there": lambda: an_item(MISSING, 1),
    "a slot": in_slot,
    "what a tensor says": lambda: of_tensor(FACTS, facts, lambda t: t.requires_grad_()),
    "its elements": lambda: of_tensor(
        ELEMENTS, lambda t: look_up(t, ELEMENTS), lambda t: t.mul_(2)
    ),
    "how often it was written to": lambda: of_tensor(
        "_version", lambda t: t._version, lambda t: t.add_(1)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_question_and_its_source_have_one_answer(name: str) -> None:
    read, change = CASES[name]()
    assert read.holds() and by_source(read)
    change()
    assert not read.holds() and not by_source(read)


def test_a_variable_that_is_gone_and_that_the_program_does_not_come_to_is_no_error() -> None:
    scale, asked = 2.0, True

    def f(x: Any) -> Any:
        return x * scale if asked else x  # noqa: F821

    compiled = aot_function(f, nop)
    assert compiled(torch.ones(1)).item() == 2.0
    asked = False
    del scale
    assert compiled(torch.ones(1)).item() == 1.0


OBJECT = object()
SAME: list[tuple[Any, Any, bool]] = [
    (OBJECT, OBJECT, True),
    (object(), object(), False),
    (1, True, False),
    (1, 1, True),
    (1, 2, False),
    (1.0, 1.0, True),
    (0.0, -0.0, False),
    (math.nan, -math.nan, True),
    (1j, 1j, True),
    (complex(0.0, -0.0), 0j, False),
    ("a", "a", True),
    ("a", b"a", False),
    (None, None, True),
    (torch.float32, torch.float32, True),
    (torch.float32, torch.float64, False),
    (torch.device("cpu"), torch.device("cpu"), True),
    (torch.device("cpu"), torch.device("meta"), False),
    ((1, 2), (1, 2), True),
    ((1, 2), (1, 2, 3), False),
    ((1, 2, 3), (1, 2), False),
    ((1, 2), [1, 2], False),
    ([1, (0.0,)], [1, (-0.0,)], False),
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1}, {"a": 1.0}, False),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
    ({"a": 1}, OrderedDict(a=1), False),
    ({"a": 1}, {"a": 1, "b": 1}, False),
    (frozenset([1]), frozenset([1]), True),
]


@pytest.mark.parametrize("a, b, expected", SAME)
def test_values_are_the_same_for_a_graph(a: Any, b: Any, expected: bool) -> None:
    assert same(a, b) is expected and same(b, a) is expected


def test_where_a_tensor_is_may_be_asked() -> None:
    t = torch.ones(4)[1:]
    for x in (t, runtime.wrap(t)):
        assert (look_up(x, "data_ptr"), look_up(x, "storage_offset")) == (t.data_ptr(), 1)
    assert look_up(t, FACTS) == facts(t) and look_up(Slots(Slotted()), "other") is MISSING


def test_what_a_tensor_says_of_itself() -> None:
    t = torch.ones(2, 3, dtype=torch.float64).t()
    assert facts(t) == (
        False,
        True,
        torch.float64,
        torch.device("cpu"),
        torch.strided,
        ((3, 2), (1, 3)),
        torch.Tensor,
    )
    assert (
        str(facts(t)) == "float64[3, 2]"
        and str(facts(torch.ones(1, requires_grad=True))) == "float32[1] that requires grad"
    )
    assert facts(torch.ones(1, device="meta")).device.type == "meta"
    sparse = torch.eye(2).to_sparse()
    assert facts(sparse)[4:] == (torch.sparse_coo, ((2, 2), (2, True)), torch.Tensor)
    made = torch.ones(1, requires_grad=True) * 1
    assert facts(made)[:2] == (True, False)


def test_what_a_call_does_not_ask_for() -> None:
    t, w = torch.ones(1), torch.ones(1)
    owner: dict[str, Any] = {"a": 1}
    item, of_t, of_w = Read(owner, "a", 1), Read(t, FACTS, facts(t)), Read(w, FACTS, facts(w))
    version = Read(t, "_version", 0)
    reads = [item, of_t, of_w, version]
    assert asked_for(reads, [], frozenset()) == reads
    assert asked_for(reads, [t], frozenset()) == [item, of_w, version]
    assert asked_for(reads, [], frozenset([(id(owner), "a")])) == [of_t, of_w, version]


def test_each_place_is_asked_for_once_and_the_last_time() -> None:
    owner: dict[str, Any] = {}
    first, second, other = Read(owner, "a", 1), Read(owner, "a", 2), Read(owner, "b", 1)
    assert once([first, other, second]) == [second, other]


def test_what_the_program_has_changed_is_told_and_left_out(
    recwarn: pytest.WarningsRecorder,
) -> None:
    owner = {"a": 1, "b": 2}
    kept, changed = Read(owner, "a", 1), Read(owner, "b", 1)
    assert unchanged([kept]) == [kept] and not recwarn
    assert unchanged([kept, changed, changed]) == [kept]
    (told,) = recwarn
    assert "reads and changes the 'b' of a dict. A compiled" in str(told.message)


@pytest.mark.parametrize(
    "read, text",
    [
        (Read({}, "a", 1), "the 'a' of a dict"),
        (Read(Slots(Slotted()), "rate", 1.0), "the 'rate' of a Slotted"),
        (Read(torch.ones(1), FACTS, None), "what a Tensor says of itself"),
        (Read(torch.ones(1), ELEMENTS, None), "the elements of a Tensor"),
        (Read({}, torch.ones(1), 1), "the Tensor of a dict"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_question_is_named(read: Read, text: str) -> None:
    assert str(read) == text
