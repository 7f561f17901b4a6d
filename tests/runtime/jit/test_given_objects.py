"""Objects that a jitted call is given, alone and in containers: what they have counts as in eager
mode, also where the call is given others."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runtime import jit

X = torch.arange(3.0)
WAYS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda x: x,
    "in a list": lambda x: [x],
    "in a dictionary": lambda x: {"it": x},
    "in a tuple in a list": lambda x: [(x,)],
    "in an object of a data class": lambda x: Holder(x),
}


@dataclass
class Holder:
    it: Any


def only(given: Any) -> Any:
    """What is in containers of one."""
    while isinstance(given, (list, tuple, dict, Holder)):
        if isinstance(given, Holder):
            given = given.it
        else:
            given = next(iter(given.values() if isinstance(given, dict) else given))
    return given


def calls(wrap: Callable[[Any], Any], case: Case, way: Callable[[Any], Any]) -> list[Any]:
    """What six calls give, and what they leave."""
    torch.manual_seed(0)
    made, program, between, seen = case()
    f = wrap(lambda given, x: program(only(given), x))
    found = []
    for n in range(6):
        between(made, n)
        found.append((f(way(made), X + n).tolist(), seen(made)))
    return found


Case = Callable[
    [], tuple[Any, Callable[..., Any], Callable[[Any, int], None], Callable[[Any], Any]]
]


def _modes() -> Any:
    def change(m: nn.Module, n: int) -> None:
        m.train(n % 2 == 0)
        torch.manual_seed(n)

    return nn.Dropout(0.5), lambda m, x: m(x + 1), change, lambda m: m.training


def _weights() -> Any:
    def change(m: nn.Linear, n: int) -> None:
        if n == 3:
            m.weight = nn.Parameter(torch.ones(3, 3))

    return nn.Linear(3, 3), lambda m, x: m(x).detach(), change, lambda m: m.weight.tolist()


def _counts() -> Any:
    def program(m: Any, x: Tensor) -> Any:
        m.steps += 1
        m.last = x * m.steps
        return m.last + m.rate

    def change(m: Any, n: int) -> None:
        m.rate = n // 2

    made = SimpleNamespace(steps=0, rate=0, last=None)
    return made, program, change, lambda m: (m.steps, m.last.tolist())


def _attributes_of_a_class() -> Any:
    @dataclass
    class Counted:
        x: Any
        made = 0
        rate = 1.0

    def program(c: Any, x: Tensor) -> Any:
        type(c).made += 1
        return x * c.rate + c.made

    def change(c: Any, n: int) -> None:
        type(c).rate = float(n // 2)

    return Counted(X), program, change, lambda c: type(c).made


def _a_step() -> Any:
    model = nn.Linear(3, 3)
    made = SimpleNamespace(model=model, optimizer=torch.optim.Adam(model.parameters()))

    def program(m: Any, x: Tensor) -> Any:
        m.optimizer.zero_grad()
        loss = m.model(x).square().mean()
        loss.backward()
        m.optimizer.step()
        return loss.detach()

    return made, program, lambda m, n: None, lambda m: m.model.weight.tolist()


def _a_factory() -> Any:
    rate = SimpleNamespace(now=1.0)

    def program(m: Any, x: Tensor) -> Any:
        return x * m.made[0]

    def change(m: Any, n: int) -> None:
        m.made.clear()
        rate.now = float(n // 2)

    made = SimpleNamespace(made=defaultdict(lambda: rate.now))
    return made, program, change, lambda m: dict(m.made)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "case", [_modes, _weights, _counts, _attributes_of_a_class, _a_step, _a_factory]
)
def test_an_object_that_a_call_is_given_is_state(case: Case, way: str) -> None:
    assert calls(jit, case, WAYS[way]) == calls(lambda f: f, case, WAYS[way])


class Named:
    """Equal if the names are."""

    def __init__(self, name: str, rate: float) -> None:
        self.name, self.rate, self.n = name, rate, 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def _rate(given: Any, x: Tensor) -> Any:
    given.n += 1
    return x * given.rate * given.n


def _sum(given: Any, x: Tensor) -> Tensor:
    given[1000] += 1
    return x * float(given.sum())


def _length(given: Any, x: Tensor) -> Tensor:
    given.add(len(given))
    return x * len(given)


OTHERS: dict[str, tuple[Callable[[int], Any], Callable[[Any, Tensor], Tensor]]] = {
    "equal objects": (lambda n: Named("a", float(n)), _rate),
    "objects with one text": (lambda n: SimpleNamespace(rate=torch.ones(1) + n * 1e-6, n=0), _rate),
    "arrays": (lambda n: np.r_[np.zeros(1000), float(n), np.zeros(1000)], _sum),
    "sets": (lambda n: {0}, _length),
    "tuples of other classes": (
        lambda n: Pair((1, n % 2 == 0)),
        lambda given, x: x * (2 if given[1] is True else 3 if given[1] is False else 4),
    ),
    "sets that do not change": (
        lambda n: frozenset([(1, 1.0, True)[n % 3]]),
        lambda given, x: x * [int, float, bool].index(type(next(iter(given)))),
    ),
}


class Pair(tuple[Any, ...]):
    """A tuple that is no node of a tree."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OTHERS)
def test_an_object_that_looks_like_another_one_is_not_taken_for_it(name: str, way: str) -> None:
    make, program = OTHERS[name]

    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        f = wrap(program) if name.startswith("tuples") else wrap(lambda g, x: program(only(g), x))
        # in turns, each time as it was at first
        found = []
        for n in range(6):
            given = make(n // 2)
            wrapped = given if name.startswith("tuples") else WAYS[way](given)
            found.append((f(wrapped, X).tolist(), repr(getattr(given, "__dict__", given))))
        return found

    assert run(jit) == run(lambda f: f)


@dataclass
class Batch:
    x: Any
    n: int = 1
    scale = 1.0

    def __post_init__(self) -> None:
        self.calls: list[Any] = []

    @functools.cached_property
    def squared(self) -> Any:
        return self.x * self.x


@dataclass(slots=True)
class Slotted:
    x: Any
    n: int = 1


@dataclass(frozen=True)
class Frozen:
    x: Any
    n: int = 1
    seen: list[Any] = field(default_factory=list)


@dataclass
class Logged:
    x: Any
    n: int = 1

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        LOG.append(name)


LOG: list[str] = []


def _adds(b: Any, x: Tensor) -> Any:
    b.other, b.calls = x * 2, [*b.calls, b.n]
    b.n += 1
    return b.other * len(b.calls)


def _asks(b: Any, x: Tensor) -> Any:
    return x * getattr(b, "rate", 7.0) + len(vars(b))


def _caches(b: Any, x: Tensor) -> Any:
    return b.squared + x


def _deletes(b: Any, x: Tensor) -> Any:
    if "n" in vars(b):
        del b.n
    return x * b.n


def _replaces(b: Any, x: Tensor) -> Any:
    object.__setattr__(b, "x", x * 2)
    object.__setattr__(b, "n", b.n + 1)
    return b.x * b.n


def _logs(b: Any, x: Tensor) -> Any:
    b.n += 1
    b.x = x * b.n
    return b.x * len(LOG)


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        (Batch, _adds),
        (Batch, _asks),
        (Batch, _caches),
        (Batch, _deletes),
        (Frozen, _replaces),
        (Slotted, _replaces),
        (Logged, _logs),
    ],
)
def test_all_attributes_of_an_object_of_a_data_class_count(
    kind: Callable[..., Any], program: Any
) -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        LOG.clear()
        f, b, found = wrap(program), kind(X), []
        for n in range(6):
            if n == 3 and kind is Batch:
                b.rate = 2.0
            found.append((f(b, X + n).tolist(), repr(getattr(b, "__dict__", b)), list(LOG)))
        return found

    jitted = jit(program)
    assert run(lambda f: jitted) == run(lambda f: f)
    assert jitted.captured  # it did not run eagerly


def test_a_result_has_all_attributes_of_an_object_of_a_data_class() -> None:
    @jit
    def f(x: Tensor) -> Any:
        b = Batch(x * 2)
        b.calls.append(b.squared)
        return b

    for n in range(3):
        x = X + n
        b = f(x)
        assert list(vars(b)) == ["x", "n", "calls", "squared"]
        assert b.calls[0] is b.squared and torch.equal(b.squared, x * x * 4)


def test_a_key_that_takes_the_place_of_an_equal_one_is_another_key() -> None:
    @jit
    def f(d: dict[Any, Any]) -> None:
        d[True] = d.pop(1)

    for _ in range(3):
        d = {1: X}
        f(d)
        assert list(map(type, d)) == [bool]


class Count(int):
    """A number with attributes."""

    rate: float


class Text(str):
    """A text with attributes."""

    rate: float


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [Count(2), Text("ab")], ids=["a number", "a text"])
def test_attributes_of_a_number_or_a_text_count(value: Any, way: str) -> None:
    def program(x: Any, given: Any) -> Any:
        while type(given) is not type(value):
            given = given["it"] if isinstance(given, dict) else _first(given)
        return x * given.rate

    compiled = jit(program)
    for rate in (1.0, 2.0, 1.0):
        value.rate = rate
        assert compiled(torch.ones(1), WAYS[way](value)).item() == rate


def _first(given: Any) -> Any:
    return given[0] if isinstance(given, (list, tuple)) else next(iter(vars(given).values()))


@pytest.mark.parametrize("way", ["found", "given"])
def test_the_bounds_of_a_slice_are_followed(way: str) -> None:
    bound = Count(2)
    rows = slice([1.0], bound)

    def program(x: Any, *given: Any) -> Any:
        (part,) = given or (rows,)
        return x * part.start[0] * part.stop.rate

    compiled = jit(program)
    args = (rows,) if way == "given" else ()
    for first, rate in ((1.0, 2.0), (3.0, 2.0), (3.0, 4.0)):
        rows.start[0], bound.rate = first, rate
        assert compiled(torch.ones(1), *args).item() == first * rate
