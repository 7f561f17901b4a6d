"""What a guard compares in batches: each of a few objects by itself, many at once. A change of the
last one is noticed either way, and what is equal is not captured again."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import pytest
import torch

from runtime import jit

pytestmark = pytest.mark.usefixtures("guards")


class Item:
    """Has something of each kind."""

    scale = 1.0

    def __init__(self) -> None:
        self.rate = 2.5
        self.empty: dict[str, float] = {}
        self.table = {"a": 1.0}
        self.order = OrderedDict(a=1.0, b=2.0)
        self.sums: defaultdict[str, float] = defaultdict(float, a=1.0)
        self.items = [1.0, 2.5]
        self.last: deque[float] = deque([1.0])
        self.names: set[str] = set()
        self.bias = torch.zeros(1)
        self.shift = _shifting(0.5)

    def number(self) -> float:
        kinds = len(self.names) + len(self.empty) + next(iter(self.order.values()))
        return kinds + self.rate + self.table["a"] + sum(self.items) + self.last[-1] + self.scale

    def __call__(self, x: Any) -> Any:
        return self.shift(x * self.number() + self.sums["a"]) + self.bias


class Heir(Item):
    scale = 7.0


def _shifting(by: float) -> Callable[..., Any]:
    def shift(x: Any, more: float = 1.0) -> Any:
        return x * by + more

    return shift


def _cell(f: Callable[..., Any]) -> CellType:
    assert isinstance(f, FunctionType) and f.__closure__ is not None
    return f.__closure__[0]


def _become_heir(x: Item) -> None:
    x.__class__ = Heir


CHANGES: dict[str, Callable[[Item], object]] = {
    "an attribute": lambda x: setattr(x, "rate", 3.5),
    "an item where there was none": lambda x: x.empty.update(a=1.0),
    "an item": lambda x: x.table.update(a=2.0),
    "an order": lambda x: x.order.move_to_end("a"),
    "an item with a default": lambda x: x.sums.update(a=2.0),
    "an item of a list": lambda x: x.items.__setitem__(1, 7.0),
    "the length of a list": lambda x: x.items.append(1.0),
    "an item of a deque": lambda x: x.last.append(4.0),
    "an item of a set": lambda x: x.names.add("a"),
    "a class": _become_heir,
    "an attribute that hides the class's": lambda x: setattr(x, "scale", 3.0),
    "a variable": lambda x: setattr(_cell(x.shift), "cell_contents", 3.0),
    "the code of a function": lambda x: setattr(
        x.shift, "__code__", (lambda by: lambda x, more=1.0: x - by)(0.0).__code__
    ),
    "a default": lambda x: setattr(x.shift, "__defaults__", (4.0,)),
    "data": lambda x: setattr(x.bias, "data", torch.ones(1)),
    "what requires grad": lambda x: x.bias.requires_grad_(),
}


def _sum(items: list[Item]) -> Callable[[Any], Any]:
    def total(x: Any) -> Any:
        return sum((item(x) for item in items), x)

    return total


@pytest.mark.parametrize("many", [1, 5])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_last_object_is_noticed(change: str, many: int) -> None:
    items = [Item() for _ in range(many)]
    f = _sum(items)
    g = jit(f)
    x = torch.ones(1)
    for _ in range(3):
        assert torch.equal(g(x), f(x))
    CHANGES[change](items[-1])
    for _ in range(3):
        found, expected = g(x), f(x)
        assert found.tolist() == expected.tolist()
        assert found.requires_grad == expected.requires_grad


def _go_round(x: OrderedDict[str, float]) -> None:
    for key in list(x):
        x.move_to_end(key)


EQUAL: dict[str, Callable[[Item], object]] = {
    "an attribute": lambda x: setattr(x, "rate", float("2.5")),
    "an item": lambda x: x.table.update(a=float("1")),
    "an item of a list": lambda x: x.items.__setitem__(1, float("2.5")),
    "a variable": lambda x: setattr(_cell(x.shift), "cell_contents", float("0.5")),
    "an order that comes back": lambda x: _go_round(x.order),
    "an attribute that no code has a name for": lambda x: setattr(x, "unnamed", 1.0),
}


@pytest.mark.parametrize("many", [1, 5])
@pytest.mark.parametrize("change", EQUAL)
def test_what_is_equal_is_no_reason_to_capture_again(change: str, many: int) -> None:
    items = [Item() for _ in range(many)]
    g = jit(_sum(items))
    for _ in range(4):
        g(torch.ones(1))
        EQUAL[change](items[-1])
    assert len(g.captured) == 1


@pytest.mark.parametrize("many", [1, 5])
@pytest.mark.parametrize("what", ["a name", "a base"])
def test_a_change_of_the_last_class_is_noticed(what: str, many: int) -> None:
    class Base:
        rate = 2.0

    class Other(Base):
        rate = 5.0

    kinds: list[Any] = [type(f"Kind{i}", (Base,), {"scale": 1.0}) for i in range(many)]
    g = jit(lambda x: x * sum(kind().rate * kind().scale for kind in kinds))
    assert [g(torch.ones(1)).item() for _ in range(3)] == [2.0 * many] * 3
    if what == "a name":
        kinds[-1].rate = 5.0
    else:
        kinds[-1].__bases__ = (Other,)
    assert [g(torch.ones(1)).item() for _ in range(3)] == [2.0 * many + 3.0] * 3


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_whether_a_tensor_requires_grad_is_asked_in_each_mode(
    mode: Callable[[], Any], used: bool, first: bool
) -> None:
    w = torch.nn.Parameter(torch.ones(2), first)

    def f(x: Any) -> Any:
        rate = 2.0 if w.requires_grad else 3.0
        return x * w * rate if used else x * rate

    g = jit(f)
    found = []
    for flag in (first, first, not first, not first, first):
        w.requires_grad_(flag)
        with mode():
            found.append((g(torch.ones(2)) - f(torch.ones(2))).abs().sum().item())
    assert found == [0.0] * 5


@pytest.mark.parametrize("when", ["before the call", "before the backward pass"])
def test_hooks_in_another_dictionary_are_called(when: str) -> None:
    def gradients(wrap: Callable[[Any], Any]) -> list[Any]:
        w: Any = torch.nn.Parameter(torch.ones(2))
        f = wrap(lambda x: (x * w).sum())
        found = []
        for step in range(4):
            w.grad = None
            if step == 2 and when == "before the call":
                _hook_anew(w)
            loss = f(torch.ones(2))
            if step == 2 and when == "before the backward pass":
                _hook_anew(w)
            loss.backward()
            found.append(w.grad.tolist())
        return found

    assert gradients(jit) == gradients(lambda f: f) == [[1.0] * 2] * 2 + [[4.0] * 2] * 2


def _hook_anew(w: Any) -> None:
    w._backward_hooks = None
    w.register_hook(lambda g: g * 4)
