"""A program that reads how far an iterator or a file is, and does not move it, is one for each
place. One that only holds it is one for all."""

import copy
import io
import itertools
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop

MAKES: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([*range(1, 20)]),
    "range": lambda: iter(range(1, 20)),
    "count": lambda: itertools.count(1),
    "reversed": lambda: reversed([*range(1, 20)]),
}
READS: dict[str, Callable[[Any], float]] = {
    "its length": lambda it: operator.length_hint(it, 7),
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


def test_an_iterator_that_a_program_only_holds_is_no_state() -> None:
    it = iter(range(20))
    f = runtime.jit(lambda x: x * 2 if it is not None else x)
    for _ in range(4):
        f(torch.ones(1))
        next(it)
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
