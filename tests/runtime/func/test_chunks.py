"""``vmap`` in parts, one after the other. torch's is the oracle."""

from typing import Any

import functorch.experimental
import pytest
import torch

import runtime.dropin
from runtime.func import chunk_vmap, vmap

X = torch.arange(15.0).reshape(5, 3)


def f(x: Any, y: Any) -> Any:
    return x.sin() * y, x.sum()


@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 9])
def test_chunk_vmap_is_vmap(chunks: int) -> None:
    y = torch.ones(3)
    torch.testing.assert_close(
        chunk_vmap(f, (0, None), chunks=chunks)(X, y), vmap(f, (0, None))(X, y)
    )
    torch.testing.assert_close(
        chunk_vmap(f, (1, 0), out_dims=(1, 0), chunks=chunks)(X.t(), X),
        vmap(f, (1, 0), out_dims=(1, 0))(X.t(), X),
    )


@pytest.mark.parametrize(("chunks", "sizes"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (9, [1] * 5)])
def test_the_parts_are_torchs(chunks: int, sizes: list[int]) -> None:
    """A vmap staticmethod is told how many elements there are."""
    seen: list[int] = []

    class Size(runtime.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any) -> Any:
            seen.append(info.batch_size)
            return x * 2, 0

    torch.testing.assert_close(chunk_vmap(Size.apply, chunks=chunks)(X), X * 2)
    assert seen == sizes
    assert [len(part) for part in X.chunk(chunks)] == sizes


@pytest.mark.parametrize("chunks", [0, -1, 1.5])
def test_a_number_of_chunks_is_a_positive_integer(chunks: Any) -> None:
    with pytest.raises(ValueError, match="chunks should be a number greater than 0"):
        chunk_vmap(f, chunks=chunks)


def test_randomness_is_said_as_for_vmap() -> None:
    with pytest.raises(RuntimeError, match="Only allowed values for randomness"):
        chunk_vmap(f, randomness="some")
    torch.manual_seed(0)
    same = chunk_vmap(lambda x: x + torch.rand(3), randomness="same", chunks=3)(torch.zeros(5, 3))
    assert torch.equal(same, same[:1].expand(5, 3))
    different = chunk_vmap(lambda x: x + torch.rand(3), randomness="different", chunks=3)(
        torch.zeros(5, 3)
    )
    assert len(different.unique(dim=0)) == 5


def test_the_drop_in_leads_torchs_name_to_it() -> None:
    with runtime.dropin.installed():
        assert functorch.experimental.chunk_vmap is chunk_vmap
        found = functorch.experimental.chunk_vmap(lambda x: x.sin())(torch.ones(4, 2))
    assert functorch.experimental.chunk_vmap is not chunk_vmap
    torch.testing.assert_close(runtime.unwrap(found), torch.ones(4, 2).sin())


def test_a_vmap_staticmethod_may_draw_beside_the_draws_of_the_function() -> None:
    """It is told the randomness and draws for the whole batch; what the function itself draws is
    drawn as the caller of vmap chose."""

    class Noise(runtime.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x + torch.rand(3)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any) -> Any:
            drawn = torch.rand(3) if info.randomness == "same" else torch.rand(info.batch_size, 3)
            return x + drawn, 0

    def both(x: Any) -> Any:
        return Noise.apply(x), torch.rand(2), Noise.apply(x)

    for randomness, rows in (("same", 1), ("different", 5)):
        first, between, last = vmap(both, randomness=randomness)(torch.zeros(5, 3))
        for drawn in (first, last):
            assert len(drawn.unique(dim=0)) == rows
        assert between.shape == (5, 2)
        assert len(between.unique(dim=0)) == rows
