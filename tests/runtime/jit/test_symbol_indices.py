"""Tensors that a jitted program indexes by a number of the state: one program serves any number."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit


def _write_column(t: Any, x: Tensor) -> Any:
    t.cache[:, t.i] = x
    return t.cache.sum(1)


def _write_row_of_one_more_dimension(t: Any, x: Tensor) -> Any:
    t.cache[1, t.i, 1:] = t.table[None, 0, 0, 1:]
    return t.cache * x


def _write_number(t: Any, x: Tensor) -> Any:
    t.cache[..., t.i] = 2.5
    return t.cache * x


def _add_in_place(t: Any, x: Tensor) -> Any:
    t.cache[0, t.i] += x
    return t.cache.sum(0)


READS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "table[i, j]": lambda t, x: x * t.table[0, t.i],
    "table[:, i]": lambda t, x: x * t.table[:, t.i],
    "table[..., i]": lambda t, x: x.sum() * t.table[..., t.i],
    "table[..., i, None]": lambda t, x: x.sum() * t.table[..., t.i, None],
    "table[None, :, i, 1:]": lambda t, x: x.sum() * t.table[None, :, t.i, 1:],
    "table[1, i, i]": lambda t, x: x * t.table[1, t.i, t.i],
    "table[i:, -i - 1]": lambda t, x: x.sum() * t.table[:, -t.i - 1],
    "table[..., i, :2]": lambda t, x: x.sum() * t.table[..., t.i, :2],
}
WRITES = (_write_column, _write_row_of_one_more_dimension, _write_number, _add_in_place)
PROGRAMS = {**READS, **{write.__name__.strip("_"): write for write in WRITES}}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_serves_any_index(name: str) -> None:
    program = PROGRAMS[name]

    def world() -> Any:
        table = torch.arange(24.0).reshape(2, 3, 4)
        return SimpleNamespace(i=0, table=table, cache=torch.zeros(2, 3, 4))

    def stepping(t: Any) -> Callable[[Tensor], Tensor]:
        def step(x: Tensor) -> Tensor:
            result: Tensor = program(t, x)
            t.i += 1
            return result

        return step

    its, ours = world(), world()
    eager, compiled = stepping(its), jit(stepping(ours))
    for k in range(3):
        x = torch.arange(4.0) + k
        assert torch.equal(compiled(x), eager(x)) and torch.equal(ours.cache, its.cache)
    assert len(jit.explain(compiled).programs) == 2


def test_an_index_that_is_out_of_range_raises_as_in_eager_mode() -> None:
    t = SimpleNamespace(i=0, rows=torch.arange(3.0))

    @jit
    def step(x: Tensor) -> Tensor:
        row: Tensor = t.rows[t.i]
        return x * row

    for t.i in range(3):
        step(torch.ones(()))
    t.i = 3
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        step(torch.ones(()))
