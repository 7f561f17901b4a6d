"""What a program asks a tensor of its state counts, by whatever name it asks."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import operator
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
import torch
import torch.utils.dlpack
from torch import Tensor
from torch._C import TensorBase

from runtime import jit

Make = Callable[[], Tensor]
Change = Callable[[Tensor], object]


def _assign(make: Make) -> Change:
    """Return a change that gives a tensor the data of another one."""

    def change(tensor: Tensor) -> None:
        tensor.data = make()

    return change


def _vector() -> Tensor:
    return torch.ones(2)


def _leaf() -> Tensor:
    return torch.ones(2, requires_grad=True)


def _complex() -> Tensor:
    return torch.ones(2, dtype=torch.cfloat)


def _sparse() -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 0], [0, 1]]), torch.tensor([1.0, 1.0]), (2, 3))


def _hybrid() -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 3), (2, 3))


def _quantized(scale: float) -> Tensor:
    return torch.quantize_per_tensor(torch.ones(2), scale, 0, torch.qint8)


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(2)


CHANGES: dict[str, tuple[Make, Change]] = {
    "a write": (_vector, lambda t: t.add_(0)),
    "another place in memory": (_vector, _assign(lambda: torch.ones(4)[1:3])),
    "more memory": (_vector, lambda t: t.untyped_storage().resize_(80)),
    "shared memory": (_vector, lambda t: t.share_memory_()),
    "lazy conjugation": (_complex, _assign(lambda: _complex().conj())),
    "lazy negation": (lambda: torch.ones(4)[::2], _assign(lambda: _complex().conj().imag)),
    "lazy zeros": (_vector, _assign(lambda: torch._efficientzerotensor(2))),
    "a hook": (_leaf, lambda t: t.register_hook(lambda g: g)),
    "a hook after the gradient": (
        _leaf,
        lambda t: t.register_post_accumulate_grad_hook(lambda _: None),
    ),
    "inference": (_vector, _assign(_inference)),
    "the flag of coalesced entries": (_sparse, lambda t: t._coalesced_(True)),
    "other sparse dimensions": (_sparse, _assign(_hybrid)),
    "another scale": (lambda: _quantized(0.1), _assign(lambda: _quantized(0.2))),
}
_ANSWERS = (int, float, bool, str)
_CHANGING = ("backward", "detach_", "requires_grad_", "retain_grad", "share_memory_")
_OF_OBJECTS = ("_cdata", "_use_count", "__hash__", "__sizeof__", "__repr__", "__str__")
_OF_PROCESS = frozenset((*_OF_OBJECTS, *_CHANGING))
"""What tells where an object is and who holds it, or its elements, and what changes a tensor."""


def _answer(tensor: Tensor, name: str) -> object:
    """Return what a tensor answers: a plain value, the number of its hooks, or else nothing."""
    try:
        found = getattr(tensor, name)
        if inspect.isroutine(found):
            found = found()
    except Exception:  # it needs arguments, or the tensor is of another kind
        return None
    if isinstance(found, dict):
        return len(found)
    return found if isinstance(found, _ANSWERS) else None


def _is_changed(name: str, make: Make, change: Change) -> bool:
    """Return whether a change gives another answer to a question. Not if it cannot be made after
    the question, as a tensor that an array shares gets no more memory."""
    tensor = make()
    before = _answer(tensor, name)
    try:
        change(tensor)
    except RuntimeError:
        return False
    return _answer(tensor, name) != before


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning")
@pytest.mark.filterwarnings("ignore:.*program raises RuntimeError:UserWarning")
@pytest.mark.filterwarnings("ignore:.*storage is deprecated:UserWarning")
def test_each_question_counts_whose_answer_may_change(kind: str) -> None:
    make, change = CHANGES[kind]
    names = [n for n in dir(Tensor) if n not in _OF_PROCESS and not n.endswith("_")]
    asked = [name for name in names if _is_changed(name, make, change)]
    assert asked
    for name in asked:
        tensor = make()
        one = torch.ones((), dtype=torch.float64)  # which has the places in memory exactly
        try:
            compiled = jit(functools.partial(_program, tensor, name))
            before = compiled(one)
        except RuntimeError as refusal:
            assert "It happened at" in str(refusal)
            continue
        change(tensor)
        assert compiled(one) != before, name


def _program(tensor: Tensor, name: str, x: Tensor) -> Tensor:
    found = getattr(tensor, name)
    if callable(found):
        found = found()
    return x * (1 + (len(found) if isinstance(found, dict) else float(found or 0)))


_offset: Any = Tensor.storage_offset
_memory = Tensor.untyped_storage
_get_version = vars(TensorBase)["_version"].__get__
_version: Any = vars(TensorBase)["_version"]
_get_offset, _ask_version = operator.methodcaller("storage_offset"), operator.attrgetter("_version")
_name = "".join(("_ver", "sion"))


def _move(tensor: Tensor) -> None:
    tensor.data = torch.ones(4)[1:3]


def _write(tensor: Tensor) -> None:
    tensor.add_(0)


def _grow(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(80)


WAYS: dict[str, tuple[Callable[[Any], Any], Change]] = {
    "map": (lambda t: next(map(_offset, [t])), _move),
    "starmap": (lambda t: next(itertools.starmap(_offset, [(t,)])), _move),
    "partial": (lambda t: functools.partial(_offset, t)(), _move),
    "operator.call": (lambda t: operator.call(_offset, t), _move),
    "__call__": (lambda t: _offset.__call__(t), _move),
    "methodcaller": (lambda t: _get_offset(t), _move),
    "an operator": (torch.ops.aten.sym_storage_offset, _move),
    "map of a storage": (lambda t: next(map(_memory, [t])).nbytes(), _grow),
    "attrgetter": (lambda t: _ask_version(t), _write),
    "attrgetter made inside": (lambda t: operator.attrgetter(_name)(t), _write),
    "getattr": (lambda t: getattr(t, _name), _write),
    "getattr of a constant": (lambda t: getattr(t, "_version"), _write),  # noqa: B009
    "map of getattr": (lambda t: next(map(getattr, [t], ["_version"])), _write),
    "partial of getattr": (lambda t: functools.partial(getattr, t, _name)(), _write),
    "object.__getattribute__": (lambda t: object.__getattribute__(t, _name), _write),
    "getattr_static": (lambda t: inspect.getattr_static(t, _name).__get__(t), _write),
    "vars": (lambda t: vars(TensorBase)[_name].__get__(t), _write),
    "a descriptor": (lambda t: _version.__get__(t), _write),
    "the class of a descriptor": (lambda t: type(_version).__get__(_version, t), _write),
    "a method of a descriptor": (lambda t: _get_version(t), _write),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_question_counts_in_whatever_way_it_is_asked(way: str) -> None:
    ask, change = WAYS[way]
    tensor = torch.ones(2)
    compiled = jit(lambda x: x * (1 + ask(tensor)))
    before = compiled(torch.ones(())).item()
    change(tensor)
    assert compiled(torch.ones(())).item() == 1 + ask(tensor) != before


SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[int], object]]] = {
    "threads": (
        lambda: next(itertools.starmap(torch.get_num_threads, [()])),
        torch.set_num_threads,
    ),
    "thresholds": (
        lambda: functools.partial(gc.get_threshold)()[0],
        lambda n: gc.set_threshold(700 + n),
    ),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_counts_that_a_function_of_c_asks_for(name: str) -> None:
    ask, change = SWITCHES[name]
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    compiled = jit(lambda x: x * ask())
    try:
        for number in (1, 2, 1):
            change(number)
            assert compiled(torch.ones(())).item() == ask()
    finally:
        torch.set_num_threads(threads)
        gc.set_threshold(*thresholds)


_environment: Any = os.environ
ENVIRONMENTS: dict[str, tuple[Callable[[], float], Callable[[str], object]]] = {
    "its dictionary": (
        lambda: float(_environment._data[b"RATE"]),
        lambda text: os.environ.update(RATE=text),
    ),
    "an attribute": (
        lambda: float(_environment.rate),
        lambda text: setattr(_environment, "rate", text),
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_the_environment_holds_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, change = ENVIRONMENTS[name]
    monkeypatch.setenv("RATE", "1")
    monkeypatch.setattr(_environment, "rate", "1", raising=False)
    compiled = jit(lambda x: x * ask())
    for text in ("1", "5"):
        change(text)
        assert compiled(torch.ones(())) == float(text)


def test_another_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jit(lambda x: x * float(os.getenv("RATE", "1")))
    for rate in ("2", "3"):
        monkeypatch.setattr(os, "environ", {"RATE": rate})
        assert compiled(torch.ones(())) == float(rate)


def test_another_object_of_the_environments_class_counts() -> None:
    kind: Any = type(os.environ)
    own = kind({}, str.encode, bytes.decode, str.encode, bytes.decode)
    compiled = jit(lambda x: x * float(own["RATE"]))
    for rate in ("2", "3"):
        own._data[b"RATE"] = rate.encode()
        assert compiled(torch.ones(())) == float(rate)


def test_a_write_to_what_the_environment_holds_is_made_by_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RATE", raising=False)

    @jit
    def program(x: Tensor) -> Tensor:
        _environment._data[b"RATE"] = b"7"
        return x * 2

    for _ in range(3):
        _environment._data.pop(b"RATE", None)
        assert program(torch.ones(())) == 2
        assert os.environ["RATE"] == "7"


class Marked(Tensor):
    """A class of the user's with questions under names of its own."""

    place = property(Tensor.storage_offset)
    where: Any = Tensor.storage_offset


class MarkedParameter(torch.nn.Parameter):
    """A class of the user's that adds nothing."""


OF_CLASSES: dict[str, tuple[Make, Callable[[Any], int]]] = {
    "a subclass": (lambda: torch.ones(2).as_subclass(Marked), lambda t: t.storage_offset()),
    "a property": (lambda: torch.ones(2).as_subclass(Marked), lambda t: t.place),
    "a method": (lambda: torch.ones(2).as_subclass(Marked), lambda t: t.where()),
    "a parameter": (
        lambda: MarkedParameter(torch.ones(2), requires_grad=False),
        lambda t: t.storage_offset(),
    ),
}


@pytest.mark.parametrize("kind", OF_CLASSES)
def test_a_question_counts_to_a_tensor_of_the_users_class(kind: str) -> None:
    make, ask = OF_CLASSES[kind]
    tensor = make()
    compiled = jit(lambda x: x * (1 + ask(tensor)))
    assert compiled(torch.ones(())) == 1
    _move(tensor)
    assert compiled(torch.ones(())) == 2


@runtime_checkable
class HasRate(Protocol):
    """What a step asks of its model."""

    rate: float

    def forward(self, x: Tensor) -> Tensor: ...


class Rated(torch.nn.Module):
    """A model that looks its layers up by name, and has what a protocol asks for."""

    rate = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first",):
            x = getattr(self, name)(x)
        return x * self.rate if isinstance(self, HasRate) else x


def test_a_step_that_asks_nothing_of_its_parameters_replays_although_each_has_a_version() -> None:
    model = Rated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(12):
        step(torch.ones(2, 3))
    assert len(jit.explain(step).programs) == 2


class _Scaled(Tensor):
    rate = 3.0


CLASSES: dict[str, tuple[Callable[[Any], Any], type[Tensor]]] = {
    "isinstance": (lambda t: isinstance(t, torch.nn.Parameter), torch.nn.Parameter),
    "type": (lambda t: len(type(t).__name__), torch.nn.Parameter),
    "attribute": (lambda t: getattr(t, "rate", 1.0), _Scaled),
}


@pytest.mark.parametrize("question", CLASSES)
def test_another_class_of_a_tensor_counts(question: str) -> None:
    ask, other = CLASSES[question]
    tensor: Any = torch.ones(2)
    compiled = jit(lambda x: x * ask(tensor))
    for kind in (Tensor, other, Tensor):
        tensor.__class__ = kind
        assert compiled(torch.ones(())).item() == ask(tensor)


@dataclass
class Question:
    """What a program is to ask."""

    name: Any


TREES: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "a text": ("_version", lambda tree: tree),
    "a text of NumPy's": (np.str_("_version"), lambda tree: tree),
    "bytes": (b"_version", lambda tree: tree.decode()),
    "a list": (["_version"], lambda tree: tree[0]),
    "a queue": (deque(["_version"]), lambda tree: tree[0]),
    "a value": ({"name": "_version"}, lambda tree: tree["name"]),
    "a key": ({"_version": 1}, lambda tree: next(iter(tree))),
    "a data class": (Question("_version"), lambda tree: tree.name),
    "a list in a data class": (Question(["_version"]), lambda tree: tree.name[0]),
}


@pytest.mark.parametrize("kind", TREES)
def test_a_question_counts_whose_name_is_an_argument(kind: str) -> None:
    tensor = torch.ones(2)
    tree, name_in = TREES[kind]
    compiled = jit(lambda x, names: x * getattr(tensor, name_in(names)))
    for _ in range(3):
        assert compiled(torch.ones(()), tree).item() == tensor._version
        tensor.add_(0)


def test_whether_two_tensors_have_one_memory_counts() -> None:
    one: Any = torch.ones(2)
    other: Any = torch.ones(2)
    is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]
    questions: list[Callable[[], bool]] = [
        lambda: one.is_set_to(other),
        lambda: is_alias_of(one, other),
    ]
    for ask in questions:
        compiled = jit(lambda x, ask=ask: x * ask())
        for shared in (False, True, False):
            other.set_(one if shared else torch.ones(2))
            assert compiled(torch.ones(())).item() == shared


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_the_integers_of_a_compressed_tensor_count() -> None:
    dense = torch.eye(3).to_sparse_csr()

    def made(dtype: torch.dtype) -> Tensor:
        rows, columns = dense.crow_indices().to(dtype), dense.col_indices().to(dtype)
        return torch.sparse_csr_tensor(rows, columns, dense.values(), (3, 3))

    compiled = jit(lambda x, y: x * y.crow_indices().element_size())
    for dtype in (torch.int32, torch.int64, torch.int32):
        assert compiled(torch.ones(()), made(dtype)).item() == dtype.itemsize


OVER_MEMORY: dict[str, Callable[[Any], Tensor]] = {
    "from_dlpack": torch.utils.dlpack.from_dlpack,
    "Parameter": lambda w: torch.nn.Parameter(w, requires_grad=False),
    "as_subclass": lambda w: w.as_subclass(Tensor),
    "_make_subclass": lambda w: Tensor._make_subclass(Tensor, w),
}
MOVES: dict[str, Callable[[Any, float], object]] = {
    "data": lambda w, i: setattr(w, "data", torch.full((2,), i)),
    "set_": lambda w, i: w.set_(torch.full((2,), i)),
    "fill_": lambda w, i: w.fill_(i),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("make", OVER_MEMORY)
def test_a_tensor_that_the_program_makes_over_the_memory_of_another_one_follows_it(
    make: str, move: str
) -> None:
    held = SimpleNamespace(w=torch.ones(2))
    compiled = jit(lambda x: x * OVER_MEMORY[make](held.w)[0])
    for i in (1.0, 1.0, 2.0, 3.0):
        MOVES[move](held.w, i)
        assert compiled(torch.ones(())).item() == i
