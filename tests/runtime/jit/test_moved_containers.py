"""Containers of the state that a jitted program changes, and moves to another place or drops."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit

from .moved_containers import shown

X = torch.arange(3.0)


def _swap_attributes(t: Any, x: Tensor) -> None:
    t.first, t.second = t.second, t.first
    t.first["h"] = t.first["h"] + x


def _swap_items(t: Any, x: Tensor) -> None:
    t.items[0], t.items[1] = t.items[1], t.items[0]
    t.items[0]["h"] = t.items[0]["h"] + x


def _swap_in_a_tuple(t: Any, x: Tensor) -> None:
    t.both = t.both[::-1]
    t.both[0]["h"] = t.both[0]["h"] + x


def _replace_and_write_to_the_old_one(t: Any, x: Tensor) -> None:
    old = t.first
    t.first = {"h": old["h"] + x}
    old["h"] = x * 5


def _move_into_another(t: Any, x: Tensor) -> None:
    taken = t.items.pop(0)
    taken["h"] = taken["h"] + x
    t.items.append(taken)


def _write_to_an_inner_one(t: Any, x: Tensor) -> None:
    t.box = {"inner": t.box["inner"], "h": x * 3}
    t.box["inner"]["h"] = t.box["inner"]["h"] + x


def _put_at_two_places(t: Any, x: Tensor) -> None:
    t.first = t.second = {"h": t.first["h"] + x}


MOVES = [
    _swap_attributes,
    _swap_items,
    _swap_in_a_tuple,
    _replace_and_write_to_the_old_one,
    _move_into_another,
    _write_to_an_inner_one,
    _put_at_two_places,
]


def _world() -> tuple[Any, list[dict[str, Any]]]:
    """Return a state of dictionaries, and the dictionaries by themselves."""
    made = [{"h": X * k} for k in range(5)]
    first, second, inner, *items = made
    box = {"h": X, "inner": inner}
    state = SimpleNamespace(first=first, second=second, both=(first, second), items=items, box=box)
    return state, made


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__.strip("_"))
def test_a_container_that_is_changed_and_moved_stays_itself(
    move: Callable[[Any, Tensor], None],
) -> None:
    (eager, its), (state, ours) = _world(), _world()
    f = jit(lambda x: move(state, x))
    for i in range(6):
        x = X * 0.25 + i
        move(eager, x)
        f(x)
        assert shown((state, ours), {}) == shown((eager, its), {})
    assert len(jit.explain(f).programs) <= 4
