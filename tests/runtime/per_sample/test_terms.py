"""A parameter that is used by way of tensors that are computed of it: which of them leave the
gradients in factors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.per_sample import per_sample_grads

N = 24  # so wide that the norms of products are found by their factors
TRANSPOSED: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda w: w.t(),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "transpose": lambda w: w.transpose(1, -2),
    "permute": lambda w: w.permute(-1, 0),
}
COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "the transpose of its double": lambda w: (2 * w).t(),
    "the transpose of its double by permute": lambda w: (2 * w).T,
    "the double of its transpose": lambda w: 2 * w.mT,
    "the transpose of its transpose": lambda w: w.t().t(),
    "dimensions exchanged with themselves": lambda w: w.transpose(0, -2),
    "dimensions in their order": lambda w: w.permute(0, 1),
    "its symmetric part": lambda w: w + w.mT,
}


def loss_of(weight: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda w, x: (x @ weight(w)).pow(3).sum()


def by_loop(loss: Callable[[Tensor, Tensor], Tensor], w: Tensor, x: Tensor) -> Tensor:
    leaf = w.clone().requires_grad_()
    return torch.stack([torch.autograd.grad(loss(leaf, one), leaf)[0] for one in x])


@pytest.mark.parametrize("name", TRANSPOSED | COMPUTED)
def test_the_gradients_are_those_of_a_loop(name: str) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(N, N, dtype=torch.float64), torch.randn(3, 2, N, dtype=torch.float64)
    loss = loss_of((TRANSPOSED | COMPUTED)[name])
    grads, expected = per_sample_grads(loss)(w, x), by_loop(loss, w, x)
    torch.testing.assert_close(grads.materialize(), expected)
    torch.testing.assert_close(grads.norms(), expected.flatten(1).norm(dim=1))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_transpose_leaves_the_factors(name: str) -> None:
    grads = per_sample_grads(loss_of(TRANSPOSED[name]))(torch.ones(N, N), torch.ones(3, 2, N))
    assert "outer   ghost" in grads.explain()


def test_the_uses_of_a_matrix_and_of_its_transpose_are_one() -> None:
    grads = per_sample_grads(lambda w, x: (x @ w + x @ w.T + F.linear(x, w)).pow(2).sum())(
        torch.ones(N, N), torch.ones(3, 2, N)
    )
    assert "[24, 24]      1   outer   ghost" in grads.explain()


@pytest.mark.parametrize(
    "weight",
    [
        lambda w: w[0, 0].t(),
        lambda w: w.transpose(0, 1)[0, 0],
        lambda w: w.mT[0, 0],
        lambda w: w.movedim(0, 1)[0, 0],
    ],
)
def test_vectors_and_stacks_that_are_transposed(weight: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(4, 4, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (x * weight(w)).pow(3).sum()

    torch.testing.assert_close(per_sample_grads(loss)(w, x).materialize(), by_loop(loss, w, x))


def test_a_vector_has_no_transpose() -> None:
    v, x = torch.ones(3, dtype=torch.float64), torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
    assert per_sample_grads(lambda v, x: (x * v.t()).sum())(v, x).materialize().equal(x)


def test_a_transposed_table_is_no_transposed_product() -> None:
    torch.manual_seed(0)
    w, rows = torch.randn(5, 4, dtype=torch.float64), torch.tensor([[0, 3, 3], [1, 2, 0]])

    def loss(w: Tensor, rows: Tensor) -> Tensor:
        return F.embedding(rows, w.t()).pow(3).sum()

    torch.testing.assert_close(
        per_sample_grads(loss)(w, rows).materialize(), by_loop(loss, w, rows)
    )


def test_a_parameter_of_which_one_part_is_used_has_no_gradient_elsewhere() -> None:
    torch.manual_seed(0)
    w, x = torch.randn(4, 6, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        first, _, last = w.split(2, 1)
        found: Tensor = (x @ first).pow(2).sum() + (x @ last).sum()
        return found

    found = per_sample_grads(loss)(w, x).materialize()
    torch.testing.assert_close(found, by_loop(loss, w, x))
    assert found[:, :, 2:4].count_nonzero() == 0 and found[:, :, 4:].count_nonzero() == 3 * 4 * 2
