"""Embeddings and bags agree with torch's engine, and with bags written out in all orders."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime import func

from ..agreement import Problem, check, check_problem

DOUBLE = torch.float64
FIRST_ORDER = ("vjp", "vmap", "vmap_vjp", "vjp_vmap")


def test_embedding() -> None:
    check("nn.functional.embedding", limit=10)


def test_embedding_bag_first_order() -> None:
    check("nn.functional.embedding_bag", limit=32, checks=FIRST_ORDER)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_embedding_options(padding_idx: int | None, scale: bool) -> None:
    indices = torch.tensor([[0, 2, 2], [3, 0, 0]])

    def f(weight: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.embedding(indices, weight, padding_idx, scale_grad_by_freq=scale),)

    first = Problem(f, (torch.randn(4, 2, dtype=DOUBLE), indices), (0,), "embedding")
    check_problem(first, FIRST_ORDER if scale else (*FIRST_ORDER, "jvp", "vjp_vjp"))


@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_in_all_orders(mode: str, padding_idx: int | None) -> None:
    """The third bag is empty."""
    indices, offsets = torch.tensor([0, 2, 1, 3, 3, 2]), torch.tensor([0, 2, 5, 5])

    def f(
        weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return (F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding_idx),)

    def reference(
        weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        bags = []
        for start, end in pairwise([*offsets.tolist(), len(indices)]):
            rows = [weight[i] for i in indices[start:end].tolist() if i != padding_idx]
            together = torch.stack(rows) if rows else weight[:1] * 0
            bags.append(getattr(together, "amax" if mode == "max" else mode)(0))
        return (torch.stack(bags),)

    inputs = torch.randn(4, 3, dtype=DOUBLE), indices, offsets
    check_problem(Problem(f, inputs, (0,), f"embedding_bag {mode}", reference))


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_weighted_bags_in_all_orders(padding_idx: int | None) -> None:
    indices = torch.tensor([[0, 2, 1], [3, 3, 2]])

    def f(weight: torch.Tensor, per_sample: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.embedding_bag(
                indices, weight, mode="sum", per_sample_weights=per_sample, padding_idx=padding_idx
            ),
        )

    def reference(weight: torch.Tensor, per_sample: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = per_sample if padding_idx is None else per_sample * (indices != padding_idx)
        return ((weight[indices] * kept.unsqueeze(2)).sum(1),)

    inputs = torch.randn(4, 3, dtype=DOUBLE), torch.randn(2, 3, dtype=DOUBLE)
    check_problem(Problem(f, inputs, (0, 1), "weighted embedding_bag", reference))


def test_frequencies_are_counted_within_an_element_of_the_batch() -> None:
    weight, indices = torch.randn(4, 2, dtype=DOUBLE), torch.tensor([[0, 1, 1], [1, 1, 1]])

    def f(weight: torch.Tensor) -> Any:
        return func.vmap(lambda i: F.embedding(i, weight, scale_grad_by_freq=True))(indices)

    (g,) = func.vjp(f, weight)[1](torch.ones(2, 3, 2, dtype=DOUBLE))
    assert g.tolist() == [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_sparse_gradient() -> None:
    weight = torch.randn(4, 2)
    (g,) = func.vjp(lambda w: F.embedding(torch.tensor([1, 1]), w, sparse=True), weight)[1](
        torch.ones(2, 2)
    )
    assert g.is_sparse
    assert g.to_dense()[1].tolist() == [2.0, 2.0]
