"""A program that reads how far an iterator or a file is, and does not move it, is one for each
place. One that only holds it is one for all."""

import array
import copy
import io
import itertools
import operator
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop


class Numbers(itertools.count):  # type: ignore[type-arg]
    """An iterator whose place is in the part that C has."""


_length = operator.length_hint
_length_method = operator.methodcaller("__reduce__")
MAKES: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([*range(1, 20)]),
    "range": lambda: iter(range(1, 20)),
    "count": lambda: itertools.count(1),
    "reversed": lambda: reversed([*range(1, 20)]),
    "deque": lambda: iter(deque(range(1, 20))),
    "array": lambda: iter(array.array("i", range(1, 20))),
    "a class of the user's": lambda: Numbers(1),
}
READS: dict[str, Callable[[Any], float]] = {
    "its length": lambda it: operator.length_hint(it, 7),
    "its length, by another name": lambda it: _length(it, 7),
    "what it is made of": lambda it: len(repr(_length_method(it)[1:])),
    "a copy": lambda it: next(copy.copy(it)),
    "a pickle": lambda it: next(pickle.loads(pickle.dumps(it))),
}


@pytest.mark.parametrize("way", [runtime.jit, lambda f: aot_function(f, nop)])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.filterwarnings("ignore:.*itertools:DeprecationWarning")
def test_where_an_iterator_is_that_a_program_reads_is_state(kind: str, read: str, way: Any) -> None:
    it, ask = MAKES[kind](), READS[read]
    f = way(lambda x: x * ask(it))
    for _ in range(4):
        for _ in range(2):  # the second call has the program of the first
            assert f(torch.ones(1)).item() == ask(it)
        next(it)


class Trainer:
    def __init__(self) -> None:
        self.rate = 2.0
        self.batches = iter(range(20))


def test_an_iterator_that_a_program_has_no_name_for_is_no_state() -> None:
    trainer = Trainer()
    f = runtime.jit(lambda x: x * trainer.rate)
    for _ in range(4):
        f(torch.ones(1))
        next(trainer.batches)
    assert len(f.captured) == 1


def test_how_far_a_file_is_read_is_state_of_a_program_that_asks(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("12345678")
    with path.open("rb") as file:
        f = runtime.jit(lambda x: x * (_tell(file) + 1))
        for place in range(4):
            assert f(torch.ones(1)).item() == place + 1
            file.read(1)


def _tell(file: io.BufferedReader) -> int:
    return file.tell()


def test_an_iterator_over_a_dictionary_that_has_grown_is_another_state() -> None:
    items = {1: 1}
    it = iter(items)
    f = runtime.jit(lambda x: x * (len(items) if it is not None else 0))
    for size in range(1, 4):
        assert f(torch.ones(1)).item() == size
        items[size + 1] = 1


class Batches:
    """An iterator in Python."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.place += 1
        return self.place


def test_an_iterator_of_c_over_one_in_python_is_where_that_is() -> None:
    batches = Batches()
    it = enumerate(batches)
    f = runtime.jit(lambda x: x * (batches.place if it is not None else 0))
    for place in range(3):
        assert f(torch.ones(1)).item() == place
        next(it)


class Rate:
    factor = 2.0


BEHIND: dict[str, Callable[[Rate], Iterator[Any]]] = {
    "repeat": itertools.repeat,
    "a list": lambda rate: iter([rate, rate]),
    "a deque": lambda rate: iter(deque([rate, rate])),
    "reversed": lambda rate: reversed([rate, rate]),
}
# a copy of these takes items from the iterator that both share
SHARED: dict[str, Callable[[Rate], Iterator[Any]]] = {
    "tee": lambda rate: itertools.tee([rate, rate])[0],
    "map": lambda rate: map([rate, rate].__getitem__, [0, 1]),
}


def _factor_of_a_copy(it: Iterator[Any]) -> float:
    return float(next(copy.copy(it)).factor)


@pytest.mark.parametrize("kind", BEHIND)
@pytest.mark.filterwarnings("ignore:.*itertools:DeprecationWarning")
def test_what_an_iterator_takes_items_from_is_state(kind: str) -> None:
    rate = Rate()
    it = BEHIND[kind](rate)
    f = runtime.jit(lambda x: x * _factor_of_a_copy(it))
    for factor in (2.0, 3.0):
        rate.factor = factor
        assert f(torch.ones(1)).item() == factor


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.filterwarnings("ignore:.*itertools:DeprecationWarning")
def test_a_copy_that_takes_items_from_the_iterator_that_it_shares_is_refused(kind: str) -> None:
    it = SHARED[kind](Rate())
    with pytest.raises(RuntimeError, match="takes items from"):
        runtime.jit(lambda x: x * _factor_of_a_copy(it))(torch.ones(1))
