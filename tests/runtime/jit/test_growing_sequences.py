"""A list or deque of numbers whose items are inputs of the program, and which is shorter in a later
call: the program gives it further items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runtime import jit

Step = Callable[[Any, int], Any]


def append(items: Any, k: int) -> None:
    """Push the first item out of a full deque."""
    items.append(k)


def keep_three(items: Any, k: int) -> None:
    items[:] = [*items, k][-3:]


def append_and_rotate(items: Any, k: int) -> None:
    items.append(k)
    items.rotate(1)


def fill_up(items: Any, k: int) -> None:
    while len(items) < 3:
        items.append(k)
    items[1] = k * 2


SHORTER: dict[str, Callable[[Any], object]] = {
    "clear": lambda items: items.clear(),
    "pop": lambda items: items.pop(),
    "all but one": lambda items: [items.pop() for _ in range(2)],
}
FULL: dict[str, tuple[Callable[[Any, int], None], Callable[[], Any]]] = {
    "append to a deque": (append, lambda: deque([0, 1, 2], maxlen=3)),
    "append and rotate": (append_and_rotate, lambda: deque([0, 1, 2], maxlen=3)),
    "the last three of a list": (keep_three, lambda: [0, 1, 2]),
    "fill up a list": (fill_up, lambda: [0, 1, 2]),
}


@pytest.mark.parametrize("shorten", SHORTER)
@pytest.mark.parametrize("name", FULL)
def test_a_sequence_that_was_shortened_grows_as_in_eager_mode(name: str, shorten: str) -> None:
    change, make = FULL[name]

    def outcomes(compiled: Callable[[Step], Step]) -> list[object]:
        held = SimpleNamespace(items=make())

        def program(x: Any, k: int) -> Any:
            change(held.items, k)
            return x * sum(held.items)

        step = compiled(program)
        found: list[object] = []
        for k in range(6):
            found.append((step(torch.ones(1), k).tolist(), list(held.items)))
            if k == 3:
                SHORTER[shorten](held.items)
        return found

    assert outcomes(jit) == outcomes(lambda f: f)
