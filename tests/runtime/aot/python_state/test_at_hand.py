"""Which objects hold values, what is put back after a capture, and what a custom Function sees
of its arguments."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.calls.compiled_function import Programs, function_of
from runtime.aot.python_state import closed_over
from runtime.aot.python_state.known_state import Held, Place, PythonState, holds_values
from runtime.aot.python_state.reader import reads_of
from runtime.aot.python_state.reads import FACTS, MISSING, WHOLE, Read, Slots

LAYER = nn.Linear(1, 1)


class Owner:
    pass


def closure_of(value: Any) -> Callable[[], Any]:
    return lambda: value


def test_values_are_found_in_objects_and_in_lists_of_them() -> None:
    found: list[bool] = []

    def f(x: Any) -> Any:
        things = (
            SimpleNamespace(a=x),
            SimpleNamespace(a=[{"b": (x,)}]),
            closure_of(x),
            [x],
            SimpleNamespace(a=1),
            LAYER,
            Owner,
            x,
        )
        found.extend(closed_over.holds_values(thing) for thing in things)
        found.extend(
            holds_values(thing)
            for thing in (
                x,
                [x],
                {"a": [x]},
                (x,),
                {x},
                deque([x]),
                [[[x]]],
                [[[[x]]]],
                1,
                [1],
                {"a": 1},
            )
        )
        found.extend(holds_values([0] * n + [x]) for n in (1023, 1024))
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))
    assert found[:8] == [True, True, True, True, False, False, False, False]
    assert found[8:19] == [True, True, True, True, True, True, True, False, False, False, False]
    assert found[19:] == [True, False]
    assert not holds_values(torch.ones(1)) and not holds_values(runtime.wrap(torch.ones(1)))
    assert [holds_values({"a": 1}), holds_values([1]), holds_values({})] == [False, False, False]


def test_nothing_is_said_of_a_value_of_a_transform() -> None:
    def f(x: Any) -> Any:
        reads = reads_of(lambda y: y * x, (), {}, [])
        assert not [r for r in reads if r.name is FACTS]
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))


class Slotted:
    __slots__ = ("rate",)
    rate: int


def places() -> list[tuple[Place, Callable[[], Any]]]:
    cell: Any = closure_of(1).__closure__[0]  # type: ignore[index]
    slotted, names, items = Slotted(), {"a": 1}, [1]
    slotted.rate = 1
    return [
        (Place(cell, None, ""), lambda: cell.cell_contents),
        (Place(Slots(slotted), "rate", ""), lambda: slotted.rate),
        (Place(names, "a", ""), lambda: names["a"]),
        (Place(items, 0, ""), lambda: items[0]),
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_place_is_filled_and_emptied(number: int) -> None:
    place, now = places()[number]
    place.put(5)
    assert now() == 5 and place.current() == 5 and place.key == (id(place.owner), place.name)
    if number < 3:
        place.put(MISSING)
        assert place.current() is MISSING


def test_values_are_held_at_their_places_for_a_while() -> None:
    (first, now), (second, other) = places()[2], places()[3]
    with Held([first, second], [7]) as held:
        assert (now(), other()) == (7, 1)
        first.put(8)
    assert held.left == [8] and now() == 1


CONTAINERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "list": ([1, 2], lambda x: x.append(3)),
    "list of the same length": ([1, 2], lambda x: x.__setitem__(0, 3)),
    "dictionary": ({"a": 1}, lambda x: x.update(b=2)),
    "dictionary with another value": ({"a": 1}, lambda x: x.update(a=2)),
    "dictionary with another name": ({"a": 1}, lambda x: (x.clear(), x.update(b=1))),
    "set": ({1}, lambda x: x.add(2)),
    "deque": (deque([1]), lambda x: x.appendleft(0)),
    "ordered dictionary": (OrderedDict(a=1), lambda x: x.update(b=2)),
    "default dictionary": (defaultdict(int, a=1), lambda x: x["b"]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_as_before_a_capture_that_is_given_up(name: str) -> None:
    kept, change = CONTAINERS[name]
    before = kept.copy()
    state = PythonState([Read({"a": kept}, "a", kept), Read(kept, WHOLE, before)], [])
    change(kept)
    assert kept != before
    state.restore()
    assert kept == before and type(kept) is type(before)


@pytest.mark.parametrize("n, kept", [(1024, True), (1025, False)])
def test_long_containers_are_left_alone(n: int, kept: bool) -> None:
    items = [0] * n
    state = PythonState([Read({"a": items}, "a", items)], [])
    items[0] = 1
    state.restore()
    assert (items[0] == 0) is kept


def test_places_and_flags_are_as_before_a_capture_that_is_given_up() -> None:
    for place, now in places():
        state = PythonState([Read(place.owner, place.name, 1)], [])
        place.put(2)
        state.restore()
        assert now() == 1
    module = nn.Sequential(nn.Dropout())
    state = PythonState([], list(module.modules()))
    module[0].eval()
    module.extra = 1  # type: ignore[assignment]
    assert state.flags == [(module[0], False)]
    state.restore()
    assert module[0].training and not hasattr(module, "extra") and state.flags == []


def test_what_is_forgotten_stays_as_the_program_leaves_it() -> None:
    owner = SimpleNamespace(a=1, items=[1])
    names = vars(owner)
    state = PythonState([Read(names, "a", 1), Read(names, "items", owner.items)], [])
    owner.a = 2
    owner.items.append(2)
    state.forget(names)
    state.restore()
    assert owner.a == 2 and owner.items == [1, 2]


class Asks(runtime.autograd.Function):
    seen: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        Asks.seen.append((x.requires_grad, y.requires_grad))
        return x * 2 if x.requires_grad else x * 3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2, None


def test_a_function_sees_which_of_its_arguments_require_grad_and_no_one_after_it() -> None:
    after: list[Any] = []

    def f(x: Any, y: Any) -> Any:
        z = x.detach()
        made = Asks.apply(x, y)
        after.extend([x.requires_grad, y.requires_grad, z.requires_grad])
        return made

    Asks.seen.clear()
    x = runtime.wrap(torch.ones(1), requires_grad=True)
    assert aot_function(f, nop)(x, torch.ones(1)).item() == 2.0
    assert Asks.seen == [(True, False)] and after == [True, False, False]
    assert aot_function(f, nop)(torch.ones(1), x).item() == 3.0
    assert Asks.seen[1:] == [(False, True)]


def test_a_few_of_the_last_programs_are_asked_first_by_their_guards() -> None:
    recipe = aot_function(lambda x: x * 2, nop).recipe  # type: ignore[attr-defined]
    programs = Programs(recipe)
    f = function_of(recipe, programs)
    for n in range(1, 7):
        f(torch.ones(n))
        (recent,) = programs.recent.values()
        assert len(recent) == min(n, 4)
        assert [take([torch.ones(n)]) is not None for take, _ in recent] == [True] + [False] * (
            len(recent) - 1
        )
    f(torch.ones(6))
    f(torch.ones(1))
    (recent,) = programs.recent.values()
    assert [
        [n for n in range(1, 7) if take([torch.ones(n)]) is not None] for take, _ in recent
    ] == [[1], [6], [5], [4]]
