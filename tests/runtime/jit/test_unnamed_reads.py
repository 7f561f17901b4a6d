"""State that code has no name for, or a name that all classes have: what operators ask of a class,
what a registry of a library's holds."""

from __future__ import annotations

import copy
import copyreg
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as D

from runtime import jit

# (class, module) -> number; the change that the caller makes
NAMES: dict[str, tuple[Callable[[Any, Any], int], Callable[[Any, Any], Any]]] = {
    "annotations": (
        lambda cls, m: len(cls.__annotations__),
        lambda cls, m: cls.__annotations__.update(steps=int),
    ),
    "a docstring": (
        lambda cls, m: len(cls.__doc__),
        lambda cls, m: setattr(cls, "__doc__", "longer"),
    ),
    "a qualified name": (
        lambda cls, m: len(cls.__qualname__),
        lambda cls, m: setattr(cls, "__qualname__", "C"),
    ),
    "the name of a module": (
        lambda cls, m: len(cls.__module__),
        lambda cls, m: setattr(cls, "__module__", "longer"),
    ),
    "a docstring of a module": (
        lambda cls, m: len(m.__doc__),
        lambda cls, m: setattr(m, "__doc__", "longer"),
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_all_classes_have_is_state_where_code_names_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, change = NAMES[name]
    module = types.ModuleType("some_module", "doc")
    monkeypatch.setitem(sys.modules, "some_module", module)

    class Config:
        """Doc."""

        rate: float = 1.0

    compiled = jit(lambda x: x * read(Config, module))
    before = read(Config, module)
    assert [compiled(torch.ones(1)).item() for _ in range(2)] == [before] * 2
    change(Config, module)
    assert read(Config, module) != before
    assert [compiled(torch.ones(1)).item() for _ in range(2)] == [read(Config, module)] * 2


LAYERS = nn.Sequential(nn.Tanh(), nn.Sigmoid())
OPERATORS: dict[str, tuple[Any, str, Any, Callable[[Any], Any]]] = {
    "*": (Tensor, "__mul__", lambda x, y: torch.full((1,), 100.0), lambda x: x * 2),
    "an index": (
        nn.Sequential,
        "__getitem__",
        lambda m, i: lambda x: torch.full((1,), 100.0),
        lambda x: LAYERS[0](x),
    ),
    "a reflected operator": (Tensor, "__rsub__", lambda x, y: x + 99, lambda x: 1 - x),
    "the length of a layer": (nn.Sequential, "__len__", lambda m: 100, lambda x: x * len(LAYERS)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_special_method_of_a_library_that_somebody_replaces_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, other, program = OPERATORS[name]
    compiled = jit(program)
    before = compiled(torch.ones(1))
    assert compiled(torch.ones(1)) == before
    monkeypatch.setattr(owner, attribute, other)
    assert compiled(torch.ones(1)) == 100
    monkeypatch.undo()
    assert compiled(torch.ones(1)) == before


def _by_bijector(state: Any) -> Callable[[Tensor], Any]:
    class Mine(D.constraints.Constraint):
        pass

    mine = Mine()

    @D.biject_to.register(Mine)  # type: ignore[untyped-decorator]
    def _(constraint: object) -> object:
        return D.transforms.AffineTransform(0.0, state.factor)

    return lambda x: D.biject_to(mine)(x)


def _by_copyreg(state: Any) -> Callable[[Tensor], Any]:
    class Point:
        def __init__(self, value: float) -> None:
            self.value = value

    def make(value: float) -> Point:
        return Point(value * state.factor)

    copyreg.pickle(Point, lambda p: (make, (p.value,)))
    point = Point(1.0)
    return lambda x: x * copy.copy(point).value


@pytest.mark.parametrize("make", [_by_bijector, _by_copyreg])
def test_a_function_that_a_registry_holds_reads_what_it_closes_over(
    make: Callable[[Any], Callable[[Tensor], Any]],
) -> None:
    state = SimpleNamespace(factor=1.0)
    compiled = jit(make(state))
    for state.factor in (2.0, 2.0, 3.0, 4.0):
        assert compiled(torch.ones(1)).item() == state.factor


def test_a_list_that_a_program_makes_for_a_function_of_its_own_is_no_state() -> None:
    @jit
    def program(x: Tensor) -> Tensor:
        found: list[Tensor] = []

        def note(y: Tensor) -> None:
            found.append(y * 2)

        for _ in range(3):
            note(x)
        return found[0] + found[1] + found[2]

    assert [program(torch.ones(1)).item() for _ in range(3)] == [6.0] * 3


def test_a_module_with_the_name_of_one_of_pythons_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace.py").write_text(
        "class Config:\n    rate = 2.0\n\n\ndef scale(x):\n    return x * Config.rate\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trace", raising=False)
    trace: Any = importlib.import_module("trace")
    compiled = jit(lambda x: trace.scale(x))
    for rate in (2.0, 2.0, 3.0, 5.0):
        trace.Config.rate = rate
        assert compiled(torch.ones(1)) == rate
    monkeypatch.delitem(sys.modules, "trace")


def test_a_tensor_that_is_put_at_a_second_place_is_one_object() -> None:
    state = SimpleNamespace(first=None, second=torch.ones(1))

    @jit
    def program(x: Tensor) -> Tensor:
        return x * (2 if state.first is state.second else 3)

    found = []
    for step in range(8):
        state.first = torch.full((1,), float(step))
        if step in (4, 6):
            state.first = state.second
        found.append(program(torch.ones(1)).item())
    assert found == [3.0, 3.0, 3.0, 3.0, 2.0, 3.0, 2.0, 3.0]


def test_a_generator_that_the_program_makes_and_returns_is_refused() -> None:
    program = jit(lambda x: (x * 2, torch.Generator().manual_seed(7)))
    with pytest.raises(RuntimeError, match=r"returns a Generator, which it has made.*test_unnamed"):
        program(torch.ones(1))
