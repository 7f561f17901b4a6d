"""Large results of a replay are written to memory in huge pages, with the bits that
they have elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit, unwrap
from runtime.dropin import installed
from tests.runtime.huge_pages import lies_in_huge_pages, needs_huge_pages

from .rewritten_graphs import calls, runs

LARGE = 8 << 20  # bytes, see docs/aot.md
X = torch.randn(1600, 1600)  # 10 MB
SMALL = X[:100, :100].contiguous()


def _products(x: Tensor) -> Tensor:
    return torch.bmm(x.expand(2, *x.shape), x.expand(2, *x.shape))


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda x: x @ x,
    "bmm": _products,
    "addmm": lambda x: torch.addmm(x[0], x, x, beta=2, alpha=3),
    "relu": torch.relu,
    "mul": lambda x: x * 2.5,
    "where": lambda x: torch.where(x > 0, x, -1.0),
    "to": lambda x: x.double(),
    "threshold_backward": lambda x: torch.ops.aten.threshold_backward(x, x, 0.5),
    "cat": lambda x: torch.cat([x[:800].sin(), x[800:].cos()]),
}


@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS)
def test_the_bits_are_those_of_an_ordinary_call(f: Callable[[Tensor], Tensor]) -> None:
    jitted = jit(f)
    for x in (X, -X, X.T.contiguous()):
        found, expected = jitted(x), f(x)
        assert (
            torch.equal(found, expected)
            and found.dtype is expected.dtype
            and found.stride() == expected.stride()
        )


@pytest.mark.parametrize("name", ("mm", "bmm", "addmm", "relu", "mul", "cat"))
def test_a_large_result_alone_gets_memory_of_its_own(name: str) -> None:
    assert "empty" in calls(PROGRAMS[name], X)
    assert "empty" not in calls(PROGRAMS[name], SMALL)


@needs_huge_pages
def test_a_large_result_lies_in_huge_pages() -> None:
    # of sizes that are symbols it is not known, and a second size would make them that
    jitted = jit(torch.relu)
    for _ in range(3):
        large = jitted(X)
    assert lies_in_huge_pages(large)


def test_two_calls_return_two_tensors() -> None:
    jitted = jit(PROGRAMS["mm"])
    first = jitted(X)
    kept = first.clone()
    jitted(-X)
    second = jitted(2 * X)
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()


def test_a_result_in_another_layout_stays_where_its_kernel_puts_it() -> None:
    found = jit(torch.sin)
    for _ in range(3):
        assert found(X.T).stride() == X.T.stride()


def test_the_gradients_of_a_step_under_the_drop_in_are_those_of_torch() -> None:
    def step(x: Tensor) -> Any:
        (x @ x).relu().mul(3).square().sum().backward()
        return x.grad

    theirs = X.clone().requires_grad_()
    expected = step(theirs)
    with installed():
        jitted = jit(step)
        for _ in range(3):
            found = jitted(torch.from_numpy(X.numpy().copy()).requires_grad_())
            assert torch.allclose(unwrap(found), expected, rtol=1e-5)


def test_results_of_a_large_size_lie_in_large_pages() -> None:
    assert runs(torch.relu, (LARGE // 4,)) == ["empty", "relu"]
    assert runs(torch.relu, (LARGE // 4 - 1,)) == ["relu"]
    assert runs(torch.relu, (LARGE // 8,), dtype=torch.float64) == ["empty", "relu"]
