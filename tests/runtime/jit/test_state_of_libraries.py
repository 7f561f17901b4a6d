"""What users put into modules and classes of torch, Python's library and NumPy."""

from __future__ import annotations

import collections
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
