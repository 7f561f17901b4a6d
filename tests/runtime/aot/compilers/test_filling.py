"""Large pieces of a concatenation are put in their places as they are computed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from runtime import jit
from tests.runtime.huge_pages import lies_in_huge_pages, needs_huge_pages

from .random_graphs import bits
from .rewritten_graphs import calls, rewrites, runs

LARGE = 8 << 20  # bytes from which a tensor lies in huge pages, see docs/aot.md
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


@needs_huge_pages
def test_a_large_whole_lies_in_huge_pages() -> None:
    found = rewrites(halves, (LARGE // 4, 2))
    empty = torch.ops.aten.empty.memory_format
    made = [result for op, result in zip(found.ops, found.results, strict=True) if op is empty]
    assert len(made) == 2 and all(map(lies_in_huge_pages, made))


def test_a_single_element_beyond_the_whole_between_two_pieces_is_too_much() -> None:
    def f(x: Tensor) -> Tensor:
        first = x.sin()
        return torch.cat([first, (x.cumsum(0).cos() + x[0, 0].exp()).cumsum(0)])

    assert "cat" in runs(f, (LIMIT, 2))


PIECE = 1 << 16  # bytes of each of three pieces


def another(big: Tensor) -> Tensor:
    return big.bitwise_not()


def a_view(big: Tensor) -> Tensor:
    return big.bitwise_not().view(-1, 1).expand(-1, 2)[:, 1]


def several_views(big: Tensor) -> Tensor:
    first, _ = torch.split(big, 2 * PIECE)
    return first


def a_check(big: Tensor) -> Tensor:
    torch._assert_async(big[0])
    return big.bitwise_not()


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("compute", [another, a_view, several_views, a_check])
def test_as_many_bytes_as_the_whole_has_may_be_computed_after_a_piece(
    compute: Callable[[Tensor], Tensor], after: int
) -> None:
    """Views need no memory of their own. Several of one call may be new tensors, so they count."""

    def f(x: Tensor, y: Tensor, big: Tensor) -> Tensor:
        before = [x.bitwise_not(), y.bitwise_not()][: after + 1]
        shown = compute(big)
        behind = [shown[i * PIECE :][:PIECE].bitwise_not() for i in range(2 - after)]
        return torch.cat([*before, *behind])

    def names(n_bytes: int) -> list[str]:
        return runs(f, (PIECE,), (PIECE,), (n_bytes,), dtype=torch.uint8)

    assert "cat" not in names(3 * PIECE)
    assert "cat" in names(3 * PIECE + 1)
