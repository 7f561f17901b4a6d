"""What a program finds in objects, collections and classes is asked for by every call, whichever way it finds it."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from runtime import jit
from tests.runtime.aot.capture.boundary_helpers import compiled

Case = tuple[Callable[[Any], Any], Callable[[], object]]


class Scale:
    """An object that the statements and operators of a program ask by special methods."""

    shared = 2.0
    nested = types.SimpleNamespace(rate=2.0)

    def __init__(self) -> None:
        self.rate = 2.0

    def __call__(self, x: Any) -> Any:
        return x * self.rate

    def __getitem__(self, i: int) -> float:
        return self.rate + i

    def __enter__(self) -> float:
        return self.rate

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[float]:
        return iter([self.rate])

    def scaled(self, x: Any) -> Any:
        return x * 2

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.shared

    @staticmethod
    def static(x: Any) -> Any:
        return x * Scale.shared


class Inherited(Scale):
    pass


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 2.0


class Names(dict[str, float]):
    def __getattr__(self, name: str) -> float:
        return self[name]


def _entered(scale: Scale, x: Any) -> Any:
    with scale as rate:
        return x * rate


def _looped(items: Any, x: Any) -> Any:
    for item in items:
        x = x * item
    return x


def _hooked() -> Case:
    layer = nn.Linear(2, 2)
    return lambda x: layer(x).detach(), lambda: layer.register_forward_hook(lambda _, args, out: out * 2)


def _own_forward() -> Case:
    layer = nn.Identity()
    return lambda x: layer(x), lambda: setattr(layer, "forward", lambda x: x * 3)


def _default() -> Case:
    table = [2.0]

    def f(x: Any, table: Any = table) -> Any:
        return x * table[0]

    return f, lambda: table.__setitem__(0, 3.0)


def _of_object(f: Callable[[Any, Any], Any], kind: type = Scale, name: str = "rate", value: Any = 3.0) -> Callable[[], Case]:
    def case() -> Case:
        owner = kind()
        return lambda x: f(owner, x), lambda: setattr(owner, name, value)

    return case


def _of_items(f: Callable[[Any, Any], Any], make: Callable[[], Any], change: Callable[[Any], object]) -> Callable[[], Case]:
    def case() -> Case:
        items = make()
        return lambda x: f(items, x), lambda: change(items)

    return case


def _partial() -> Case:
    table = [2.0]
    return functools.partial(lambda table, x: x * table[0], table), lambda: table.__setitem__(0, 3.0)


CASES: dict[str, Callable[[], Case]] = {
    "an object that is called": _of_object(lambda c, x: c(x)),
    "an item of an object": _of_object(lambda c, x: x * c[0]),
    "an object that is entered": _of_object(_entered),
    "an object that is looped over": _of_object(_looped),
    "a slot": _of_object(lambda c, x: x * c.rate, Slotted),
    "an attribute that comes before a method": _of_object(lambda c, x: c.scaled(x), name="scaled", value=lambda x: x * 3),
    "an attribute of a dictionary": _of_items(lambda d, x: x * d.rate, lambda: Names(rate=2.0), lambda d: d.update(rate=3.0)),
    "get of a dictionary": _of_items(lambda d, x: x * d.get("rate", 1.0), lambda: {"rate": 2.0}, lambda d: d.update(rate=3.0)),
    "a key that is not there": _of_items(lambda d, x: x * d.get("rate", 1.0), lambda: {"other": 2.0}, lambda d: d.update(rate=3.0)),
    "values of a dictionary": _of_items(lambda d, x: x * max(d.values()), lambda: {"a": 2.0}, lambda d: d.update(b=3.0)),
    "items of an ordered dictionary": _of_items(
        lambda d, x: _looped((v for _, v in d.items()), x), lambda: OrderedDict(a=2.0), lambda d: d.update(b=3.0)
    ),
    "a set": _of_items(lambda s, x: x * sum(s), lambda: {1, 2}, lambda s: s.add(7)),
    "a deque": _of_items(lambda q, x: x * q[0], lambda: deque([2.0]), lambda q: q.appendleft(3.0)),
    "a default of a function": _default,
    "an argument of a partial": _partial,
    "a forward hook": _hooked,
    "a forward of a module's own": _own_forward,
}


@pytest.mark.parametrize("wrapped", [compiled, jit], ids=["compiled", "jit"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_changes_makes_another_program(case: Callable[[], Case], wrapped: Callable[[Any], Any]) -> None:
    f, change = case()
    g, x = wrapped(f), torch.tensor([1.0, 2.0])
    before = f(x)
    torch.testing.assert_close(g(x).detach(), before)
    change()
    expected = f(x)
    assert not torch.equal(before, expected)
    torch.testing.assert_close(g(x).detach(), expected)


SCALE = Scale()
OF_CLASSES: dict[str, Callable[[Any], Any]] = {
    "a class method": lambda x: Scale.of_class(x),
    "a static method": lambda x: Scale.static(x),
    "an attribute of the class": lambda x: x * Scale.shared,
    "an attribute of an instance's class": lambda x: x * SCALE.shared,
}


@pytest.mark.parametrize("f", OF_CLASSES.values(), ids=OF_CLASSES.keys())
def test_a_class_that_changes_makes_another_program(f: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    g, x = compiled(f), torch.tensor([1.0, 2.0])
    assert g(x).tolist() == [2.0, 4.0]
    monkeypatch.setattr(Scale, "shared", 3.0)
    assert g(x).tolist() == [3.0, 6.0]


def test_an_attribute_of_a_class_that_comes_before_an_inherited_one_makes_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    scale, x = Inherited(), torch.tensor([1.0, 2.0])
    g = compiled(lambda x: x * scale.shared)
    assert g(x).tolist() == [2.0, 4.0]
    monkeypatch.setattr(Inherited, "shared", 3.0, raising=False)
    assert g(x).tolist() == [3.0, 6.0]


def test_an_object_that_a_class_holds_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    scale, x = Scale(), torch.tensor([1.0, 2.0])
    g = compiled(lambda x: x * scale.nested.rate)
    assert g(x).tolist() == [2.0, 4.0]
    monkeypatch.setattr(Scale.nested, "rate", 3.0)
    assert g(x).tolist() == [3.0, 6.0]


def test_a_list_that_the_program_appends_to_is_not_told_as_read(recwarn: pytest.WarningsRecorder) -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        seen.append(1)
        return x * 2

    g, x = compiled(f), torch.ones(2)
    g(x)
    g(x)
    assert seen == [1] and not recwarn.list
