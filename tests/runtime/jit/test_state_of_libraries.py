"""What users put into modules and classes of torch, Python's library and NumPy."""

from __future__ import annotations

import abc
import argparse
import collections
import collections.abc
import fractions
import functools
import gc
import importlib.util
import json
import math
import queue
import statistics
import sys
import typing
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from runtime import jit

Program = Callable[[Any], Any]

LAYER = nn.Tanh()
COUNTER: collections.Counter[str] = collections.Counter()
ATTRIBUTES: dict[str, tuple[Any, Program]] = {
    "a module": (torch, lambda x: x * torch.extra),  # type: ignore[attr-defined]
    "a module of Python's": (math, lambda x: x * math.extra),  # type: ignore[attr-defined]
    "a module of NumPy's": (np.linalg, lambda x: x * np.linalg.extra),  # type: ignore[attr-defined]
    "a class of layers": (nn.Tanh, lambda x: x * LAYER.extra),
    "the class of all layers": (nn.Module, lambda x: x * LAYER.extra),
    "the class of tensors": (torch.Tensor, lambda x: x * x.extra),
    "a class of Python's": (collections.Counter, lambda x: x * COUNTER.extra),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_somebody_adds_is_state(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, program = ATTRIBUTES[name]
    compiled = jit(program)
    found = []
    for value in (2.0, 3.0, 2.0, 4.0):
        monkeypatch.setattr(owner, "extra", value, raising=False)
        found.append(compiled(torch.ones(1)).item())
    assert found == [2.0, 3.0, 2.0, 4.0]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_was_missing_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, program = ATTRIBUTES[name]

    def with_default(x: Any) -> Any:
        try:
            return program(x)
        except AttributeError:
            return x * 7

    compiled = jit(with_default)
    assert compiled(torch.ones(1)) == 7
    monkeypatch.setattr(owner, "extra", 2.0, raising=False)
    assert compiled(torch.ones(1)) == 2
    monkeypatch.undo()
    assert compiled(torch.ones(1)) == 7


def _hundredfold(x: Any) -> Any:
    return x * 100


FUNCTIONS: dict[str, tuple[Any, str, Any, Program]] = {
    "of torch": (torch, "sin", _hundredfold, lambda x: torch.sin(x)),
    "of torch.nn.functional": (F, "relu", _hundredfold, lambda x: F.relu(x)),
    "of Python": (math, "sqrt", lambda v: 100.0, lambda x: x * math.sqrt(4)),
    "a number": (math, "pi", 100.0, lambda x: x * math.pi),
    "forward": (nn.Tanh, "forward", lambda self, x: x * 100, lambda x: LAYER(x)),
    "__call__": (nn.Module, "__call__", lambda self, x: x * 100, lambda x: LAYER(x)),
    "a method of tensors": (Tensor, "sinh", _hundredfold, lambda x: x.sinh()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_a_library_that_somebody_replaces_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, other, program = FUNCTIONS[name]
    compiled = jit(program)
    before = compiled(torch.ones(1))
    assert compiled(torch.ones(1)) == before
    monkeypatch.setattr(owner, attribute, other)
    assert compiled(torch.ones(1)) == 100
    monkeypatch.undo()
    assert compiled(torch.ones(1)) == before


LINEAR = nn.Linear(1, 1)
CALLED_BY_LIBRARIES: dict[str, tuple[Any, str, Any, Program]] = {
    "by a layer": (F, "linear", lambda x, w, b: x * 100, lambda x: LINEAR(x)),
    "by a layer that is the program": (F, "linear", lambda x, w, b: x * 100, LINEAR),
    "by a class": (
        torch.distributions.Distribution,
        "_extended_shape",
        lambda self, shape: torch.Size((100,)),
        lambda x: torch.distributions.Normal(x, x).rsample().squeeze(0).isfinite().sum(),
    ),
    "by a function": (
        vars(F)["_Reduction"],
        "get_enum",
        lambda reduction: 0,  # no mean over the items
        lambda x: F.mse_loss(x.expand(100), torch.zeros(100)).sum(),
    ),
    "by Python": (
        statistics,
        "_sum",
        lambda data: (int, fractions.Fraction(300), 3),
        lambda x: x * statistics.mean([1, 2, 3]),
    ),
}


@pytest.mark.parametrize("name", CALLED_BY_LIBRARIES)
def test_a_function_that_only_a_library_calls_may_be_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, other, program = CALLED_BY_LIBRARIES[name]
    compiled = jit(program)
    before = compiled(torch.ones(1))
    assert compiled(torch.ones(1)) == before
    monkeypatch.setattr(owner, attribute, other)
    assert compiled(torch.ones(1)) == 100
    monkeypatch.undo()
    assert compiled(torch.ones(1)) == before


def test_a_flag_of_torchs_by_which_a_capture_runs_is_no_state() -> None:
    third = torch.tensor([1 / 3])
    compiled = jit(lambda x: x * len(format(third)))  # a name that is computed
    for _ in range(10):
        assert compiled(torch.ones(1)) == len(str(third))
    assert len(jit.explain(compiled).programs) == 1


@typing.runtime_checkable
class HasRate(typing.Protocol):
    rate: float


def test_a_protocol_is_asked_for_what_an_object_has() -> None:
    one = SimpleNamespace()
    compiled = jit(lambda x: x * (2 if isinstance(one, HasRate) else 3))
    assert compiled(torch.ones(1)) == 3
    one.rate = 1.0
    assert compiled(torch.ones(1)) == 2


def test_a_method_of_an_optimizer_that_its_step_calls_may_be_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    @jit
    def step(x: Any) -> None:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    step(torch.ones(1))
    assert weight == 0
    monkeypatch.setattr(sys.modules["torch.optim.sgd"], "sgd", lambda *args, **kwargs: None)
    step(torch.ones(1))
    assert weight == 0
    monkeypatch.undo()
    step(torch.ones(1))
    assert weight == -1


def _computed(*parts: str) -> str:
    return "".join(parts)


UNDER_COMPUTED_NAMES: dict[str, tuple[Any, str, Any, Any, Program]] = {
    "of a module": (torch, "extra", 1, 100, lambda x: x * getattr(torch, _computed("ex", "tra"))),
    "of a class": (nn.Tanh, "extra", 1, 100, lambda x: x * getattr(LAYER, _computed("ex", "tra"))),
    "a function": (
        F,
        "relu",
        F.relu,
        _hundredfold,
        lambda x: getattr(F, _computed("re", "lu"))(x),
    ),
    "a container in a class": (
        nn.Tanh,
        "extra",
        [1],
        [100],
        lambda x: x * getattr(LAYER, "extra")[0],  # noqa: B009 the name is a text
    ),
    "among all": (math, "extra", 1, 100, lambda x: x * vars(math)[_computed("ex", "tra")]),
}


@pytest.mark.parametrize("name", UNDER_COMPUTED_NAMES)
def test_what_a_library_has_under_a_computed_name_is_state(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, first, second, program = UNDER_COMPUTED_NAMES[name]
    compiled = jit(program)
    for value, expected in ((first, 1), (second, 100), (first, 1)):
        monkeypatch.setattr(owner, attribute, value, raising=False)
        assert compiled(torch.ones(1)) == expected
    assert len(jit.explain(compiled).programs) == 2


def test_the_state_of_another_function_is_read_where_it_is_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"factor": 2.0}
    monkeypatch.setattr(F, "relu", lambda x: x * settings["factor"])
    monkeypatch.setattr(torch, "settings", settings, raising=False)
    by_function = jit(lambda x: F.relu(x))
    by_module = jit(lambda x: x * torch.settings["factor"])  # type: ignore[attr-defined]
    for factor in (2.0, 3.0, 4.0, 5.0):
        settings["factor"] = factor
        assert by_function(torch.ones(1)) == by_module(torch.ones(1)) == factor


def test_arguments_of_the_process_are_state(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jit(lambda x: x * (2 if "--debug" in sys.argv else 3))
    for argv, factor in ((["p"], 3), (["p", "--debug"], 2), (["p"], 3)):
        monkeypatch.setattr(sys, "argv", argv)
        assert compiled(torch.ones(1)) == factor


def test_hooks_of_all_modules_are_those_of_a_module_that_the_program_makes() -> None:
    compiled = jit(lambda x: nn.Tanh()(x))
    first = compiled(torch.ones(1))
    handle = nn.modules.module.register_module_forward_hook(lambda m, x, out: out * 100)
    assert compiled(torch.ones(1)) == first * 100
    handle.remove()
    assert compiled(torch.ones(1)) == first


def test_hooks_of_all_optimizers_are_found() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    @jit
    def step(x: Any) -> None:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    def put_back(optimizer: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            weight.fill_(7)

    step(torch.ones(1))
    handle = register_optimizer_step_post_hook(put_back)
    step(torch.ones(1))
    assert weight == 7
    handle.remove()
    step(torch.ones(1))
    assert weight.item() == pytest.approx(6.9)


def test_what_a_program_puts_into_a_module_is_there_after_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "extra", 0, raising=False)

    @jit
    def count(x: Any) -> Any:
        torch.extra += 1  # type: ignore[attr-defined]
        return x * torch.extra  # type: ignore[attr-defined]

    assert [count(torch.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]
    assert torch.extra == 4  # type: ignore[attr-defined]


def test_functions_that_stay_need_one_program() -> None:
    layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    compiled = jit(lambda x: F.relu(layers(torch.sin(x))))
    for _ in range(5):
        compiled(torch.ones(2))
    assert len(jit.explain(compiled).programs) == 1


class Patch:
    """What a user puts in place of a function."""

    slope = 2.0

    def relu(self, x: Any) -> Any:
        return x * self.slope


PATCH = Patch()
OBJECTS: dict[str, tuple[Any, str, Callable[[], Any], Callable[[Any, float], Any], Program]] = {
    "a namespace": (
        torch,
        "cfg",
        SimpleNamespace,
        lambda x, v: setattr(x, "rate", v),
        lambda x: x * torch.cfg.rate,  # type: ignore[attr-defined]
    ),
    "an ordered dictionary": (
        torch,
        "cfg",
        collections.OrderedDict,
        lambda x, v: x.update(rate=v),
        lambda x: x * torch.cfg["rate"],  # type: ignore[attr-defined]
    ),
    "an array": (
        torch,
        "cfg",
        lambda: np.zeros(1),
        lambda x, v: x.fill(v),
        lambda x: x * float(torch.cfg[0]),  # type: ignore[attr-defined]
    ),
    "a layer": (
        torch,
        "cfg",
        lambda: nn.ELU(1.0),
        lambda x, v: setattr(x, "alpha", v),
        lambda x: x * torch.cfg.alpha,  # type: ignore[attr-defined]
    ),
    "a method": (
        F,
        "relu",
        lambda: PATCH.relu,
        lambda x, v: setattr(PATCH, "slope", v),
        lambda x: F.relu(x),
    ),
    "a partial function": (
        F,
        "relu",
        lambda: functools.partial(lambda x, k: x * k, k=2.0),
        lambda x, v: x.keywords.update(k=v),
        lambda x: F.relu(x),
    ),
    "an object of another library's class": (
        np,
        "jobs",
        queue.Queue,
        lambda x, v: [x.put(0) for _ in range(int(v) - x.qsize())],
        lambda x: x * np.jobs.qsize(),  # type: ignore[attr-defined]
    ),
    "an object of one of its own classes": (
        torch,
        "cfg",
        lambda: torch.utils.data.TensorDataset(torch.ones(1)),
        lambda x, v: setattr(x, "tensors", (torch.ones(int(v)),)),
        lambda x: x * len(torch.cfg),  # type: ignore[attr-defined]
    ),
    "an object with slots": (
        fractions,
        "rate",
        lambda: fractions.Fraction(1, 1),
        lambda x, v: setattr(x, "_numerator", int(v)),
        lambda x: x * float(fractions.rate),  # type: ignore[attr-defined]
    ),
    "a weak container": (
        torch,
        "cfg",
        lambda: weakref.WeakValueDictionary(patch=PATCH),
        lambda x, v: setattr(PATCH, "slope", v),
        lambda x: x * torch.cfg["patch"].slope,  # type: ignore[attr-defined]
    ),
    "in a class": (
        nn.Linear,
        "cfg",
        dict,
        lambda x, v: x.update(rate=v),
        lambda x: x * nn.Linear.cfg["rate"],  # type: ignore[attr-defined]
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_that_somebody_puts_into_a_library_is_followed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, make, change, program = OBJECTS[name]
    monkeypatch.setattr(owner, attribute, make(), raising=False)
    compiled = jit(program)
    for value in (2.0, 2.0, 3.0, 4.0):
        change(getattr(owner, attribute), value)
        assert compiled(torch.ones(1)) == value


_silu = F.silu


def test_what_somebody_gives_to_a_function_is_state_by_whatever_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = jit(lambda x: x * _silu.rate)  # type: ignore[attr-defined]
    for value in (2.0, 2.0, 3.0):
        monkeypatch.setattr(F.silu, "rate", value, raising=False)
        assert compiled(torch.ones(1)) == value


def test_what_somebody_gives_to_a_function_of_a_library_is_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_attribute = jit(lambda x: x * F.relu.rate)  # type: ignore[attr-defined]
    by_default = jit(lambda x: F.elu(-x))
    for value in (2.0, 2.0, 3.0, 2.0):
        monkeypatch.setattr(F.relu, "rate", value, raising=False)
        monkeypatch.setattr(F.elu, "__defaults__", (value, False))
        assert by_attribute(torch.ones(1)) == value
        assert by_default(torch.ones(1)).item() == pytest.approx(value * math.expm1(-1))


class Box:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return (4.0, 5.0)[index]


def _first_of(box: Any) -> float:
    match box:
        case [first, _]:
            return float(first)
        case _:
            return 1.0


REGISTERED: dict[str, Callable[[Any], float]] = {
    "isinstance": lambda box: 2.0 + isinstance(box, collections.abc.Sequence),
    "match": _first_of,
}


@pytest.mark.parametrize("way", REGISTERED)
def test_a_class_that_somebody_registers_with_one_of_pythons_is_found(way: str) -> None:
    kind = type("OfNobody", (Box,), {"__module__": __name__})
    box, ask = kind(), REGISTERED[way]
    compiled = jit(lambda x: x * ask(box))
    first = compiled(torch.ones(1)).item()
    assert first == compiled(torch.ones(1)).item() == ask(box)
    collections.abc.Sequence.register(kind)
    assert compiled(torch.ones(1)).item() == ask(box) != first
    assert len(jit.explain(compiled).programs) == 2


def test_a_class_of_a_module_that_is_imported_later_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``sympy`` registers some, which programs for any sizes import."""
    (tmp_path / "with_a_new_class.py").write_text(
        "import collections.abc\n"
        "class New: pass\n"
        "collections.abc.Sequence.register(New)\n"
        "collections.abc.Sequence.__annotations__\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    box = Box()
    compiled = jit(lambda x: x * (2.0 + isinstance(box, collections.abc.Sequence)))
    first = compiled(torch.ones(1))
    new = importlib.import_module("with_a_new_class").New()
    assert compiled(torch.ones(1)).equal(first)
    assert len(jit.explain(compiled).programs) == 1
    # a program that comes to an object of the class asks again
    later = jit(lambda x: x * (2.0 + isinstance(new, collections.abc.Sequence)))
    assert later(torch.ones(1)).item() == 3.0


def test_a_class_that_nobody_has_any_more_costs_no_program() -> None:
    """A registry drops such a class by itself, whenever the collector comes to it."""
    kind, other = (type(name, (), {}) for name in ("OfNobody", "Other"))
    collections.abc.Sequence.register(kind)
    box = Box()
    compiled = jit(lambda x: x * (2.0 + isinstance(box, collections.abc.Sequence)))
    first = compiled(torch.ones(1))
    of_kind = weakref.ref(kind)
    del kind
    gc.collect()
    assert of_kind() is None
    # another registry changes, so that this one is read again
    Named.register(other)
    assert compiled(torch.ones(1)).equal(first)
    assert len(jit.explain(compiled).programs) == 1


class Named(abc.ABC):
    """An abstract class, from which another one inherits."""

    @abc.abstractmethod
    def name(self) -> str: ...


class NamedTwice(Named):
    @abc.abstractmethod
    def second_name(self) -> str: ...


def test_a_class_that_somebody_registers_with_a_subclass_is_found() -> None:
    kind = type("OfNobody", (), {})
    one = kind()
    compiled = jit(lambda x: x * (2 if isinstance(one, Named) else 3))
    assert compiled(torch.ones(1)) == 3
    NamedTwice.register(kind)
    assert compiled(torch.ones(1)) == 2


def test_what_c_has_for_an_abstract_class_stays_as_it_is() -> None:
    compiled = jit(lambda x: x * (2 if hasattr(collections.abc.Set, "_abc_impl") else 3))
    for _ in range(3):
        assert compiled(torch.ones(1)) == 2
    assert len(jit.explain(compiled).programs) == 1


SPACE = argparse.Namespace(rate=2.0, other=5.0)
FRACTION = fractions.Fraction(3, 2)


def _matched(space: Any) -> float:
    match space:
        case argparse.Namespace(found):
            return float(found)
    return 0.0


SPECIAL: dict[str, tuple[Any, str, list[Any], Callable[[], float]]] = {
    "round": (fractions.Fraction, "__round__", [lambda x: 2, lambda x: 3], lambda: round(FRACTION)),
    "floor": (
        fractions.Fraction,
        "__floor__",
        [lambda x: 2, lambda x: 3],
        lambda: math.floor(FRACTION),
    ),
    "text of a layer": (
        nn.Module,
        "__repr__",
        [lambda layer: "a", lambda layer: "ab"],
        lambda: len(f"{LINEAR}"),
    ),
    "a key that is missing": (
        collections.Counter,
        "__missing__",
        [lambda c, key: 2, lambda c, key: 3],
        lambda: COUNTER["none"],
    ),
    "a pattern": (
        argparse.Namespace,
        "__match_args__",
        [("rate",), ("other",)],
        lambda: _matched(SPACE),
    ),
    "a value in a class": (
        json.JSONEncoder,
        "item_separator",
        [", ", " ;; "],
        lambda: len(json.dumps([1, 2], sort_keys=True)),
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_what_python_or_a_library_asks_a_class_for_is_state(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, values, ask = SPECIAL[name]
    compiled = jit(lambda x: x * ask())
    found = []
    for value in (*values, values[0]):
        monkeypatch.setattr(owner, attribute, value, raising=False)
        found.append(compiled(torch.ones(1)).item())
        assert found[-1] == ask()
    assert found[0] == found[2] != found[1]


def test_a_module_that_is_loaded_by_its_file_may_have_the_name_of_one_of_pythons(
    tmp_path: Path,
) -> None:
    file = tmp_path / "queue.py"
    file.write_text("rate = 1.0\ndef get():\n    return rate\n")
    spec = importlib.util.spec_from_file_location("queue", file)
    assert spec is not None and spec.loader is not None
    plugin: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    compiled = jit(lambda x: x * plugin.get())
    for rate in (1.0, 2.0, 3.0):
        plugin.rate = rate
        assert compiled(torch.ones(1)).item() == rate
