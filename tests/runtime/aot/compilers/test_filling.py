"""Large pieces of a concatenation are put in their places as they are computed."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import jit
from runtime.aot.compilers.memory_rewrites import fill
from runtime.huge_pages import LARGE

from .by_hand import aten, node_of
from .random_graphs import bits
from .rewritten_graphs import calls, rewrites, runs

ROWS = 200  # with 100 columns of float32: 80 kB


def _halves(x: Tensor) -> Tensor:
    return torch.cat([x[:ROWS].sin(), x[ROWS:].cos()])


X = torch.randn(2 * ROWS, 100)


def test_each_piece_is_copied_as_soon_as_it_is_computed() -> None:
    names = calls(_halves, X)
    assert "cat" not in names
    assert names.index("sin") < names.index("copy_") < names.index("cos")
    assert names.count("empty") == 1 and names.count("copy_") == 2


@pytest.mark.parametrize("seed", range(30))
def test_the_result_is_that_of_cat(seed: int) -> None:
    draw = random.Random(seed)
    dim, rank = draw.randint(-3, 2), 3
    sizes = [draw.randint(0, 60) for _ in range(draw.randint(2, 5))]
    dtype = draw.choice((torch.float32, torch.float64, torch.complex64, torch.int64))
    shape = [40, 60, 70]
    shape[dim % rank] = sum(sizes)
    shuffled = draw.sample(range(rank), rank)
    x = (
        (torch.randn(shape) * 8)
        .to(dtype)
        .permute(shuffled)
        .contiguous()
        .permute([shuffled.index(d) for d in range(rank)])
    )

    def f(x: Tensor) -> Tensor:
        pieces = [part + 1 if i % 2 else part.conj() for i, part in enumerate(x.split(sizes, dim))]
        return torch.cat(pieces, dim) * 2

    run, expected = jit(f), f(x)
    for _ in range(3):
        assert (
            torch.equal(bits(run(x).resolve_conj()), bits(expected))
            and run(x).stride() == expected.stride()
        )


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x: torch.cat([x[:8].sin(), x[8:16].cos()]), id="small pieces"),
        pytest.param(lambda x: torch.cat([x, x]), id="arguments"),
        pytest.param(
            lambda x: (torch.cat([y := x.sin(), x.cos()]), y), id="a piece that is returned"
        ),
        pytest.param(lambda x: torch.cat([y := x.sin(), y]), id="one piece twice"),
        pytest.param(lambda x: torch.cat([x.sin(), x.double()]), id="two dtypes"),
        pytest.param(
            lambda x: torch.cat([x[:ROWS].sin(), (x @ x.T @ x)[ROWS:].cos()]),
            id="pieces with large results between them",
        ),
        pytest.param(
            lambda x: torch.cat([(y := x.view(4, 10, 10, 100).permute(0, 3, 1, 2)).sin(), y.cos()]),
            id="channels last",
        ),
    ],
)
def test_others_stay(f: Callable[[Tensor], object]) -> None:
    names = calls(f, X)
    assert "cat" in names and "copy_" not in names


LIMIT = 1 << 13  # rows of two columns of float32: 64 KiB


def halves(x: Tensor) -> Tensor:
    return torch.cat([x[:LIMIT].sin(), x[LIMIT:].cos()])


def test_pieces_of_64_kibibytes_on_average_are_put_in_their_places() -> None:
    assert "cat" not in runs(halves, (2 * LIMIT, 2))
    assert "cat" in runs(halves, (2 * LIMIT - 1, 2))
    assert "cat" in runs(lambda x: torch.cat([x.sin()]), (4 * LIMIT, 2))


@pytest.mark.parametrize("between, fits", [(2, True), (3, False)])
def test_between_two_pieces_as_much_as_the_whole_may_be_computed(between: int, fits: bool) -> None:
    """Each of the values between is half of the whole."""

    def f(x: Tensor) -> Tensor:
        first, y = x.sin(), x
        for _ in range(between - 1):
            y = y.cumsum(0)
        return torch.cat([first, y.cos().view(-1).t().view(x.shape).cumsum(0)])

    assert ("cat" not in runs(f, (LIMIT, 2))) == fits


def test_a_large_whole_lies_in_huge_pages() -> None:
    assert runs(halves, (LARGE // 4, 2)).count("empty_in_huge_pages") == 2
    assert "empty" not in runs(halves, (LARGE // 4, 2))


def test_a_single_element_beyond_the_whole_between_two_pieces_is_too_much() -> None:
    def f(x: Tensor) -> Tensor:
        first = x.sin()
        return torch.cat([first, (x.cumsum(0).cos() + x[0, 0].exp()).cumsum(0)])

    assert "cat" in runs(f, (LIMIT, 2))


def test_each_call_says_what_it_gives() -> None:
    for n in rewrites(halves, (2 * LIMIT, 2)).nodes:
        if n.op == "call_function":
            rows = 2 * LIMIT if n.target is torch.ops.aten.empty.memory_format else LIMIT
            assert n.meta["val"].shape == (rows, 2)


PIECE = 1 << 16
VIEW, SPLIT, HELD, ITEM = aten.view.default, aten.split.Tensor, "get_attr", operator.getitem


@pytest.mark.parametrize(
    "between, fits",
    [
        pytest.param([(aten.cumsum.default, 3 * PIECE)], True, id="as much as the whole"),
        pytest.param([(aten.cumsum.default, 3 * PIECE + 1)], False, id="a byte more"),
        pytest.param([(aten.cumsum.default, 3 * PIECE), (VIEW, 3 * PIECE)], True, id="a view"),
        pytest.param(
            [(VIEW, 3 * PIECE), (aten.cumsum.default, 3 * PIECE + 1)],
            False,
            id="a view does not make room",
        ),
        pytest.param([(aten.cumsum.default, 3 * PIECE), (HELD, 9)], True, id="a constant"),
        pytest.param(
            [(HELD, 9), (aten.cumsum.default, 3 * PIECE + 1)],
            False,
            id="a constant does not make room",
        ),
        pytest.param([(aten.cumsum.default, 3 * PIECE), (ITEM, 3 * PIECE)], True, id="an item"),
        pytest.param([(SPLIT, [2 * PIECE, PIECE])], True, id="several results"),
        pytest.param([(SPLIT, [2 * PIECE, PIECE + 1])], False, id="several larger results"),
        pytest.param([(aten._assert_async.msg, None)], True, id="no result"),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_as_many_bytes_as_the_whole_has_may_be_computed_after_a_piece(
    between: list[tuple[Any, Any]], fits: bool, after: int
) -> None:
    graph = fx.Graph()
    x = node_of(torch.empty(PIECE, dtype=torch.uint8, device="meta"), graph)
    pieces = []
    for i in range(3):
        pieces.append(graph.call_function(aten.sin.default, (x,)))
        pieces[-1].meta["val"] = x.meta["val"]
        for func, size in between if i == after else ():
            n = (
                graph.create_node("get_attr", "held")
                if func == HELD
                else graph.call_function(func, (x, 0))
            )
            made = [
                torch.empty(s, dtype=torch.uint8, device="meta")
                for s in (size if isinstance(size, list) else [size or 0])
            ]
            n.meta["val"] = made if isinstance(size, list) else made[0] if size else None
    whole = graph.call_function(aten.cat.default, (pieces,))
    whole.meta["val"] = torch.empty(3 * PIECE, dtype=torch.uint8, device="meta")
    graph.output([whole])
    fill(graph)
    assert (aten.cat.default not in {n.target for n in graph.nodes}) is fits
