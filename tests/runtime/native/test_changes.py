"""A call notices each change of what its program reaches, where guards compare in C++ as where they
compare in Python."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit

pytestmark = pytest.mark.usefixtures("guards")


class Scale(nn.Module):
    """Has two or more objects of each kind that guards compare at once."""

    factor = 1.0

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 5.0))
        self.register_buffer("shift", torch.arange(4.0))
        self.rate = 0.5
        self.table: dict[str, float] = {"a": 1.0}
        self.entries: dict[str, float] = {}
        self.order: OrderedDict[str, float] = OrderedDict()
        self.losses: list[float] = []
        self.sums: list[float] = [1.0, 2.0]
        self.tags: set[str] = set()
        self.last: deque[float] = deque()
        self.note = _Note()

    def number(self) -> float:
        sizes = len(self.losses) + 2 * len(self.tags) + 4 * len(self.last) + 8 * len(self.entries)
        added = sum(self.order.values()) + sum(self.sums) + getattr(self.note, "more", 0.0)
        return sizes + added + self.table["a"] * self.rate * self.factor

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.weight * getattr(self.weight, "multiple", 1.0)
        result: Tensor = (scaled + self.shift).mean(-1, keepdim=True) * self.number()
        return result


class _Note:
    """Has no attributes at first."""


class Double(Scale):
    factor = 2.0


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Scale() for _ in range(3)))


def _own(x: Any, **more: object) -> None:
    x.__dict__ = {**vars(x), **more}


@torch.no_grad()
def _set(x: Tensor, other: Tensor) -> None:
    x.set_(other)  # type: ignore[call-overload]


CHANGES: dict[str, Callable[[Any], object]] = {
    # tensors
    "the dtype of a buffer": lambda m: setattr(m.shift, "data", m.shift.double()),
    "the sizes of a buffer": lambda m: setattr(m.shift, "data", torch.ones(1)),
    "the strides of a parameter": lambda m: setattr(m.weight, "data", torch.ones(8)[::2]),
    "the memory of a parameter": lambda m: setattr(m.weight, "data", torch.full((4,), 3.0)),
    "the storage of a parameter": lambda m: _set(m.weight, torch.full((4,), 7.0)),
    "the offset of a parameter": lambda m: _set(m.weight, torch.arange(9.0)[5:]),
    "the elements of a parameter": lambda m: m.weight.data.mul_(2),
    "what requires grad": lambda m: m.weight.requires_grad_(False),
    "what does not require grad": lambda m: m.shift.requires_grad_(),
    "the conjugation of a buffer": lambda m: setattr(m.shift, "data", torch.full((4,), 1j).conj()),
    "another parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.full((4,), 2.0))),
    "an attribute of a parameter": lambda m: setattr(m.weight, "multiple", 3.0),
    # objects
    "an attribute": lambda m: setattr(m, "rate", 2.0),
    "an attribute that hides one of the class": lambda m: setattr(m, "factor", 3.0),
    "a class": lambda m: setattr(m, "__class__", Double),
    "another dictionary of attributes": lambda m: _own(m, rate=4.0),
    "an attribute where there was none": lambda m: setattr(m.note, "more", 1.0),
    "another dictionary where there were no attributes": lambda m: _own(m.note, more=2.0),
    # containers
    "an item": lambda m: m.table.update(a=2.0),
    "an item where there was none": lambda m: m.entries.update(a=2.0),
    "an item of an order where there was none": lambda m: m.order.update(a=2.0),
    "an item of a list where there was none": lambda m: m.losses.append(1.0),
    "an item of a set where there was none": lambda m: m.tags.add("new"),
    "an item of a deque where there was none": lambda m: m.last.append(1.0),
    "an item of a list": lambda m: m.sums.__setitem__(0, 5.0),
    "a further item of a list": lambda m: m.sums.append(5.0),
    "an item less of a list": lambda m: m.sums.pop(),
}


def _outcome(f: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[object]:
    """Return the result of a call and the gradients of the parameters."""
    result = f(x)
    result.real.sum().backward()
    gradients = [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
    model.zero_grad()
    return [result.tolist(), result.dtype, *gradients]


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_object_of_many_is_noticed(change: str, which: int) -> None:
    model = _model()
    f = jit(model)
    x = torch.ones(2, 4)
    for _ in range(3):
        assert _outcome(f, model, x) == _outcome(model, model, x)
    CHANGES[change](model[which])
    for _ in range(3):
        assert _outcome(f, model, x) == _outcome(model, model, x)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_the_first_or_second_call_is_noticed(change: str) -> None:
    for calls in (1, 2):
        model = _model()
        f = jit(model)
        x = torch.ones(2, 4)
        for _ in range(calls):
            f(x)
        CHANGES[change](model[1])
        assert f(x).tolist() == model(x).tolist()


def test_a_history_that_a_buffer_gets_is_refused() -> None:
    model: Any = _model()
    f = jit(model)
    x = torch.ones(2, 4)
    for _ in range(3):
        f(x)
    model[1].shift.add_(torch.ones(4, requires_grad=True))
    with pytest.raises(RuntimeError, match="recorded by torch's own autograd"):
        f(x)


def test_a_state_that_comes_back_is_known_again() -> None:
    model: Any = _model()
    f = jit(model)
    x = torch.ones(2, 4)
    for rate in (0.5, 2.0, 0.5, 2.0, 0.5, 0.5, 2.0):
        model[1].rate = rate
        assert f(x).tolist() == model(x).tolist()
    assert len(jit.explain(f).programs) <= 3


def test_a_call_in_another_mode_is_one_of_its_own() -> None:
    model: Any = _model()
    f = jit(model)
    x = torch.ones(2, 4)
    for mode in (torch.enable_grad, torch.inference_mode, torch.no_grad) * 3:
        with mode():
            found, expected = f(x), model(x)
        assert found.tolist() == expected.tolist()
        assert found.requires_grad == expected.requires_grad
    model[2].weight.data = torch.full((4,), 5.0)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert f(x).tolist() == model(x).tolist()


def test_a_hook_of_a_leaf_is_noticed_before_the_step_runs() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    parameters = list(model.parameters())

    @jit
    def step(x: Tensor) -> None:
        model(x).sum().backward()

    for _ in range(3):
        step(torch.ones(2, 3))
    calls: list[Tensor] = []
    parameters[-1].register_post_accumulate_grad_hook(calls.append)
    with pytest.raises(RuntimeError, match="hooks"):
        step(torch.ones(2, 3))


class Silent:
    """Objects of this class call no code when they are compared."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.rate = 2.0

    def __eq__(self, other: object) -> bool:
        self.names.append("__eq__")
        return True

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        self.names.append("__bool__")
        return True

    def __len__(self) -> int:
        self.names.append("__len__")
        return 1


def test_no_code_of_the_users_runs_when_objects_are_compared() -> None:
    asked: list[str] = []
    objects = [Silent(asked) for _ in range(5)]
    items: list[Any] = [objects[0], objects[1]]

    def total(x: Tensor) -> Tensor:
        for item in items:
            x = x * item.rate
        for item in objects:
            x = x * item.rate
        return x

    f = jit(total)
    for _ in range(4):
        assert f(torch.ones(1)).item() == 2.0**7
    items[1] = objects[2]
    objects[3].rate = 1.0
    assert f(torch.ones(1)).item() == 2.0**6
    assert asked == []


def test_a_jitted_module_is_freed_with_all_that_its_guards_hold() -> None:
    model: Any = _model()
    model[1].holder = model  # a cycle
    f = jit(model)
    model[0].jitted = [f]
    for _ in range(3):
        f(torch.ones(2, 4))
    seen = [weakref.ref(x) for x in (model, model[0], model[1].weight, f)]
    del model, f
    gc.collect()
    assert [x() for x in seen] == [None] * 4


def test_threads_see_one_state_or_the_other() -> None:
    model: Any = _model()
    x = torch.ones(2, 4)
    expected = []
    for rate in (0.5, 2.0):
        model[1].rate = rate
        expected.append(model(x).tolist())
    f = jit(model)
    f(x)
    found: list[object] = []
    ended = threading.Event()

    def write() -> None:
        for i in range(300):
            model[1].rate = (0.5, 2.0)[i % 2]
        ended.set()

    def call() -> None:
        while not ended.is_set():
            found.append(f(x).tolist())

    threads = [threading.Thread(target=g) for g in (call, call, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each in expected for each in found)
    assert f(x).tolist() == expected[1]
