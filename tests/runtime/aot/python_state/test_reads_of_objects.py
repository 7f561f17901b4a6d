"""What a program finds in objects, collections and classes is asked for by every call, whichever
way it finds it."""

from __future__ import annotations

import functools
import gc
import os
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
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


class Queue(deque[float]):
    pass


class Items(list[float]):
    pass


class Numbers(set[float]):
    pass


def _entered(scale: Scale, x: Any) -> Any:
    with scale as rate:
        return x * rate


def _looped(items: Any, x: Any) -> Any:
    for item in items:
        x = x * item
    return x


def _shift(scale: Any) -> Any:
    return getattr(scale, "shift", 1.0)


def _total(table: Any) -> Any:
    return sum(table["a"])


def _rate_of(table: Any) -> Any:
    return table["a"]["b"].rate


def _hooked() -> Case:
    layer = nn.Linear(2, 2)
    return lambda x: layer(x).detach(), lambda: layer.register_forward_hook(
        lambda _, args, out: out * 2
    )


def _own_forward() -> Case:
    layer = nn.Identity()
    return lambda x: layer(x), lambda: setattr(layer, "forward", lambda x: x * 3)


def _default() -> Case:
    table = [2.0]

    def f(x: Any, table: Any = table) -> Any:
        return x * table[0]

    return f, lambda: table.__setitem__(0, 3.0)


def _of_object(
    f: Callable[[Any, Any], Any], kind: type = Scale, name: str = "rate", value: Any = 3.0
) -> Callable[[], Case]:
    def case() -> Case:
        owner = kind()
        return lambda x: f(owner, x), lambda: setattr(owner, name, value)

    return case


def _of_items(
    f: Callable[[Any, Any], Any], make: Callable[[], Any], change: Callable[[Any], object]
) -> Callable[[], Case]:
    def case() -> Case:
        items = make()
        return lambda x: f(items, x), lambda: change(items)

    return case


def _partial() -> Case:
    table = [2.0]
    return functools.partial(lambda table, x: x * table[0], table), lambda: table.__setitem__(
        0, 3.0
    )


def _context_variable() -> Case:
    rate: ContextVar[float] = ContextVar("rate", default=2.0)
    return lambda x: x * rate.get(), lambda: rate.set(3.0)


def _object_of_a_context_variable() -> Case:
    scale: ContextVar[Scale] = ContextVar("scale")
    owner = Scale()
    scale.set(owner)
    return lambda x: x * scale.get().rate, lambda: setattr(owner, "rate", 3.0)


def _weak_reference() -> Case:
    owner = Scale()
    reference = weakref.ref(owner)
    return lambda x: x * _there(reference()).rate, lambda: setattr(owner, "rate", 3.0)


def _there(scale: Scale | None) -> Scale:
    assert scale is not None
    return scale


def _defaults(name: str, value: Any) -> Callable[[], Case]:
    def case() -> Case:
        def scaled(x: Any, rate: float = 2.0, *, shift: float = 2.0) -> Any:
            return x * rate + shift

        return lambda x: scaled(x), lambda: setattr(scaled, name, value)

    return case


def _missing(x: Any, table: dict[str, float]) -> Any:
    try:
        rate = table["rate"]
    except KeyError:
        rate = 2.0
    return x * rate


def _array(f: Callable[[Any, Any], Any]) -> Callable[[], Case]:
    return _of_items(f, lambda: np.array([2.0, 1.0]), lambda a: a.__setitem__(0, 3.0))


CASES: dict[str, Callable[[], Case]] = {
    "an element of an array": _array(lambda a, x: x * float(a[0])),
    "a tensor of an array": _array(lambda a, x: x * torch.from_numpy(a)),
    "a sum of an array": _array(lambda a, x: x * float(a.sum())),
    "a function of an array": _array(lambda a, x: x * float(np.max(a))),
    "an array of objects": _of_items(
        lambda a, x: x * a[0],
        lambda: np.array([2.0, None], dtype=object),
        lambda a: a.__setitem__(0, 3.0),
    ),
    "a context variable": _context_variable,
    "an object of a context variable": _object_of_a_context_variable,
    "a weak reference": _weak_reference,
    "a default": _defaults("__defaults__", (3.0,)),
    "a default of a keyword": _defaults("__kwdefaults__", {"shift": 3.0}),
    "a key that makes an error": _of_items(
        lambda d, x: _missing(x, d), dict, lambda d: d.update(rate=3.0)
    ),
    "a key of a defaultdict": _of_items(
        lambda d, x: x + d["shift"], lambda: defaultdict(int), lambda d: d.update(shift=3)
    ),
    "a chain of dictionaries": _of_items(
        lambda c, x: x * c["rate"],
        lambda: ChainMap({}, {"rate": 2.0}),
        lambda c: c.update(rate=3.0),
    ),
    "the maps of a chain": _of_items(
        lambda c, x: x * c["rate"],
        lambda: ChainMap({"rate": 2.0}),
        lambda c: c.maps.insert(0, {"rate": 3.0}),
    ),
    "values of a chain": _of_items(
        lambda c, x: x * sum(c.values()), lambda: ChainMap({"a": 2.0}), lambda c: c.update(b=3.0)
    ),
    "a user's dictionary": _of_items(
        lambda d, x: x * d["rate"], lambda: UserDict(rate=2.0), lambda d: d.update(rate=3.0)
    ),
    "objects of a list": _of_items(
        lambda items, x: x * sum([item.rate for item in items]),
        lambda: [Scale()],
        lambda items: setattr(items[0], "rate", 3.0),
    ),
    "objects in a loop": _of_items(
        lambda items, x: _looped((item.rate for item in items), x),
        lambda: [Scale()],
        lambda items: setattr(items[0], "rate", 3.0),
    ),
    "an object at a computed place": _of_items(
        lambda items, x: x * items[len(items) - 1].rate,
        lambda: [Scale()],
        lambda items: setattr(items[0], "rate", 3.0),
    ),
    "getattr with a name": _of_object(lambda c, x: x * getattr(c, "rate")),  # noqa: B009 - what is tested
    "getattr of what is missing": _of_object(
        lambda c, x: x * getattr(c, "shift", 1.0), name="shift"
    ),
    "getattr of what an argument lacks": _of_object(lambda c, x: x * _shift(c), name="shift"),
    "hasattr": _of_object(lambda c, x: x * 3 if hasattr(c, "shift") else x, name="shift"),
    "a buffer that a module lacks": _of_items(
        lambda m, x: x * getattr(m, "shift", 1.0),
        lambda: nn.Linear(2, 2),
        lambda m: m.register_buffer("shift", torch.tensor([2.0])),
    ),
    "a list in a dictionary that is handed on": _of_items(
        lambda d, x: x * _total(d), lambda: {"a": [2.0, 1.0]}, lambda d: d["a"].append(3.0)
    ),
    "an object in a dictionary that is handed on": _of_items(
        lambda d, x: x * _rate_of(d),
        lambda: {"a": {"b": Scale()}},
        lambda d: setattr(d["a"]["b"], "rate", 3.0),
    ),
    "an object of a tuple": _of_items(
        lambda t, x: x * sum([item.rate for item in t]),
        lambda: (Scale(), Scale()),
        lambda t: setattr(t[1], "rate", 3.0),
    ),
    "a list of a tuple": _of_items(
        lambda t, x: x * sum([sum(items) for items in t]),
        lambda: ([2.0], [1.0]),
        lambda t: t[1].append(3.0),
    ),
    "a list of parameters": _of_items(
        lambda p, x: _looped(p, x).detach(),
        lambda: nn.ParameterList([torch.ones(2)]),
        lambda p: p.append(torch.zeros(2)),
    ),
    "the length of a list of parameters": _of_items(
        lambda p, x: x * len(p),
        lambda: nn.ParameterList([torch.ones(2)]),
        lambda p: p.append(torch.ones(2)),
    ),
    "a key of a dictionary of parameters": _of_items(
        lambda p, x: x * 2 if "b" in p else x,
        lambda: nn.ParameterDict({"a": torch.ones(2)}),
        lambda p: p.update({"b": torch.ones(2)}),
    ),
    "an object that is called": _of_object(lambda c, x: c(x)),
    "an item of an object": _of_object(lambda c, x: x * c[0]),
    "an object that is entered": _of_object(_entered),
    "an object that is looped over": _of_object(_looped),
    "a slot": _of_object(lambda c, x: x * c.rate, Slotted),
    "an attribute that comes before a method": _of_object(
        lambda c, x: c.scaled(x), name="scaled", value=lambda x: x * 3
    ),
    "an attribute of a dictionary": _of_items(
        lambda d, x: x * d.rate, lambda: Names(rate=2.0), lambda d: d.update(rate=3.0)
    ),
    "get of a dictionary": _of_items(
        lambda d, x: x * d.get("rate", 1.0), lambda: {"rate": 2.0}, lambda d: d.update(rate=3.0)
    ),
    "a key that is not there": _of_items(
        lambda d, x: x * d.get("rate", 1.0), lambda: {"other": 2.0}, lambda d: d.update(rate=3.0)
    ),
    "values of a dictionary": _of_items(
        lambda d, x: x * max(d.values()), lambda: {"a": 2.0}, lambda d: d.update(b=3.0)
    ),
    "items of an ordered dictionary": _of_items(
        lambda d, x: _looped((v for _, v in d.items()), x),
        lambda: OrderedDict(a=2.0),
        lambda d: d.update(b=3.0),
    ),
    "a set": _of_items(lambda s, x: x * sum(s), lambda: {1, 2}, lambda s: s.add(7)),
    "a deque": _of_items(lambda q, x: x * q[0], lambda: deque([2.0]), lambda q: q.appendleft(3.0)),
    "get of a dictionary of the user's class": _of_items(
        lambda d, x: x * d.get("rate", 1.0), lambda: Names(rate=2.0), lambda d: d.update(rate=3.0)
    ),
    "a queue of the user's class": _of_items(
        lambda q, x: x * sum(q), lambda: Queue([2.0]), lambda q: q.append(3.0)
    ),
    "a default of a function": _default,
    "an argument of a partial": _partial,
    "a forward hook": _hooked,
    "a forward of a module's own": _own_forward,
}


@pytest.mark.parametrize("wrapped", [compiled, jit], ids=["compiled", "jit"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_changes_makes_another_program(
    case: Callable[[], Case], wrapped: Callable[[Any], Any]
) -> None:
    f, change = case()
    g, x = wrapped(f), torch.tensor([1.0, 2.0])
    before = f(x)
    torch.testing.assert_close(g(x).detach(), before)
    change()
    expected = f(x)
    assert not torch.equal(before, expected)
    torch.testing.assert_close(g(x).detach(), expected)


@pytest.mark.parametrize("kind", [Queue, Items, Numbers, dict, Names])
def test_what_a_refused_program_changes_in_a_container_is_put_back(kind: Any) -> None:
    before = {2.0: 3.0} if issubclass(kind, dict) else [2.0]
    items = kind(before)

    def f(x: Any) -> Any:
        sum(items)
        items.clear()
        items.update({5.0: 6.0}) if issubclass(kind, dict) else items.add(
            5.0
        ) if kind is Numbers else items.extend([5.0, 6.0])
        os.getcwd()

    with pytest.raises(RuntimeError, match="getcwd"):
        jit(f)(torch.ones(1))
    assert type(items) is kind and (items if issubclass(kind, dict) else list(items)) == before


def test_a_container_and_a_slot_that_a_program_changes_are_changed_by_each_call() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        queue, slotted = Queue([2.0]), Slotted()

        def f(x: Any) -> Any:
            queue.append(sum(queue) * slotted.rate)
            slotted.rate = 4.0
            return x * queue[0]

        g = wrap(f)
        return [(g(torch.ones(1)).tolist(), list(queue), slotted.rate) for _ in range(3)]

    assert seen(compiled) == seen(lambda f: f)


def test_a_weak_reference_whose_object_is_gone_makes_another_program() -> None:
    owner = Scale()
    reference = weakref.ref(owner)
    g, x = jit(lambda x: x * (2.0 if reference() is None else 3.0)), torch.ones(1)
    assert g(x).tolist() == [3.0]
    del owner
    gc.collect()
    assert reference() is None and g(x).tolist() == [2.0]


def test_a_program_with_effects_keeps_no_object_that_it_knows_by_a_weak_reference() -> None:
    owner, calls = Scale(), [0]
    reference = weakref.ref(owner)

    def f(x: Any) -> Any:
        calls[0] += 1
        return x * _there(reference()).rate

    g, x = jit(f), torch.ones(1)
    assert [g(x).item() for _ in range(3)] == [f(x).item()] * 3
    del owner
    gc.collect()
    assert reference() is None
    with pytest.raises(AssertionError):
        g(x)


def test_a_large_array_is_told_of() -> None:
    table = np.ones(2**22)
    with pytest.warns(UserWarning, match=r"a NumPy array of 33554432 bytes.*Pass it as a tensor"):
        jit(lambda x: x * float(table[0]))(torch.ones(1))


class Replaced(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2

    def scaled(self, x: Any) -> Any:
        return x * 2

    @property
    def rate(self) -> float:
        return 2.0

    @staticmethod
    def static(x: Any) -> Any:
        return x * 2

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 2

    def __matmul__(self, x: Any) -> Any:
        return x * 2


class Heir(Replaced):
    pass


METHODS: dict[str, tuple[Callable[[Any, Any], Any], str, Any]] = {
    "forward": (lambda m, x: m(x), "forward", lambda self, x: x * 3),
    "a method": (lambda m, x: m.scaled(x), "scaled", lambda self, x: x * 3),
    "a property": (lambda m, x: x * m.rate, "rate", property(lambda self: 3.0)),
    "a static method": (lambda m, x: m.static(x), "static", staticmethod(lambda x: x * 3)),
    "a static method of the class": (
        lambda m, x: type(m).static(x),
        "static",
        staticmethod(lambda x: x * 3),
    ),
    "a class method": (lambda m, x: m.of_class(x), "of_class", classmethod(lambda cls, x: x * 3)),
    "an operator": (lambda m, x: m @ x, "__matmul__", lambda self, x: x * 3),
}


@pytest.mark.parametrize("owner", [Replaced, Heir])
@pytest.mark.parametrize("what", METHODS)
def test_a_function_that_a_class_gets_anew_makes_another_program(
    what: str, owner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, name, new = METHODS[what]
    m, x = Heir(), torch.ones(1)
    g = jit(lambda x: f(m, x))
    assert g(x).tolist() == g(x).tolist() == [2.0]
    monkeypatch.setattr(owner, name, new, raising=False)
    assert g(x).tolist() == [3.0]


SCALE = Scale()
OF_CLASSES: dict[str, Callable[[Any], Any]] = {
    "a class method": lambda x: Scale.of_class(x),
    "a static method": lambda x: Scale.static(x),
    "an attribute of the class": lambda x: x * Scale.shared,
    "an attribute of an instance's class": lambda x: x * SCALE.shared,
}


@pytest.mark.parametrize("f", OF_CLASSES.values(), ids=OF_CLASSES.keys())
def test_a_class_that_changes_makes_another_program(
    f: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    g, x = compiled(f), torch.tensor([1.0, 2.0])
    assert g(x).tolist() == [2.0, 4.0]
    monkeypatch.setattr(Scale, "shared", 3.0)
    assert g(x).tolist() == [3.0, 6.0]


def test_an_attribute_of_a_class_that_comes_before_an_inherited_one_makes_another_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_list_that_the_program_appends_to_is_longer_after_each_call() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        seen.append(1)
        return x * 2

    g, x = compiled(f), torch.ones(2)
    g(x)
    g(x)
    assert seen == [1, 1]
