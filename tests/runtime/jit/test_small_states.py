"""A small state that the program makes anew in each call, such as a tuple of numbers, costs one
further program."""

from __future__ import annotations

import abc
import collections
import dataclasses
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from runtime import jit
from runtime.jit import explain

Named = collections.namedtuple("Named", "n rate")


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int = 0
    rate: float = 1.0


STATES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "tuple": ((0, 1.0), lambda s: (s[0] + 1, s[1])),
    "named tuple": (Named(0, 1.0), lambda s: Named(s.n + 1, s.rate)),
    "data class": (Frozen(), lambda s: dataclasses.replace(s, n=s.n + 1)),
    "tuple of floats": ((0.0, 1.0), lambda s: (s[0] + 1, s[1])),
    "list": ([0, 1.0], lambda s: [s[0] + 1, s[1]]),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_of_numbers_is_an_argument_once_the_program_replaces_it(kind: str) -> None:
    first, after = STATES[kind]
    holder, eager = SimpleNamespace(state=first), SimpleNamespace(state=first)

    def step(x: Any, holder: Any = holder) -> Any:
        holder.state = after(holder.state)
        return x * 2

    compiled = jit(step)
    for _ in range(12):
        compiled(torch.ones(1))
        step(torch.ones(1), eager)
    assert holder.state == eager.state and type(holder.state) is type(eager.state)
    assert len(explain(compiled).programs) == 2


def test_texts_in_turn_have_a_program_each() -> None:
    holder = SimpleNamespace(phase=("odd",))

    def step(x: Any) -> Any:
        holder.phase = ("even",) if holder.phase == ("odd",) else ("odd",)
        return x * len(holder.phase[0])

    compiled = jit(step)
    assert [compiled(torch.ones(())).item() for _ in range(6)] == [4.0, 3.0] * 3
    assert len(explain(compiled).programs) == 2


COUNTS: dict[str, Callable[[Any], Any]] = {
    "getattr": lambda c: setattr(c, "n", getattr(c, "n", 0) + 1),
    "hasattr": lambda c: setattr(c, "n", c.n + 1 if hasattr(c, "n") else 1),
    "vars": lambda c: vars(c).update(n=c.n + 1),
}


@pytest.mark.parametrize("way", COUNTS)
def test_a_program_that_counts_may_look_attributes_up_by_computed_names(way: str) -> None:
    counter = SimpleNamespace(n=0)

    def step(x: Any) -> Any:
        COUNTS[way](counter)
        return x * counter.n

    compiled = jit(step)
    assert [compiled(torch.ones(())).item() for _ in range(12)] == [*map(float, range(1, 13))]
    assert len(explain(compiled).programs) <= 3


def test_a_weak_reference_to_the_same_object_is_the_same_state() -> None:
    alive: Any = weakref.WeakValueDictionary()
    model = nn.Linear(1, 1)

    def register(x: Any) -> Any:
        alive["model"] = model
        return x * len(alive)

    compiled = jit(register)
    for _ in range(12):
        assert compiled(torch.ones(())).item() == 1.0
    assert len(explain(compiled).programs) <= 2


class Abstract(abc.ABC):  # noqa: B024
    """Its abstract methods are assigned."""


def test_the_abstract_methods_of_a_class_count() -> None:
    def tries(x: Any) -> Any:
        try:
            Abstract()
        except TypeError:
            return x * 5
        return x * 3

    compiled = jit(tries)
    for names in ({"f"}, (), {"f"}):
        Abstract.__abstractmethods__ = frozenset(names)
        assert compiled(torch.ones(())).item() == tries(torch.ones(())).item()


@dataclasses.dataclass
class Branch:
    value: Any
    parent: Any = None
    children: list[Any] = dataclasses.field(default_factory=list)


def test_an_argument_of_a_data_class_that_leads_to_itself_is_refused_with_its_line() -> None:
    root = Branch(torch.ones(1))
    root.children.append(Branch(torch.ones(1), root))
    with pytest.raises(RuntimeError, match=r"holds itself.*test_small_states\.py"):
        jit(lambda tree: tree.value * tree.children[0].value)(root)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_program_that_asks_for_types_finds_those_that_it_has_made(kind: Any) -> None:
    holder = SimpleNamespace(state=kind((1,)))

    def step(x: Any) -> Any:
        value = holder.state[0]
        result = (x > 0) * value
        holder.state = kind(((bool if type(value) is int else int)(value),))
        return result

    compiled = jit(step)
    for _ in range(3):
        assert compiled(torch.ones(())).dtype is torch.int64 and type(holder.state[0]) is bool
        assert compiled(torch.ones(())).dtype is torch.bool and type(holder.state[0]) is int
