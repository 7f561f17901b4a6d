"""What a read asks for, as generated source and as a question: the two agree, and cost as little as
the kind of the place allows."""

from __future__ import annotations

import math
import re
from collections import ChainMap, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from types import CellType, MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.python_state.reads import (
    FACTS,
    MISSING,
    WHOLE,
    Read,
    Slots,
    asked_for,
    facts,
    look_up,
    once,
    same,
    unchanged,
)


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 1.0


def with_default(x: Any, k: float = 2.0) -> Any:
    return x * k


def cell(value: Any) -> CellType:
    return (lambda: value).__closure__[0]  # type: ignore[index]


def condition(read: Read) -> tuple[str, dict[str, Any]]:
    """The source of the question, with the kinds of the objects in place of their names,
    and the objects."""
    names: dict[str, Any] = {}

    def constant(x: Any) -> str:
        names[f"k{len(names)}"] = x
        return f"k{len(names) - 1}"

    return read.condition(constant), names


def shown(read: Read) -> str:
    source, names = condition(read)

    def kind(found: re.Match[str]) -> str:
        x = names[found[0]]
        return (
            "value"
            if x is read.value
            else "owner"
            if x is read.owner
            else "MISSING"
            if x is MISSING
            else getattr(x, "__name__", type(x).__name__)
        )

    return re.sub(r"\bk\d+\b", kind, source)


def holds(read: Read) -> bool:
    source, names = condition(read)
    return bool(eval(source, names))


def setting(items: Any, key: Any, value: Any) -> Callable[[], None]:
    return lambda: items.__setitem__(key, value)


# a read, the source of its question, and what makes the answer no
Case = tuple[Read, str, Callable[[], Any]]


def an_item(value: Any, other: Any, key: Any = "a") -> tuple[Read, Callable[[], None]]:
    owner = {key: value}
    return Read(owner, key, value), setting(owner, key, other)


def whole(kept: Any, copied: Any, change: Callable[[Any], Any]) -> tuple[Read, Callable[[], Any]]:
    return Read(kept, WHOLE, copied), lambda: change(kept)


def in_cell() -> tuple[Read, Callable[[], Any]]:
    c = cell(1.0)
    return Read(c, None, 1.0), lambda: setattr(c, "cell_contents", 2.0)


def in_slot() -> tuple[Read, Callable[[], Any]]:
    s = Slotted()
    return Read(Slots(s), "rate", 1.0), lambda: setattr(s, "rate", 2.0)


def defaults() -> tuple[Read, Callable[[], Any]]:
    def f(x: Any, k: float = 2.0) -> Any:
        return x * k

    return Read(Slots(f), "__defaults__", f.__defaults__), lambda: setattr(
        f, "__defaults__", (3.0,)
    )


def in_context() -> tuple[Read, Callable[[], Any]]:
    context: ContextVar[float] = ContextVar("context")
    context.set(1.0)
    return Read(context, "get", 1.0), lambda: context.set(2.0)


def in_list() -> tuple[Read, Callable[[], Any]]:
    items = [1.0, 2.0]
    return Read(items, -1, 2.0), lambda: items.append(3.0)


def said_by_a_tensor() -> tuple[Read, Callable[[], Any]]:
    t = torch.ones(2)
    return Read(t, FACTS, facts(t)), t.requires_grad_


def version() -> tuple[Read, Callable[[], Any]]:
    t = torch.ones(2)
    return Read(t, "_version", 0), lambda: t.add_(1)


BY_VALUE = "({} is value or same({}, value))"
GET = "owner.get('a', MISSING)"
CASES: dict[str, tuple[Callable[[], tuple[Read, Callable[[], Any]]], str]] = {
    "a number": (lambda: an_item(1.0, 2.0), BY_VALUE.format(GET, GET)),
    "a text": (lambda: an_item("a", "b"), BY_VALUE.format(GET, GET)),
    "a tuple": (lambda: an_item((1, 2), (1, 3)), BY_VALUE.format(GET, GET)),
    "an object": (lambda: an_item(Slotted(), Slotted()), f"{GET} is value"),
    "a list as an object": (lambda: an_item([1], [2]), f"{GET} is value"),
    "by a key that is no text": (
        lambda: an_item(1.0, 2.0, 7),
        BY_VALUE.format(*["owner.get(int, MISSING)"] * 2),
    ),
    "what is not there": (
        lambda: (lambda d: (Read(d, "a", MISSING), setting(d, "a", 1)))({}),
        "owner.get('a', value) is value",
    ),
    "a variable of a function around": (
        in_cell,
        BY_VALUE.format(*["(owner.cell_contents if owner != cell else MISSING)"] * 2),
    ),
    "a slot": (in_slot, BY_VALUE.format(*["look_up(owner, 'rate')"] * 2)),
    "defaults of a function": (
        defaults,
        BY_VALUE.format(*["function.__defaults__"] * 2).replace("function", "f"),
    ),
    "a variable of a context": (in_context, BY_VALUE.format(*["look_up(owner, 'get')"] * 2)),
    "an item of a list": (in_list, BY_VALUE.format(*["look_up(owner, -1)"] * 2)),
    "what a tensor says": (said_by_a_tensor, "facts(owner) == value"),
    "how often a tensor was written to": (
        version,
        BY_VALUE.format(*["look_up(owner, '_version')"] * 2),
    ),
    "an empty list": (lambda: whole([], [], lambda x: x.append(1)), "not owner"),
    "an empty dictionary": (lambda: whole({}, {}, lambda x: x.update(a=1)), "not owner"),
    "a list of numbers": (
        lambda: whole([1.0], [1.0], lambda x: x.append(2.0)),
        BY_VALUE.format("owner", "owner"),
    ),
    "a list of tuples": (
        lambda: whole([(1,)], [(1,)], lambda x: x.clear()),
        BY_VALUE.format("owner", "owner"),
    ),
    "a list of objects": (
        lambda: (lambda a: whole([a, a], [a, a], lambda x: x.pop()))(Slotted()),
        "len(owner) == 2 and all(map(is_, owner, value))",
    ),
    "a tuple of objects": (
        lambda: (lambda a: whole(deque([a]), deque([a]), lambda x: x.pop()))(Slotted()),
        BY_VALUE.format("owner", "owner"),
    ),
    "a dictionary of numbers": (
        lambda: whole({"a": 1}, {"a": 1}, lambda x: x.update(a=2)),
        BY_VALUE.format("owner", "owner"),
    ),
    "32 numbers": (
        lambda: whole([1] * 32, [1] * 32, lambda x: x.append(2)),
        BY_VALUE.format("owner", "owner"),
    ),
    "33 numbers": (
        lambda: whole([1] * 33, [1] * 33, lambda x: x.append(2)),
        "_long_same(owner, value)",
    ),
    "a set of 40": (
        lambda: whole(set(range(40)), set(range(40)), lambda x: x.add(-1)),
        "_long_same(owner, value)",
    ),
    "an array": (
        lambda: whole(np.ones(40), np.ones(40), lambda x: x.fill(2)),
        BY_VALUE.format("owner", "owner"),
    ),
    "an empty array": (
        lambda: whole(np.ones(0), np.ones(0), lambda x: x.resize(1, refcheck=False)),
        BY_VALUE.format("owner", "owner"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_read_asks_whether_the_same_is_there_in_the_cheapest_way(name: str) -> None:
    make, source = CASES[name]
    read, change = make()
    assert shown(read) == source
    assert read.holds() and holds(read)
    change()
    assert not read.holds() and not holds(read)


def test_an_empty_variable_of_a_function_around_is_missing() -> None:
    c = cell(1.0)
    del c.cell_contents
    assert look_up(c, None) is MISSING and not Read(c, None, 1.0).holds()
    assert not holds(Read(c, None, 1.0))


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
    (deque([1]), deque([1]), True),
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1}, {"a": 1.0}, False),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
    ({"a": 1}, OrderedDict(a=1), False),
    ({"a": 1}, {"a": 1, "b": 1}, False),
    ({1, 2}, {2, 1}, True),
    ({1, 2}, {2, 3}, False),
    (frozenset([1]), frozenset([1]), True),
    (np.ones(2), np.ones(2), True),
    (np.ones(2), np.zeros(2), False),
    (np.ones(2), np.ones((2, 1)), False),
    (np.ones(2), np.ones(2, np.float32), False),
    (np.zeros(2, np.int64), np.zeros(2), False),
    (np.array([OBJECT, 1]), np.array([OBJECT, 1]), True),
    (np.array([object()]), np.array([object()]), False),
]


@pytest.mark.parametrize("a, b, expected", SAME)
def test_objects_are_the_same_for_a_graph(a: Any, b: Any, expected: bool) -> None:
    assert same(a, b) is expected and same(b, a) is expected


@pytest.mark.parametrize(
    "a, b, expected",
    [
        ([OBJECT] * 40, [OBJECT] * 40, True),
        ([1.5] * 40, [1.5] * 39 + [2.5], False),
        ([1.5] * 40, [float("1.5")] * 40, True),
        ([1.5] * 40, [1.5] * 41, False),
        (set(range(40)), set(range(40)), True),
        (set(range(40)), set(range(1, 41)), False),
        (dict.fromkeys(range(40), OBJECT), dict.fromkeys(range(40), OBJECT), True),
        (dict.fromkeys(range(40), OBJECT), dict.fromkeys(range(40), object()), False),
        (dict.fromkeys(range(40), 1.5), dict.fromkeys(range(1, 41), 1.5), False),
        (dict.fromkeys(range(40), 1.5), dict.fromkeys(range(40), float("1.5")), True),
    ],
)
def test_long_containers_are_compared_with_all_their_items(a: Any, b: Any, expected: bool) -> None:
    read = Read(a, WHOLE, b)
    assert "_long_same" in shown(read) and holds(read) is expected and read.holds() is expected


def test_a_place_is_looked_up_without_a_call_of_the_users() -> None:
    t = torch.ones(4)[1:]
    assert (
        look_up(t, "storage_offset") == 1
        and look_up(t, "data_ptr") == t.data_ptr()
        and look_up(t, FACTS) == facts(t)
    )
    assert (
        look_up(runtime.wrap(t), "data_ptr") == t.data_ptr()
        and look_up(runtime.wrap(t), "storage_offset") == 1
    )
    assert look_up([1, 2], 1) == 2 and look_up([1, 2], -2) == 1
    assert look_up([1, 2], 2) is MISSING and look_up([1, 2], -3) is MISSING
    assert look_up({"a": 1}, "b") is MISSING and look_up(MappingProxyType({"a": 1}), "a") == 1
    assert look_up(ChainMap({"a": 1}), "a") == 1 and look_up(defaultdict(int), "a") is MISSING
    assert look_up(Slots(Slotted()), "other") is MISSING and look_up([1], WHOLE) == [1]


def test_what_a_tensor_says_of_itself() -> None:
    t = torch.ones(2, 3, dtype=torch.float64).t()
    assert facts(t) == (
        False,
        True,
        torch.float64,
        torch.device("cpu"),
        torch.strided,
        ((3, 2), (1, 3)),
    )
    assert (
        str(facts(t)) == "float64[3, 2]"
        and str(facts(torch.ones(1, requires_grad=True))) == "float32[1] that requires grad"
    )
    assert facts(torch.ones(1, device="meta")).device.type == "meta"
    sparse = torch.eye(2).to_sparse()
    assert facts(sparse)[4:] == (torch.sparse_coo, ((2, 2), None))
    made = torch.ones(1, requires_grad=True) * 1
    assert facts(made)[:2] == (True, False)


def test_what_a_call_does_not_ask_for() -> None:
    t, w = torch.ones(1), torch.ones(1)
    owner: dict[str, Any] = {"a": 1, "t": torch.ones(1)}
    item, of_t, of_w, held = (
        Read(owner, "a", 1),
        Read(t, FACTS, facts(t)),
        Read(w, FACTS, facts(w)),
        Read(owner, "t", owner["t"]),
    )
    of_held = Read(owner["t"], FACTS, facts(owner["t"]))
    reads = [item, of_t, of_w, held, of_held]
    assert asked_for(reads, [], frozenset()) == reads
    assert asked_for(reads, [t], frozenset()) == [item, of_w, held, of_held]
    assert asked_for(reads, [], frozenset([(id(owner), "a")])) == [of_t, of_w, held, of_held]
    assert asked_for(reads, [], frozenset([(id(owner), "t")])) == [item, of_t, of_w]
    version = Read(t, "_version", 0)
    assert asked_for([version, of_t], [t], frozenset()) == [version]


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
    "factory, value, kept",
    [(int, 0, True), (int, 1, False), (list, [], True), (lambda: 0, 0, False), (None, 0, False)],
)
def test_what_a_default_dictionary_makes_is_no_change(
    factory: Any, value: Any, kept: bool, recwarn: pytest.WarningsRecorder
) -> None:
    made: Any = defaultdict(factory)
    read = Read(made, "a", MISSING)
    made["a"] = value
    found = unchanged([read])
    assert [r.value for r in found] == ([value] if kept else []) and len(recwarn) == (not kept)


def test_a_default_dictionary_that_has_made_nothing_is_asked_as_before() -> None:
    made: Any = defaultdict(int)
    read = Read(made, "a", MISSING)
    assert unchanged([read]) == [read] and not made


@pytest.mark.parametrize(
    "read, text",
    [
        (Read({}, "a", 1), "the 'a' of a dict"),
        (Read([], WHOLE, []), "the items of a list"),
        (Read([], 1, 1), "the 1 of a list"),
        (Read(Slots(Slotted()), "rate", 1.0), "the 'rate' of a Slotted"),
        (Read(cell(1), None, 1), "a variable of a function around"),
        (Read(torch.ones(1), FACTS, None), "what a Tensor says of itself"),
        (Read({}, torch.ones(1), 1), "the Tensor of a dict"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_place_is_named(read: Read, text: str) -> None:
    assert str(read) == text
