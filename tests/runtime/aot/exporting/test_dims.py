"""An exported program takes the sizes that its Dims say, and refuses all others, also when torch has loaded it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.export import Dim

from runtime.aot import export

N = Dim("n", min=2, max=40)
AUTO = Dim.AUTO


def ones(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(sizes).numel()).view(sizes)


@dataclass
class Case:
    """``f`` with ``dims`` for its arguments x and y. ``sizes``: of the example, of other arguments, of refused ones."""

    f: Callable[..., Any]
    dims: tuple[Any, Any]
    example: tuple[int, int]
    others: tuple[int, int]
    refused: tuple[int, int]


def by_size(x: Any, y: Any) -> Any:
    return x.sum() + y.sum() if y.shape[0] == 2 * x.shape[0] else x.sum() - y.sum()


CASES = {
    "a multiple": Case(lambda x, y: y.view(2, -1).sum(0) + x, (N, 2 * N), (4, 8), (6, 12), (6, 11)),
    "before its root": Case(lambda x, y: x.view(2, -1).sum(0) + y, (2 * N, N), (8, 4), (12, 6), (12, 5)),
    "a sum": Case(lambda x, y: x[1:] * y, (N + 1, N), (5, 4), (9, 8), (9, 9)),
    "a sum of a multiple": Case(lambda x, y: torch.cat([x, x, x[:1]]) * y, (N, 2 * N + 1), (4, 9), (6, 13), (6, 12)),
    "a Dim of a derived Dim": Case(lambda x, y: x.sum() * y, (N, (2 * N + 1) + 2), (4, 11), (7, 17), (7, 16)),
    "what the program does not need": Case(lambda x, y: x.sum() + y.sum(), (N, 2 * N), (4, 8), (6, 12), (6, 11)),
    "siblings without their root": Case(lambda x, y: x.sum() * y, (2 * N, 3 * N), (8, 12), (6, 9), (6, 12)),
    "one without its root": Case(lambda x, y: x * y.sum(), (2 * N + 1, None), (9, 2), (13, 2), (12, 2)),
    "the range of the root": Case(lambda x, y: x.sum() * y, (N, 2 * N), (4, 8), (40, 80), (41, 82)),
    "the range of a root that is no size": Case(lambda x, y: x * y.sum(), (2 * N, None), (8, 2), (80, 2), (82, 2)),
    "a relation that the program finds": Case(by_size, (AUTO, AUTO), (4, 8), (6, 12), (6, 11)),
}


@pytest.mark.parametrize("what", CASES)
def test_sizes_that_are_computed_from_others(what: str) -> None:
    case = CASES[what]
    x, y = case.dims
    shapes = {"x": {0: x}, "y": None if y is None else {0: y}}
    program = export(case.f, tuple(map(ones, case.example)), dynamic_shapes=shapes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for module in (program.module(), torch.export.load(buffer).module()):
        for sizes in (case.example, case.others):
            given = tuple(map(ones, sizes))
            torch.testing.assert_close(module(*given), case.f(*given))
        with pytest.raises((RuntimeError, AssertionError)):
            module(*map(ones, case.refused))


def test_the_condition_names_the_dimensions() -> None:
    case = CASES["what the program does not need"]
    program = export(case.f, (ones(4), ones(8)), dynamic_shapes={"x": {0: N}, "y": {0: 2 * N}})
    with pytest.raises(RuntimeError, match=r"dimension 0 of argument \[1\] is 2\*s\d+ alone; s\d+ is dimension 0 of argument \[0\]"):
        program.module()(ones(6), ones(11))


@pytest.mark.parametrize(("dims", "sizes"), [((N, 2 * N), (4, 9)), ((2 * N, None), (9, 2)), ((2 * N, 3 * N), (8, 13))])
def test_an_example_that_is_not_what_a_dim_says_is_refused(dims: tuple[Any, Any], sizes: tuple[int, int]) -> None:
    shapes = {"x": {0: dims[0]}, "y": None if dims[1] is None else {0: dims[1]}}
    with pytest.raises(ValueError, match=r"Dim '\d\*n', dimension 0 of argument .* has size \d+ in the example"):
        export(lambda x, y: x.sum() + y.sum(), tuple(map(ones, sizes)), dynamic_shapes=shapes)


def test_a_program_that_needs_another_relation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the program is right for size|the program needs it to be"):
        export(lambda x, y: x[: y.shape[0]] + y[: x.shape[0]] if y.shape[0] == 8 else x, (ones(4), ones(8)),
               dynamic_shapes={"x": {0: N}, "y": {0: 2 * N}})  # fmt: skip


def test_a_size_of_which_the_program_makes_a_number_is_the_only_one() -> None:
    program = export(lambda x: x * int(x.shape[1]), (ones(3, 4),), dynamic=True)
    assert program.module()(ones(5, 4)).equal(ones(5, 4) * 4)
    with pytest.raises(RuntimeError, match=r"right if dimension 1 of argument .* is 4 alone"):
        program.module()(ones(3, 8))


@pytest.mark.parametrize("f", [lambda x: x.chunk(3), lambda x: x.unsafe_chunk(3)], ids=["chunk", "unsafe_chunk"])
def test_a_size_with_too_few_pieces_is_refused_by_its_condition(f: Any) -> None:
    program = export(f, (torch.ones(12),), dynamic_shapes={"x": {0: Dim.AUTO}})
    loaded = io.BytesIO()
    torch.export.save(program, loaded)
    loaded.seek(0)
    for module in (program.module(), torch.export.load(loaded).module()):
        assert [t.shape[0] for t in module(torch.ones(13))] == [5, 5, 3]
        with pytest.raises(RuntimeError, match=r"the exported program is right for .* is dimension 0 of argument \[0\]"):
            module(torch.ones(4))  # two pieces
