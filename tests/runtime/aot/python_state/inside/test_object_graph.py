"""What a graph of objects knows of each kind of object, how it grows, and when it lets go.

Inside: ``runtime.aot.python_state.object_graph``. A guard says that something has changed; which
objects the graph has met, and lets go, shows only in it."""

from __future__ import annotations

import array
import collections
import functools
import gc
import weakref
from abc import ABC
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runtime.aot.python_state import state_guard
from runtime.aot.python_state.code_names import names_of
from runtime.aot.python_state.dictionary_items import DictItems
from runtime.aot.python_state.entry_hook import watching
from runtime.aot.python_state.guard_batches import VERSIONS_TELL
from runtime.aot.python_state.nodes import Attributes, Cell, Place
from runtime.aot.python_state.object_graph import ObjectGraph, early_graph
from runtime.aot.python_state.state_guard import StateGuard
from runtime.aot.python_state.values import MISSING, same
from runtime.seam.user_code import unwatched, watched

VARIABLE: ContextVar[int] = ContextVar("VARIABLE", default=1)


class Plain:
    shared = 1

    def __init__(self) -> None:
        self.a = 1

    def method(self) -> int:
        return self.a


class Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1


class Items(list[int]):
    a = 1


class Meta(type):
    a = 1


class OfMeta(metaclass=Meta):
    pass


class Abstract(ABC):  # noqa: B024
    pass


class Colour(Enum):
    RED = 1

    def __init__(self, number: int) -> None:
        self.seen: list[int] = []


class Array(np.ndarray[Any, Any]):
    a: int


def with_default(x: int = 1, *, a: int = 2) -> int:
    return x + a


def cell_of(value: Any) -> Callable[[], Any]:
    return lambda: value


def named(x: Any) -> Any:
    """Has the names that the objects below are asked for."""
    return x.a, x.shared, x.method, x.weight


def graph_of(*roots: Any) -> ObjectGraph:
    graph = ObjectGraph(roots)
    graph.enter(named.__code__, named.__globals__)
    return graph


def _set(x: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(x, name, value)


Case = Callable[[], tuple[Any, Callable[[], Any]]]


def _case(make: Callable[[], Any], change: Callable[[Any], Any]) -> Case:
    def made() -> tuple[Any, Callable[[], Any]]:
        x = make()
        return x, lambda: change(x)

    return made


def _with(x: Any, name: str, value: Any) -> Any:
    setattr(x, name, value)
    return x


_kept = Plain()
_viewed: dict[str, list[int]] = {"a": []}

# an object, and what another call would find changed
KINDS: dict[str, Case] = {
    "an attribute": _case(Plain, lambda x: setattr(x, "a", 2)),
    "an attribute that is new": _case(Plain, lambda x: setattr(x, "shared", 2)),
    "an attribute that is gone": _case(Plain, lambda x: delattr(x, "a")),
    "its class": _case(Plain, lambda x: setattr(x, "__class__", type("Other", (Plain,), {}))),
    "a slot": _case(Slotted, lambda x: setattr(x, "a", 2)),
    "a slot that is empty": _case(Slotted, lambda x: delattr(x, "a")),
    "a list": _case(lambda: [1, 2], lambda x: x.append(3)),
    "an empty list": _case(list, lambda x: x.append(3)),
    "a list of the same length": _case(lambda: [1, 2], lambda x: x.__setitem__(0, 3)),
    "a list of a class of the user's": _case(lambda: Items([1]), lambda x: x.append(2)),
    "an attribute of such a list": _case(lambda: Items([1]), lambda x: setattr(x, "a", 2)),
    "a dictionary": _case(lambda: {"a": 1}, lambda x: x.update(b=2)),
    "an empty dictionary": _case(dict, lambda x: x.update(b=2)),
    "another value": _case(lambda: {"a": 1}, lambda x: x.update(a=1.0)),
    "another order": _case(lambda: collections.OrderedDict(a=1, b=2), lambda x: x.move_to_end("a")),
    "a set": _case(lambda: {1}, lambda x: x.add(2)),
    "an empty set": _case(set, lambda x: x.add(2)),
    "a deque": _case(lambda: collections.deque([1]), lambda x: x.appendleft(0)),
    "a default dictionary": _case(lambda: collections.defaultdict(int, a=1), lambda x: x["b"]),
    "in a tuple": _case(lambda: (1, [2]), lambda x: x[1].append(3)),
    "an array": _case(lambda: np.ones(2), lambda x: x.fill(2)),
    "an array of objects": _case(
        lambda: np.array([[1], None], dtype=object), lambda x: x[0].append(2)
    ),
    "bytes": _case(lambda: bytearray(b"a"), lambda x: x.__setitem__(0, 98)),
    "numbers": _case(lambda: array.array("d", [1.0]), lambda x: x.__setitem__(0, 2.0)),
    "a variable of a function around": _case(
        lambda: cell_of(1), lambda f: setattr(f.__closure__[0], "cell_contents", 2)
    ),
    "the code of a function": _case(
        lambda: cell_of(1), lambda f: setattr(f, "__code__", cell_of(2).__code__.replace())
    ),
    "a partial function": _case(
        lambda: functools.partial(cell_of, [1]), lambda f: f.args[0].append(2)
    ),
    "a bound method": _case(lambda: Plain().method, lambda f: setattr(f.__self__, "a", 2)),
    "a layer's parameter": _case(
        lambda: nn.Linear(1, 1), lambda m: setattr(m, "weight", nn.Parameter(torch.ones(1, 1)))
    ),
    "a layer's flag": _case(lambda: nn.Dropout(), lambda m: m.eval()),
    "a hook of a layer": _case(
        lambda: nn.Linear(1, 1), lambda m: m.register_forward_hook(lambda *a: None)
    ),
    "an attribute of a parameter": _case(
        lambda: _with(torch.ones(1), "a", 1), lambda t: setattr(t, "a", 2)
    ),
    "a member of an enumeration": _case(lambda: Colour.RED, lambda x: x.seen.append(1)),
    "an exception": _case(lambda: ValueError(1), lambda e: setattr(e, "args", (2,))),
    "a bound method of C": _case(lambda: {}.get, lambda f: f.__self__.update(a=1)),
    "the values of a dictionary": _case(
        lambda: _viewed.values(), lambda v: _viewed.update(a=[*_viewed["a"], 1])
    ),
    "an attribute of an array of the user's": _case(
        lambda: _with(np.zeros(1).view(Array), "a", 1), lambda x: setattr(x, "a", 2)
    ),
    "a weak reference": _case(lambda: weakref.ref(_kept), lambda r: setattr(_kept, "a", 2)),
}


@pytest.fixture(autouse=True)
def _kept_as_it_was() -> Any:
    yield
    _kept.a = 1


@pytest.mark.parametrize("by_versions", [True, False], ids=["versions", "items"])
@pytest.mark.parametrize("what", KINDS)
def test_a_change_is_found_named_and_put_back(
    what: str, by_versions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python 3.13 does not tell by a version of a dictionary that an attribute has changed
    monkeypatch.setattr(state_guard, "VERSIONS_TELL", VERSIONS_TELL and by_versions)
    x, change = KINDS[what]()
    graph = graph_of(x)
    guard = StateGuard(graph.nodes)
    assert graph.holds() and guard.holds() and guard.holds() and not graph.changes()
    change()
    assert not guard.holds() and not graph.holds()
    assert guard.differences() and graph.changes()
    graph.restore()
    assert graph.holds() and guard.holds() and not graph.changes()


def _class_changes() -> dict[str, Callable[[pytest.MonkeyPatch], None]]:
    return {
        "of a class": lambda p: p.setattr(Plain, "shared", 2),
        "a method": lambda p: p.setattr(Plain, "method", lambda self: 3),
        "new in a class": lambda p: p.setattr(OfMeta, "a", 2, raising=False),
        "of a metaclass": lambda p: p.setattr(Meta, "a", 2),
        "a default": lambda p: p.setattr(with_default, "__defaults__", (2,)),
        "a default by name": lambda p: p.setitem(with_default.__kwdefaults__, "a", 3),
        "a forward of torch's": lambda p: p.setattr(nn.Linear, "forward", lambda self, x: x),
    }


@pytest.mark.parametrize("what", _class_changes())
def test_a_change_of_a_class_or_function_is_found(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(Plain(), OfMeta, with_default, nn.Linear(1, 1))
    guard = StateGuard(graph.nodes)
    assert guard.holds()
    _class_changes()[what](monkeypatch)
    assert not guard.holds() and not graph.holds()


def test_a_class_that_an_abstract_class_registers_is_found() -> None:
    graph = graph_of(Abstract)
    assert graph.holds()
    Abstract.register(Slotted)
    assert not graph.holds()


def test_a_context_variable_is_found_in_its_context() -> None:
    token = VARIABLE.set(1)
    graph = graph_of(VARIABLE)
    VARIABLE.set(2)
    assert not graph.holds()
    graph.restore()
    assert graph.holds() and VARIABLE.get() == 1
    VARIABLE.reset(token)


def test_an_attribute_that_no_code_names_is_not_asked_for() -> None:
    x = SimpleNamespace()
    x.a, y = 1, Plain()
    y.history = [1]  # type: ignore[attr-defined]
    graph = graph_of(y)
    y.history.append(2)  # type: ignore[attr-defined]
    y.other = 1  # type: ignore[attr-defined]
    assert graph.holds() and StateGuard(graph.nodes).holds()
    assert [c.label for c in graph.changes()] == ["other"]


def test_where_names_are_computed_every_attribute_is_asked_for() -> None:
    y = Plain()
    y.history = [1]  # type: ignore[attr-defined]

    def f() -> Any:
        return vars(y)

    graph = ObjectGraph([f])
    y.history.append(2)  # type: ignore[attr-defined]
    assert not graph.holds()


def test_code_that_is_entered_later_widens_the_graph_before_it_runs() -> None:
    y = Plain()
    y.late = 1  # type: ignore[attr-defined]

    def outer() -> None:
        helper = [inner]
        helper[0]()

    def inner() -> None:
        y.late += 1  # type: ignore[attr-defined]

    graph = ObjectGraph([outer])
    with watching(graph):
        outer()
    (change,) = graph.changes()
    assert (change.label, change.before, change.now) == ("late", 1, 2)
    graph.restore()
    assert y.late == 1  # type: ignore[attr-defined]


def test_the_hook_is_off_in_the_seam_and_on_again_after_it() -> None:
    y = Plain()
    y.late, y.later = 1, 1  # type: ignore[attr-defined]

    def below() -> None:
        y.late = 2  # type: ignore[attr-defined]

    def after() -> None:
        y.later = 2  # type: ignore[attr-defined]

    def inside() -> None:
        y.inside = 2  # type: ignore[attr-defined]

    def program() -> None:
        unwatched(below)
        unwatched(watched, inside)
        after()

    graph = ObjectGraph([y])
    with watching(graph):
        below()
        watched(program)
        below()
    assert {code.co_name for code, _ in graph.code.entered.values()} == {
        "program",
        "inside",
        "after",
    }


def test_an_early_graph_reaches_code_that_has_not_run_up_to_its_budget() -> None:
    generator = torch.Generator()

    def inner() -> Any:
        return generator

    def outer() -> Any:
        return inner()

    assert early_graph([outer]).generators == [generator]
    assert ObjectGraph([outer], budget=0).generators == []


def test_what_a_weak_reference_led_to_may_go() -> None:
    target = Plain()
    reference = weakref.ref(target)
    graph = graph_of(reference)
    graph.settle()
    guard = StateGuard(graph.nodes)
    assert guard.holds()
    del target
    gc.collect()
    assert reference() is None and not guard.holds()


def test_no_code_of_the_users_is_called() -> None:
    class Loud:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = object.__hash__

    x = Loud()
    graph = graph_of([x], {"a": x})
    assert graph.holds() and StateGuard(graph.nodes).holds() and graph.changes() == []


def test_the_names_of_a_function_are_those_of_its_code_and_of_functions_inside() -> None:
    def f(x: Any) -> Any:
        x.stored = torch.ones(1)

        def g() -> Any:
            return x.loaded, "a word"

        return g

    found = names_of(f.__code__)
    assert {"torch", "ones", "stored", "loaded"} <= found.every
    assert found.globals == {"torch"} and "stored" not in found.loaded
    assert {"a", "word"} <= found.words and names_of(f.__code__) is found


def test_values_are_held_at_their_places_for_a_while() -> None:
    x, f, d = Plain(), cell_of(1), {"a": 1}
    places = [
        Place(Attributes(x, "x", vars(x), lambda x, n: True), "a"),
        Place(Cell(f.__closure__[0], "f", "x"), None),  # type: ignore[index]
        Place(DictItems(d, "d"), "a"),
    ]
    before = [p.current() for p in places]
    for place, value in zip(places, [7, MISSING, 8], strict=True):
        place.put(value)
        assert place.current() == value
    for place, value in zip(places, before, strict=True):
        place.put(value)
    assert before == [p.current() for p in places] == [1, 1, 1]
    assert len({p.key for p in places}) == 3


@pytest.mark.parametrize(
    "a, b, expected",
    [
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (1, True, False),
        ((1,), (1,), True),
        (np.float32(1), np.float32(1), True),
        ([1], [1], False),
        ("a", "a", True),
    ],
)
def test_equal_constants_of_one_class_are_the_same(a: Any, b: Any, expected: bool) -> None:
    assert same(a, b) is expected


def test_a_layer_is_one_node_for_each_of_its_dictionaries() -> None:
    """A guard asks each node. The dictionaries of hooks may have attributes, of which torch asks
    none."""

    def count(layers: int) -> int:
        return len(ObjectGraph([nn.Sequential(*(nn.Linear(1, 1) for _ in range(layers)))]).nodes)

    layer = nn.Linear(1, 1)
    containers = sum(isinstance(x, (dict, set)) for x in vars(layer).values())
    parameters = len(list(layer.parameters()))
    assert count(3) - count(2) == 1 + containers + parameters
