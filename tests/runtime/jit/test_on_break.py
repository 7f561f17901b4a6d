"""With ``on_break="eager"`` a call that is refused for what it does to Python's state runs eagerly:
once, from the state before the call. What a capture cannot undo is an error."""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import io
import itertools
import linecache
import os
import pkgutil
import random
import sys
import tempfile
import tokenize
import uuid
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime import jit
from runtime.jit import explain

Program = Callable[[Any], Any]


class Holder:
    """What the programs below change and read."""

    def __init__(self) -> None:
        self.steps = 0
        self.history: list[Any] = []
        self.items: Any = None


def appends_a_tensor(holder: Holder) -> Program:
    def f(x: Any) -> Any:
        holder.steps += 1
        holder.history.append(x * 2)
        return x * holder.steps

    return f


def draws_of_python(holder: Holder) -> Program:
    def f(x: Any) -> Any:
        holder.steps += 1
        return x * random.random()

    return f


def draws_of_numpy(holder: Holder) -> Program:
    return lambda x: x * np.random.rand()


def takes_of(make: Callable[[], Iterator[Any]]) -> Callable[[Holder], Program]:
    def program(holder: Holder) -> Program:
        holder.items = make()

        def f(x: Any) -> Any:
            holder.steps += 1
            return x * next(holder.items)

        return f

    return program


def leaves_a_mode(holder: Holder) -> Program:
    def f(x: Any) -> Any:
        holder.steps += 1
        y = torch.full((), holder.steps).double().to(torch.tensor(1.5).dtype)
        torch.set_default_dtype(torch.float64)
        return x * y

    return f


def branches(holder: Holder) -> Program:
    def f(x: Any) -> Any:
        holder.steps += 1
        return x * holder.steps if x.tolist()[0] > 0 else x

    return f


def changes_in_each_call(holder: Holder) -> Program:
    def f(x: Any) -> Any:
        holder.history.append(len(holder.history))
        return x * len(holder.history)

    return f


# from Python 3.12 on, an iterator over a range does not say where it began
RANGES_GO_BACK = sys.version_info < (3, 12)

REFUSED: dict[str, Callable[[Holder], Program]] = {
    "a tensor in a list": appends_a_tensor,
    "random": draws_of_python,
    "numpy.random": draws_of_numpy,
    "an iterator of a list": takes_of(lambda: iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
    "map": takes_of(lambda: map(float, [1, 2, 3, 4, 5, 6])),
    "a mode": leaves_a_mode,
    "a branch": branches,
    "each call": changes_in_each_call,
}
if RANGES_GO_BACK:
    REFUSED["an iterator of a range"] = takes_of(lambda: iter(range(6)))


@pytest.fixture
def seeded() -> Iterator[Callable[[], None]]:
    """Make the generators and the mode of a program what they were, and at the end."""
    dtype = torch.get_default_dtype()

    def seed() -> None:
        random.seed(0)
        np.random.seed(0)
        torch.set_default_dtype(dtype)

    yield seed
    torch.set_default_dtype(dtype)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_runs_once_from_the_state_before_it(
    name: str, seeded: Callable[[], None]
) -> None:
    ours, eager = Holder(), Holder()
    f, g = jit(REFUSED[name](ours), on_break="eager", limit=2), REFUSED[name](eager)
    x = torch.tensor([2.0])
    seeded()
    expected = [g(x) for _ in range(5)]
    seeded()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = [f(x) for _ in range(5)]
    assert [(y.item(), y.dtype) for y in found] == [(y.item(), y.dtype) for y in expected]
    assert [str(w.message)[:45] for w in seen] == ["a call cannot be captured, so that it runs ea"]
    assert ours.steps == eager.steps and len(ours.history) == len(eager.history)
    if ours.items is not None:
        assert list(ours.items) == list(eager.items) != []


def numbers() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0, 4.0)


LOST: dict[str, Callable[[], Iterator[Any]]] = {
    "generator": numbers,
    "enumerate": lambda: (i for i, _ in enumerate("abcd")),
    "count": itertools.count,
    "chain": lambda: itertools.chain([1.0], [2.0]),
    "an iterator of a dictionary": lambda: iter({1.0: 1, 2.0: 2}),
}
if not RANGES_GO_BACK:
    LOST["an iterator of a range"] = lambda: iter(range(6))


@pytest.mark.parametrize("on_break", ["error", "eager"])
@pytest.mark.parametrize("name", LOST)
def test_an_item_that_cannot_be_put_back_is_an_error_that_says_so(name: str, on_break: str) -> None:
    holder = Holder()
    f = jit(takes_of(LOST[name])(holder), on_break=on_break)
    with pytest.raises(RuntimeError, match=r"takes items from .*items.*next\(holder\.items\)") as e:
        f(torch.ones(1))
    assert any("has taken items from" in note for note in e.value.__notes__)
    assert holder.steps == 0


@pytest.mark.parametrize("kind", [list, tuple, *((range,) if RANGES_GO_BACK else ())])
def test_an_iterator_is_where_it_was_after_a_refusal(kind: Any) -> None:
    holder = Holder()
    program = takes_of(lambda: iter(kind(range(4)) if kind is not range else range(4)))(holder)
    next(holder.items)
    with pytest.raises(RuntimeError, match="takes items from") as e:
        jit(program)(torch.ones(1))
    assert list(holder.items) == [1, 2, 3] and not hasattr(e.value, "__notes__")


def test_a_call_to_the_system_is_refused_before_it_happens(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        os.mkdir(tmp_path / str(len(os.listdir(tmp_path))))
        return x

    with pytest.raises(RuntimeError, match=r"calls posix\.listdir.*os\.mkdir"):
        jit(f)(torch.ones(1))
    assert os.listdir(tmp_path) == []
    with pytest.warns(UserWarning, match="runs eagerly"):
        g = jit(f, on_break="eager")
        g(torch.ones(1))
    g(torch.ones(1))
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


ASKING: dict[str, Callable[[Path], Any]] = {
    "whether a file is there": lambda file: file.exists(),
    "a text": lambda file: file.read_text(),
    "which files are there": lambda file: list(file.parent.glob("*")),
    "a name for a file": lambda file: tempfile.mkdtemp(dir=file.parent),
    "an identity": lambda file: uuid.uuid4(),
    "an array": lambda file: np.load(file),
    "to write an array": lambda file: np.save(file, np.zeros(1)),
    "numbers": lambda file: np.fromfile(file),
    "to write numbers": lambda file: np.zeros(1).tofile(file),
    "tensors": lambda file: torch.load(file),
    "to write tensors": lambda file: torch.save({}, file),
    "to write a text": lambda file: file.write_text("a"),
    "a text in an encoding of its own": lambda file: tokenize.open(file).close(),
    "a line": lambda file: linecache.getline(str(file), 1),
    "bytes of a loader": lambda file: SourceFileLoader("a", str(file)).get_data(str(file)),
    "the source of a module": lambda file: SourceFileLoader("a", str(file)).get_source("a"),
    "data of a package": lambda file: pkgutil.get_data("json", "decoder.py"),
    "a resource of a package": lambda file: importlib.resources.read_text("json", "decoder.py"),
}


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize("what", ASKING)
def test_a_library_that_asks_the_system_is_refused_before_it_does(
    what: str, tmp_path: Path
) -> None:
    file = tmp_path / "a"
    before: Any = np.random.get_state(legacy=False)

    def f(x: Any) -> Any:
        ASKING[what](file)
        return x

    with pytest.raises(RuntimeError, match=r"calls .*which no call would do again"):
        jit(f)(torch.ones(1))
    assert not os.listdir(tmp_path)
    assert str(np.random.get_state(legacy=False)) == str(before)


@pytest.mark.parametrize("opened", [io.FileIO, functools.partial(open)])
def test_a_file_is_refused_that_no_function_of_c_opens(opened: Any, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("3")

    def f(x: Any) -> Any:
        with opened(file) as lines:
            return x * float(lines.read())

    with pytest.raises(RuntimeError, match=r"calls (FileIO|TextIOWrapper)\.read, which no call"):
        jit(f)(torch.ones(1))


def test_a_program_that_catches_the_refusal_is_an_error(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            os.mkdir(tmp_path / "a")
        return x

    for on_break in ("error", "eager"):
        with pytest.raises(RuntimeError, match=r"calls posix\.mkdir") as e:
            jit(f, on_break=on_break)(torch.ones(1))
        assert any("gone on after this refusal" in note for note in e.value.__notes__)
    assert os.listdir(tmp_path) == []


def test_too_many_objects_run_eagerly() -> None:
    holder = Holder()
    holder.history = [[i] for i in range(200_000)]

    def f(x: Any) -> Any:
        holder.steps += 1
        return x * holder.history[3][0]

    with pytest.warns(UserWarning, match=r"runs eagerly: .*more than 200,000 objects"):
        g = jit(f, on_break="eager")
        assert g(torch.ones(1)).item() == 3
    assert g(torch.ones(1)).item() == 3 and holder.steps == 2
    assert explain(g).programs == () and "more than 200,000 objects" in explain(g).refused[0]


def test_a_refused_program_leaves_the_modes_of_torch_as_they_were() -> None:
    def f(x: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_default_device("meta")
        return x

    before = _modes()
    # torch 2.15 makes a tensor where it sets the default device
    with pytest.raises(RuntimeError, match=r"changed|a default dtype that it has set"):
        jit(f)(torch.ones(1))
    assert _modes() == before


def _modes() -> list[Any]:
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    ]
