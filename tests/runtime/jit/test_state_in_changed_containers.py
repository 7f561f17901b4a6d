"""A container of which a call takes an item as an argument, and which the program changes as a
whole: the item stays that of the call."""

from __future__ import annotations

import collections
import copy
import heapq
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import jit

X = torch.ones(1)


def appended(state: Any, x: Any) -> Any:
    state.append(7)
    return x * state[0]


def inserted(state: Any, x: Any) -> Any:
    state.insert(0, 7)
    return x * state[1]


def popped(state: Any, x: Any) -> Any:
    state.append(7)
    found = state.pop(0)
    return x * found


def without_a_key(state: Any, x: Any) -> Any:
    state.pop("other")
    return x * state["first"]


def moved_to_the_end(state: Any, x: Any) -> Any:
    state.move_to_end("first")
    return x * state["first"]


def turned(state: Any, x: Any) -> Any:
    state.rotate(1)
    return x * state[1]


def pushed(state: Any, x: Any) -> Any:
    heapq.heappush(state, 99)
    return x * state[0]


def sorted_down(state: Any, x: Any) -> Any:
    state.sort(reverse=True)
    return x * state[0]


CASES: list[tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = [
    (appended, lambda i: [i]),
    (inserted, lambda i: [i]),
    (popped, lambda i: [i, 1]),
    (sorted_down, lambda i: [i, 1, 2]),
    (pushed, lambda i: [i, 50]),
    (turned, lambda i: collections.deque([i, 1])),
    (without_a_key, lambda i: {"first": i, "other": 1}),
    (moved_to_the_end, lambda i: collections.OrderedDict(first=i, other=1)),
]
ITEMS: list[Callable[[int], Any]] = [lambda i: i, float, lambda i: torch.full((1,), float(i))]


def fill(state: Any, new: Any) -> None:
    state.clear()
    (state.update if isinstance(state, dict) else state.extend)(new)


@pytest.mark.parametrize("number", ITEMS, ids=["int", "float", "tensor"])
@pytest.mark.parametrize(("program", "make"), CASES, ids=[c[0].__name__ for c in CASES])
def test_an_item_that_is_an_argument_stays_that_of_the_call(
    program: Callable[[Any, Any], Any], make: Callable[[Any], Any], number: Callable[[int], Any]
) -> None:
    is_tensor = isinstance(number(1), torch.Tensor)
    if is_tensor and program in (sorted_down, pushed):
        pytest.skip("a branch on elements of a tensor")
    if is_tensor and program is inserted:
        pytest.skip("a tensor that is an argument and moves is refused, see below")
    state = make(number(3))
    f = jit(lambda x: program(state, x))
    for i in range(3, 9):
        fill(state, make(number(i)))
        expected = copy.deepcopy(state)
        result = program(expected, X)
        assert torch.equal(f(X), result) and state == expected


def test_a_tensor_that_is_an_argument_and_moves_is_refused() -> None:
    state: list[Any] = []
    f = jit(lambda x: inserted(state, x))
    for i in range(2):  # a constant of a program, so far
        fill(state, [torch.full((1,), float(i))])
        assert f(X).item() == i
    before = torch.full((1,), 2.0)
    fill(state, [before])
    with pytest.raises(RuntimeError, match=r"(?s)adds a tensor .*changed_containers\.py"):
        f(X)
    assert len(state) == 1 and state[0] is before
