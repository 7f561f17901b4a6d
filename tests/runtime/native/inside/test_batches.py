"""Batches of C++ say yes only if each fact is the one that was noted.

Inside: ``runtime.native``. A guard asks Python once more where a batch says no, so that no program
of a user shows which of the two has noticed a change.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit
from runtime.native import library as native
from runtime.native.library import Library, NativeBatch
from runtime.native.noted import Noted, Question, native_batch

HAS_VERSIONS = sys.version_info < (3, 12)
needs_versions = pytest.mark.skipif(
    not HAS_VERSIONS, reason="CPython has versions of dictionaries up to 3.11"
)


@pytest.fixture
def library(native_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv(native.VARIABLE, str(native_folder))
    found = native.library()
    assert found.module is not None, found.reason
    return found


def noted(library: Library, kind: str, objects: Sequence[object]) -> NativeBatch:
    """Return a batch that has noted the facts of now."""
    assert library.module is not None
    batch = library.module.Batch(kind, objects)
    seen = batch.look()
    assert not batch()
    assert seen is not None
    batch.note(seen)
    assert batch()
    return batch


class Thing:
    """An object with attributes."""

    def __init__(self) -> None:
        self.a = 1


class Other(Thing):
    pass


class Own(Tensor):
    """A class of the user's."""


def _write_and_undo(d: dict[str, int]) -> None:
    d["a"] = 2
    d["a"] = 1


Change = Callable[[Any], object]
VERSIONS: dict[str, tuple[str, Callable[[], Any], Change]] = {
    "an item": ("versions", lambda: {"a": 1}, lambda d: d.update(a=2)),
    "an item that comes back": ("versions", lambda: {"a": 1}, _write_and_undo),
    "an attribute": ("versions of attributes", Thing, lambda x: setattr(x, "a", 2)),
    "another dictionary": (
        "versions of attributes",
        Thing,
        lambda x: setattr(x, "__dict__", dict(vars(x))),
    ),
}
OTHERS: dict[str, tuple[str, Callable[[], Any], Change]] = {
    "a dictionary": ("empty containers", dict, lambda d: d.update(a=1)),
    "an ordered dictionary": ("empty containers", OrderedDict, lambda d: d.update(a=1)),
    "a dictionary with a default": ("empty containers", lambda: defaultdict(int), lambda d: d["a"]),
    "a list": ("empty containers", list, lambda x: x.append(1)),
    "a set": ("empty containers", set, lambda x: x.add(1)),
    "a deque": ("empty containers", deque, lambda x: x.append(1)),
    "a first attribute": (
        "objects without attributes",
        lambda: torch.ones(1),
        lambda x: setattr(x, "a", 1),
    ),
    "a class": ("classes", Thing, lambda x: setattr(x, "__class__", Other)),
    "an item of a list": ("items of lists", lambda: [[], []], lambda x: x.__setitem__(1, [])),
    "a further item": ("items of lists", lambda: [[], []], lambda x: x.append([])),
    "an item less": ("items of lists", lambda: [[], []], lambda x: x.pop()),
}


def _swap(x: Tensor, other: Tensor) -> None:
    torch.utils.swap_tensors(x, other)


def _check(library: Library, case: tuple[str, Callable[[], Any], Change]) -> None:
    kind, make, change = case
    for which in range(3):
        objects = [make() for _ in range(3)]
        for x in objects:
            getattr(x, "__dict__", None)
        batch = noted(library, kind, objects)
        change(objects[which])
        assert not batch()


@needs_versions
@pytest.mark.parametrize("change", VERSIONS)
def test_a_write_to_a_dictionary_is_seen(library: Library, change: str) -> None:
    _check(library, VERSIONS[change])


@pytest.mark.parametrize("change", OTHERS)
def test_a_change_of_one_object_is_seen(library: Library, change: str) -> None:
    _check(library, OTHERS[change])


OF_TENSORS: dict[str, Change] = {
    "dtype": lambda x: setattr(x, "data", x.data.double()),
    "device": lambda x: _swap(x, torch.ones(2, 3, device="meta")),
    "requires_grad": lambda x: x.requires_grad_(),
    "a history": lambda x: x.add_(torch.ones(3, requires_grad=True)),
    "number of dimensions": lambda x: setattr(x, "data", torch.ones(2, 3, 1)),
    "sizes": lambda x: setattr(x, "data", torch.ones(3, 3)),
    "sizes of a transposed one": lambda x: setattr(x, "data", torch.ones(3, 2)),
    "strides": lambda x: setattr(x, "data", torch.ones(3, 2).t()),
    "the negative bit": lambda x: setattr(x, "data", torch.ones(2, 3)._neg_view()),
    "a class": lambda x: setattr(x, "__class__", nn.Parameter),
}
OF_MEMORY: dict[str, Change] = {
    "data": lambda x: setattr(x, "data", torch.ones(2, 3)),
    "storage": lambda x: x.set_(torch.ones(2, 3)),
    "offset": lambda x: x.set_(x.untyped_storage(), 6, (2, 3), (3, 1)),
    "the tensor itself": lambda x: _swap(x, torch.full((2, 3), 2.0)),
}
OF_HOOKS: dict[str, Change] = {
    "a hook": lambda x: x.register_hook(lambda g: g),
    "a hook after the gradient": lambda x: x.register_post_accumulate_grad_hook(lambda x: None),
}


def _tensors(requires_grad: bool = False) -> list[Tensor]:
    return [torch.ones(12)[:6].view(2, 3).detach().requires_grad_(requires_grad) for _ in range(3)]


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("kind", ["tensors", "tensors and their memory"])
@pytest.mark.parametrize("change", OF_TENSORS)
def test_a_change_of_a_tensor_is_seen(library: Library, change: str, kind: str, which: int) -> None:
    tensors = _tensors()
    batch = noted(library, kind, tensors)
    OF_TENSORS[change](tensors[which])
    assert not batch()


def test_a_history_instead_of_a_leaf_is_seen(library: Library) -> None:
    tensors = _tensors(True)
    batch = noted(library, "tensors", tensors)
    _swap(tensors[1], torch.ones(2, 3, requires_grad=True) * 1)
    assert tensors[1].requires_grad
    assert not batch()


@pytest.mark.parametrize("change", OF_MEMORY)
def test_other_memory_is_seen_where_that_is_asked(library: Library, change: str) -> None:
    tensors = _tensors()
    batch = noted(library, "tensors and their memory", tensors)
    geometry = noted(library, "tensors", tensors)
    OF_MEMORY[change](tensors[1])
    assert not batch() and geometry()


@pytest.mark.parametrize("change", OF_HOOKS)
def test_a_hook_is_seen(library: Library, change: str) -> None:
    tensors = _tensors(True)
    batch = noted(library, "tensors without hooks", tensors)
    handle: Any = OF_HOOKS[change](tensors[1])
    assert not batch()
    handle.remove()
    assert batch()


def test_tensors_are_others_in_a_thread_with_other_keys(library: Library) -> None:
    batch = noted(library, "tensors", _tensors())
    with torch.inference_mode():
        assert not batch()
    assert batch()


def test_what_has_no_such_facts_is_left_to_python(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = torch.ones(2, 3, requires_grad=True)
    cases = {
        "a view that requires grad": Question("tensors", [base, base[1:]]),
        "a sparse tensor": Question("tensors and their memory", [base, base.detach().to_sparse()]),
        "a class of the user's": Question("tensors", [base, base.as_subclass(Own)]),
        "a container with items": Question("empty containers", [[], [1]]),
        "no container": Question("empty containers", [[], ()]),
        "one object": Question("classes", [Thing()]),
        "another dictionary": Question("objects without attributes", [Thing, Thing], [{}, {}]),
    }
    assert [name for name, q in cases.items() if native_batch(q) is not None] == []
    assert native_batch(Question("classes", [Thing(), Thing()])) is not None
    monkeypatch.setenv(native.VARIABLE, "0")
    assert native_batch(Question("classes", [Thing(), Thing()])) is None


def test_what_python_accepts_is_noted_as_it_was_before_the_comparison(library: Library) -> None:
    things: list[Any] = [[], []]
    lists = [things, things]

    def compare() -> bool:
        things.append(1)  # as another thread might, after the comparison
        return True

    asked = Noted.of(Question("items of lists", lists), lambda: compare)
    assert asked is not None
    batch = asked._batch
    assert asked.compare()
    assert not batch()


def test_what_python_refuses_is_not_noted(library: Library) -> None:
    answers = [True, False, True]
    things: list[Any] = [[], []]
    question = Question("items of lists", [things, things])
    asked = Noted.of(question, lambda: lambda: answers.pop(0))
    assert asked is not None
    assert asked.holds() and asked.holds()
    things[0] = []
    assert not asked.holds() and not asked._batch()
    assert asked.holds() and asked._batch()
    assert answers == []


def test_a_batch_owns_the_objects_whose_addresses_it_notes(library: Library) -> None:
    class Item:
        pass

    items: list[Any] = [Item(), Item()]
    seen = weakref.ref(items[0])
    batch = noted(library, "items of lists", [items, []])
    items[0] = None
    assert seen() is not None and not batch()
    facts = batch.look()
    assert facts is not None
    batch.note(facts)
    assert seen() is None and batch()


def test_a_batch_in_a_cycle_is_collected(library: Library) -> None:
    class Holder:
        pass

    def cycle() -> weakref.ref[Holder]:
        holder: Any = Holder()
        items = [holder, holder]
        holder.batches = [
            noted(library, "classes", items),
            noted(library, "items of lists", [items, items]),
        ]
        return weakref.ref(holder)

    seen = cycle()
    gc.collect()
    assert seen() is None


def test_batches_leave_no_references(library: Library) -> None:
    class Item:
        pass

    x = Item()
    before = sys.getrefcount(x), sys.getrefcount(Item)
    for _ in range(10):
        batch = noted(library, "classes", [x, x])
        noted(library, "items of lists", [[x], [x]])
        del batch
    assert (sys.getrefcount(x), sys.getrefcount(Item)) == before


def test_wrong_use_is_an_error(library: Library) -> None:
    assert library.module is not None
    make: Any = library.module.Batch
    batch = make("classes", [1, 2])
    assert batch.size == 2
    mistakes: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: make("colors", []), ValueError, "there is no kind colors"),
        (lambda: make("tensors", [1]), TypeError, "tensors: not of a int"),
        (lambda: make("classes", 1), TypeError, "not iterable"),
        (lambda: make("classes"), TypeError, "2 arguments"),
        (lambda: batch(1), TypeError, "without arguments"),
        (lambda: batch.note(1), TypeError, "what look returned"),
        (lambda: batch.note((b"", 1)), TypeError, "what look returned"),
    ]
    for call, error, text in mistakes:
        with pytest.raises(error, match=text):
            call()
    batch.note((b"", []))  # of no look: such a note is never right
    assert not batch()


def test_a_call_of_an_unchanged_program_asks_nothing_in_python(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Noted] = []
    compare = Noted.compare

    def counted(self: Noted) -> bool:
        asked.append(self)
        return compare(self)

    monkeypatch.setattr(Noted, "compare", counted)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    f = jit(model)
    for _ in range(3):
        f(torch.ones(2, 3))
    assert asked
    asked.clear()
    f(torch.ones(2, 3))
    assert asked == []
    model[1].weight.data = torch.zeros(3, 3)
    f(torch.ones(2, 3))
    assert len(asked) >= 1
