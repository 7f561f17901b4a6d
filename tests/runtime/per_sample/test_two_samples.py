"""Batches of two samples, and writes whose results and places matter: what holds for one sample
alone does not hold for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime.per_sample import per_sample
from tests.runtime.per_sample.test_batch_session import (
    ADDED,
    REFUSED,
    WRITES,
    Program,
    buffer,
    loss_of,
    parameter,
    put,
    samples,
)

INDICES = torch.tensor([0, 2])
MORE: dict[str, Program] = {
    "a parameter at indices": lambda x, w, y: put(y, (slice(None), INDICES), w[:2]),
    "one number of a parameter at indices": lambda x, w, y: put(y, (slice(None), INDICES), w[1]),
    "a parameter added at indices": lambda x, w, y: _added(y, w[:2]),
    "a parameter at indices of all rows": lambda x, w, y: y.index_put(
        [torch.arange(len(y))[:, None], INDICES], w[:2]
    ),
    "a transposed view that was taken before": lambda x, w, y: [y.t(), y.mul_(x)][0] * w[:, None],
    "a transposed view of a part that was taken before": lambda x, w, y: (
        [y[:, 1:].t(), y.mul_(x)][0] * w[1:, None]
    ),
    "a view of a view that was taken before": lambda x, w, y: [y.t()[1:].t(), y.mul_(x)][0] * w[1:],
}


def _added(y: Tensor, values: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.index_put_.default(y, [None, INDICES], values, True)
    return found


def by_loop(program: Program, x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([torch.autograd.grad(loss_of(program, one[None], w), w)[0] for one in x])


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MORE)
def test_a_write_has_the_gradients_of_a_loop(name: str, rows: int) -> None:
    x, w = samples(rows), parameter()
    with per_sample([w]) as grads:
        loss_of(MORE[name], grads.batch(x), w).backward()
    torch.testing.assert_close(grads.materialize()[0], by_loop(MORE[name], x, w))


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_two_samples_has_the_gradients_of_a_loop(name: str) -> None:
    x, w = samples(2), parameter()
    with per_sample([w]) as grads:
        loss_of(WRITES[name], grads.batch(x), w).backward()
    torch.testing.assert_close(grads.materialize()[0], by_loop(WRITES[name], x, w))


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in REFUSED
        if n not in ("some samples", "samples that a packed layout shows of several")
    ],
)
def test_what_mixes_samples_is_refused_of_two(name: str) -> None:
    program, says = REFUSED[name]
    w = parameter()
    with per_sample([w]) as grads, pytest.raises(RuntimeError, match=f"(?s)^per_sample: .*{says}"):
        loss_of(program, grads.batch(samples(2)), w).backward()


@pytest.mark.parametrize("name", ADDED)
def test_a_sum_and_a_mean_of_two_samples_need_a_word_and_of_one_are_the_same(name: str) -> None:
    w = parameter()
    with (
        per_sample([w]) as grads,
        pytest.raises(RuntimeError, match="it adds a sum and a mean over the samples"),
    ):
        ADDED[name]((grads.batch(samples(2)) * w).sum(1)).backward()
    with per_sample([w]) as grads:
        ADDED[name]((grads.batch(samples(1)) * w).sum(1)).backward()
    (expected,) = torch.autograd.grad(ADDED[name]((samples(1) * w).sum(1)), w)
    torch.testing.assert_close(grads.materialize()[0], expected[None])


@pytest.mark.parametrize("reduction", ["sum", "mean", None])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_factor_of_a_mean(rows: int, reduction: str | None) -> None:
    x, w = samples(rows), parameter()
    with per_sample([w], reduction=reduction) as grads:
        (grads.batch(x) * w).sum(1).mean().backward()
    by_word = {"sum": x / rows, "mean": x, None: x}[reduction]
    torch.testing.assert_close(grads.materialize()[0], by_word)


def test_sums_that_are_written_beside_one_another() -> None:
    x, w = samples(), parameter()
    with per_sample([w]) as grads:
        y = grads.batch(x) * w
        put(put(buffer(x, 2), 0, y.sum()), 1, y.square().sum()).sum().backward()
    torch.testing.assert_close(grads.materialize()[0], x + 2 * x * x * w)


# what is written to, and what the write returns
RETURNED: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Any, Any]]] = {
    "a number": lambda x, w, y: (y, y.mul_(2)),
    "samples": lambda x, w, y: (y, y.mul_(x)),
    "a parameter": lambda x, w, y: (y, y.mul_(w)),
    "a parameter without samples": lambda x, w, y: (v := w * 1, v.mul_(w)),
    "samples copied": lambda x, w, y: (y, y.copy_(x)),
    "a parameter copied": lambda x, w, y: (y, y.copy_(w)),
    "samples into a view": lambda x, w, y: (v := y[:, 0], v.mul_(x[:, 0])),
    "a parameter into a view": lambda x, w, y: (v := y[:, 0], v.copy_(w[0])),
    "a mixture": lambda x, w, y: (y, y.mul_(y.sum(0))),
    "a number at indices": lambda x, w, y: (
        y,
        torch.ops.aten.index_put_.default(y, [None, INDICES], torch.ones((), dtype=x.dtype)),
    ),
}


@pytest.mark.parametrize("name", RETURNED)
def test_a_write_returns_what_it_has_written_to(name: str) -> None:
    w = parameter()
    with per_sample([w]) as grads:
        x = grads.batch(samples())
        target, found = RETURNED[name](x, w, x * w)
        assert found is target


def test_modules_are_called_by_torch_after_the_context() -> None:
    layer = nn.Linear(3, 3)
    with per_sample(layer.parameters()):
        assert nn.Module.__call__.__module__ != "torch.nn.modules.module"
        layer(torch.ones(2, 3))
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"
    with pytest.raises(KeyError), per_sample(layer.parameters()):
        raise KeyError
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"
