"""State behind functions that a program has under another name, and what they find by a name that
is computed."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C import TensorBase

from runtime import jit


def _computed(*parts: str) -> str:
    return "".join(parts)


_ask_environment, _environment, _expand = os.getenv, os.environ, os.path.expandvars
ENVIRONMENT: dict[str, Callable[[], object]] = {
    "getenv": lambda: _ask_environment("RATE"),
    "environ": lambda: _environment["RATE"],
    "expandvars": lambda: _expand("$RATE"),
}


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_the_environment_is_state_by_whatever_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ENVIRONMENT[name]
    compiled = jit(lambda x: x * float(ask()))  # type: ignore[arg-type]
    for rate in (2.0, 3.0, 2.0):
        monkeypatch.setenv("RATE", str(rate))
        assert compiled(torch.ones(1)) == rate


def test_a_variable_of_the_environment_that_nobody_reads_is_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RATE", "2")
    compiled = jit(lambda x: x * float(os.environ.get("RATE", "1")))
    for number in range(4):
        monkeypatch.setenv("STEP", str(number))
        assert compiled(torch.ones(1)) == 2
    assert len(jit.explain(compiled).programs) == 1


_thread, _identity = threading.current_thread, threading.get_ident
THREADS: dict[str, Callable[[], object]] = {
    "current_thread": lambda: _thread().name,
    "get_ident": lambda: _identity(),
}


@pytest.mark.parametrize("name", THREADS)
def test_the_thread_of_a_call_is_state_by_whatever_name(name: str) -> None:
    ask = THREADS[name]
    compiled = jit(lambda x: (x * 2, ask()))
    found = []

    def call() -> None:
        found.append((compiled(torch.ones(1))[1], ask()))

    call()
    other = threading.Thread(target=call)
    other.start()
    other.join()
    assert all(ours == eager for ours, eager in found)
    assert len(found) == 2


RATE = 2.0
_all_globals, _evaluate = globals, eval
LOOKUPS: dict[str, Callable[[], float]] = {
    "globals": lambda: _all_globals()[_computed("RA", "TE")],
    "eval": lambda: _evaluate(_computed("RA", "TE")),
    "a module": lambda: _import_module(__name__).RATE,
}


def _import_module(name: str) -> Any:
    return _import(name, fromlist=["RATE"])


_import = __import__


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_global_is_found_by_a_function_of_whatever_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = LOOKUPS[name]
    compiled = jit(lambda x: x * find())
    for rate in (2.0, 3.0, 2.0):
        monkeypatch.setattr(sys.modules[__name__], "RATE", rate)
        assert compiled(torch.ones(1)) == rate


class Box:
    """An object with attributes, in a class of the program's."""


BOX = Box()
_attribute_of, _text_of = object.__getattribute__, str.format
_state_of = vars(object)["__getstate__"]
UNBOUND: dict[str, Callable[[str], Any]] = {
    "a slot": lambda name: _attribute_of(BOX, name),
    "a method of a class": lambda name: float(_text_of("{0." + name + "}", BOX)),
    "a state": lambda name: _state_of(BOX)[name],
    "a function of Python's library": lambda name: inspect.getattr_static(BOX, name),
}


@pytest.mark.parametrize("name", UNBOUND)
def test_an_attribute_is_found_by_a_function_of_whatever_kind(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, attribute = UNBOUND[name], _computed("ra", "te")
    compiled = jit(lambda x: x * find(attribute))
    for rate in (2.0, 3.0, 2.0):
        monkeypatch.setattr(BOX, "rate", rate, raising=False)
        assert compiled(torch.ones(1)) == rate


_offset, _memory, _shared = Tensor.storage_offset, Tensor.untyped_storage, Tensor.is_shared
_version, _hooks = (vars(TensorBase)[name].__get__ for name in ("_version", "_backward_hooks"))
QUESTIONS: dict[str, tuple[Callable[[Tensor], object], Callable[[Tensor], object]]] = {
    "storage_offset": (_offset, lambda t: setattr(t, "data", torch.ones(4)[1:3])),
    "untyped_storage": (lambda t: _memory(t).nbytes(), lambda t: t.untyped_storage().resize_(80)),
    "is_shared": (_shared, lambda t: t.share_memory_()),
    "_version": (_version, lambda t: t.add_(0)),
    "_backward_hooks": (
        lambda t: _hooks(t) is None,
        lambda t: t.requires_grad_().register_hook(lambda gradient: gradient),
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_tensor_of_the_state_is_asked_by_a_function_of_whatever_name(name: str) -> None:
    ask, change = QUESTIONS[name]
    tensor = torch.ones(2)
    compiled = jit(lambda x: (x * 2, ask(tensor)))
    first = ask(tensor)
    assert compiled(torch.ones(1))[1] == first
    change(tensor)
    assert compiled(torch.ones(1))[1] == ask(tensor) != first
