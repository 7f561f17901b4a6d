"""Gradients by derivatives of an op: of a call that has no factors, and of what is
computed of a parameter.

Inside: ``runtime.per_sample.general``. Which questions are answered without dense gradients shows
in memory alone, so each is asked of a term that the test has made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.extend import Dense
from runtime.per_sample import per_sample_grads
from runtime.per_sample.general import General, Pulled

B, N = 4, 3


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def op(x: Tensor, c: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a sample, a constant and a parameter: three results, of which the parameter has
    gradients by all."""
    return (x * w).sin() + c, w * x[0], w @ (x + c)


def by_loop(args: Sequence[Tensor], gs: Sequence[Tensor | None]) -> Tensor:
    x, c, w = args
    rows = []
    for b in range(B):
        leaf = w.clone().requires_grad_()
        outs = op(x[b], c, leaf)
        chosen = [(o, g[b]) for o, g in zip(outs, gs, strict=True) if g is not None]
        rows.append(torch.autograd.grad([o for o, _ in chosen], leaf, [g for _, g in chosen])[0])
    return torch.stack(rows)


COTANGENTS = {
    "all": (0, 1, 2),
    "the first": (0,),
    "the last": (2,),
    "the first and the last": (0, 2),
}


def term_of(which: tuple[int, ...], dtype: torch.dtype) -> tuple[General, Tensor]:
    args = [
        numbers(B, N, dtype=dtype, seed=1),
        numbers(N, dtype=dtype, seed=2),
        numbers(N, dtype=dtype, seed=3),
    ]
    gs = [
        numbers(B, *s, dtype=dtype, seed=i) if i in which else None
        for i, s in enumerate([(N,), (N,), ()])
    ]
    return General(op, args, [0, None, None], 2, gs), by_loop(args, gs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", COTANGENTS)
def test_what_is_asked_of_a_call_is_what_its_gradients_give(name: str, dtype: torch.dtype) -> None:
    term, rows = term_of(COTANGENTS[name], dtype)
    weights, v = numbers(B, seed=4), numbers(N, dtype=dtype, seed=5)
    assert (term.size, term.shape, term.dtype) == (B, (N,), dtype)
    torch.testing.assert_close(term.dense(), rows)
    torch.testing.assert_close(term.part(1, 3).dense(), rows[1:3])
    torch.testing.assert_close(term.scaled(lambda t: 3 * t).dense(), 3 * rows)
    torch.testing.assert_close(term.weighted_sum(weights), weights.to(dtype) @ rows)
    product = (rows.conj() * v).sum(1)
    torch.testing.assert_close(term.dot(v), product.real if dtype.is_complex else product)
    assert [t.shape for t in term.held()] == [
        (B, N),
        (N,),
        (N,),
        *((B, *((N,), (N,), ())[i]) for i in COTANGENTS[name]),
    ]


def test_narrow_gradients_of_a_call_are_summed_in_their_dtype() -> None:
    term, rows = term_of((0, 1, 2), torch.bfloat16)
    total = term.weighted_sum(numbers(B, seed=4))
    assert total.dtype is torch.bfloat16
    torch.testing.assert_close(
        total.double(), numbers(B, seed=4) @ rows.double(), rtol=0.1, atol=0.1
    )


def test_gradients_that_are_pulled_back_to_a_parameter() -> None:
    matrix, dense = numbers(N, 2), numbers(B, 2, seed=1)
    term = Pulled(Dense(dense), lambda g: matrix @ g, numbers(N, seed=2).to(torch.float32))
    rows, weights = dense @ matrix.mT, numbers(B, seed=3)
    assert (term.size, term.shape, term.dtype) == (B, (N,), torch.float32)
    torch.testing.assert_close(term.dense(), rows)
    torch.testing.assert_close(term.part(1, 3).dense(), rows[1:3])
    torch.testing.assert_close(term.weighted_sum(weights), weights @ rows)
    assert [t.data_ptr() for t in term.held()] == [dense.data_ptr()]


@pytest.mark.parametrize(("rows", "form"), [(1, "general"), (2, "dense"), (3, "dense")])
def test_gradients_of_a_call_are_dense_if_they_have_no_more_numbers_than_its_results(
    rows: int, form: str
) -> None:
    # gradients of 2 * 5 numbers, and results of rows * 5
    w, x = numbers(5, 2), numbers(B, rows, 2, seed=1)
    grads = per_sample_grads(lambda w, x: torch.cdist(x, w).square().sum())(w, x)
    expected = 2 * (rows * w - x.sum(1, keepdim=True))
    torch.testing.assert_close(grads.materialize(), expected)
    torch.testing.assert_close(grads.dot(w), (expected * w).sum((1, 2)))
    assert form in grads.explain()


def test_a_call_that_draws_draws_the_same_for_all_samples() -> None:
    x, ones = numbers(B, N, seed=1), torch.ones(N, dtype=torch.float64)
    term = General(
        lambda x, w: x * F.dropout(w, 0.5), [x, ones], [0, None], 1, [torch.ones_like(x)]
    )
    masks = term.dense() / x
    assert set(masks.flatten().tolist()) <= {0.0, 2.0} and masks.equal(masks[:1].expand(B, N))
    total = term.weighted_sum(torch.ones(B)) / x.sum(0)
    assert all(min(abs(each), abs(each - 2)) < 1e-9 for each in total.tolist())
