"""Uses of parameters: what is kept of them, when it is scaled, and which writes are noticed.

Inside: ``runtime.per_sample.uses``. Whether factors are kept, copied or scaled twice changes the
memory and the time, and no gradient. Here each use is one that the test has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.extend import Dense, Outer
from runtime.per_sample import per_sample
from runtime.per_sample.general import OwnRows
from runtime.per_sample.uses import Layout, Uses, flattened, unflattened
from runtime.rules.samples.factors import Term
from runtime.rules.samples.places import Place

B = 3


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def long() -> Outer:
    """More vectors than the matrix has rows: the dense gradients take less memory."""
    return Outer(numbers(B, 50, 2), numbers(B, 50, 3))


def short() -> Outer:
    return Outer(numbers(B, 1, 20), numbers(B, 1, 30))


def uses_of(term: Term, factor: Any = 1) -> Uses:
    found = Uses()
    # where the parameter is does not matter
    found.add([((None, 0), term)], factor)  # type: ignore[list-item]
    return found


def test_a_use_stays_in_factors_until_the_next_one_and_is_dense_then_if_that_is_smaller() -> None:
    for term, kept in ((long(), Dense), (short(), Outer)):
        uses = uses_of(term)
        expected = term.dense()
        ((_, found),) = uses.settled()
        assert type(found) is kept and found.dense().equal(expected)


def test_a_factor_that_is_written_before_the_dense_gradients_are_computed_is_noticed() -> None:
    term = long()
    uses = uses_of(term)
    term.left.add_(1)
    with pytest.raises(
        RuntimeError,
        match=r"a tensor that the gradients are computed of, of shape .*modified by an inplace",
    ):
        uses.settled()


def test_what_is_held_is_that_which_the_kept_gradients_are_computed_of() -> None:
    factors, dense = short(), long()
    uses = uses_of(factors)
    uses.add([((None, 0), dense)])  # type: ignore[list-item]
    factors.left.add_(1)  # is settled: whoever asks for gradients compares versions
    held = uses.held()
    assert [t.shape for t, _ in held] == [factors.left.shape, factors.right.shape, (B, 2, 3)]
    assert held[0][0] is factors.left and [t._version - version for t, version in held] == [1, 0, 0]


def test_a_write_to_factors_that_are_kept_is_none_of_the_pass() -> None:
    term = short()
    uses = uses_of(term)
    term.left.add_(1)
    assert uses.settled()[0][1] is term


@pytest.mark.parametrize(
    "factor", [1, 4, 0.5, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), torch.tensor(1)]
)
@pytest.mark.parametrize("term", [long, short, lambda: Dense(numbers(B, 2, 2))])
def test_a_factor_scales_the_gradients_of_one_call_alone(
    term: Callable[[], Term], factor: Any
) -> None:
    uses = uses_of(term(), factor)
    uses.add([((None, 0), term())])  # type: ignore[list-item]
    scaled, plain = (found.dense() for _, found in uses.settled())
    expected = term().dense()
    torch.testing.assert_close(plain, expected)
    each = factor.reshape(-1, 1, 1) if isinstance(factor, Tensor) else factor
    torch.testing.assert_close(scaled, expected * each)


def test_a_use_without_a_factor_is_not_copied() -> None:
    for term in (short(), Dense(numbers(B, 2))):
        for factor in (1, 2):
            ((_, found),) = uses_of(term, factor).settled()
            same = [
                a.data_ptr() == b.data_ptr() for a, b in zip(found.held(), term.held(), strict=True)
            ]
            assert all(same) == (factor == 1)


def test_views_of_one_cotangent_are_scaled_once() -> None:
    g = numbers(B, 4)
    uses = Uses()
    uses.add(
        [
            ((None, i), Dense(view))  # type: ignore[misc]
            for i, view in enumerate((g, g.view(B, 2, 2), g.t().contiguous().t()))
        ],
        2,
    )
    first, second, third = (found.dense() for _, found in uses.settled())
    assert first.data_ptr() == second.data_ptr() != third.data_ptr()
    assert first.equal(2 * g) and second.equal(2 * g.view(B, 2, 2)) and third.equal(2 * g)
    assert g.equal(numbers(B, 4))


NEIGHBOURS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda g: g.t(),
    "conjugate": lambda g: g.conj(),
    "negative": torch._neg_view,
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_views_of_other_numbers_in_the_same_memory_are_scaled_by_themselves(name: str) -> None:
    g = torch.complex(numbers(B, B), numbers(B, B).exp())
    other = NEIGHBOURS[name](g)
    uses = Uses()
    uses.add([((None, 0), Dense(g)), ((None, 1), Dense(other))], 2)  # type: ignore[list-item]
    first, second = (found.dense() for _, found in uses.settled())
    assert first.equal(2 * g) and second.equal(2 * other) and not second.equal(first)


def test_changes_count_what_is_added_and_dropped() -> None:
    uses = Uses()
    assert uses.changes == 0
    uses.add([])
    assert uses.changes == 1
    uses.settle()
    uses.clear()
    assert uses.changes == 2 and uses.settled() == [] and uses.held() == []


LAYOUTS: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[Any]]] = {
    "nothing": ((), {}, []),
    "arguments": ((1, 2), {}, [1, 2]),
    "keywords": ((), {"a": 1, "b": 2}, [1, 2]),
    "a list": ((1, [2, 3], 4), {}, [1, 2, 3, 4]),
    "empty lists": (([], 1), {"a": []}, [1]),
    "lists of one": (([1], (2,)), {"a": [3]}, [1, 2, 3]),
    "all of it": ((0, [1, 2]), {"a": 3, "b": [4, 5], "c": None}, [0, 1, 2, 3, 4, 5, None]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arguments_become_one_list_and_arguments_again(name: str) -> None:
    args, kwargs, expected = LAYOUTS[name]
    flat, layout = flattened(args, kwargs)
    assert flat == expected and isinstance(layout, Layout)
    again, keywords = unflattened([(x,) for x in flat], layout)

    def each(a: Any) -> Any:
        return [(x,) for x in a] if isinstance(a, (list, tuple)) else (a,)

    assert again == [each(a) for a in args] and keywords == {
        key: each(a) for key, a in kwargs.items()
    }


class Devices(TorchDispatchMode):
    """On which devices tensors are made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.seen.add(found.device.type)
        return found


def own_rows(start: int = 0, stop: int = B, device: str = "cpu") -> OwnRows:
    whole = OwnRows(Dense(numbers(B, 1, 2).to(device)), Place(0), (B, 2))
    return whole.part(start, stop)


@pytest.mark.parametrize(
    "ask",
    [lambda t: t.dense(), lambda t: t.weighted_sum(torch.ones(B, device="meta"))],
    ids=["dense", "sum"],
)
def test_gradients_of_own_rows_are_computed_on_their_device(
    ask: Callable[[OwnRows], Tensor],
) -> None:
    term, made = own_rows(device="meta"), Devices()
    with made:
        assert ask(term).device.type == "meta"
    assert made.seen == {"meta"}


@pytest.mark.parametrize(("start", "stop"), [(0, B), (0, 1), (1, 3), (2, 2)])
def test_each_sample_has_a_gradient_in_its_own_row(start: int, stop: int) -> None:
    rows, weights = numbers(B, 2), numbers(B)[start:stop]
    expected = torch.diag_embed(rows.t()).movedim(0, -1)[start:stop]
    term = own_rows(start, stop)
    assert term.dense().equal(expected) and term.dense().shape == (stop - start, B, 2)
    torch.testing.assert_close(
        term.weighted_sum(weights), torch.einsum("b,bij->ij", weights, expected)
    )
    assert term.scaled(lambda t: 2 * t).dense().equal(2 * expected)
    assert term.scaled(lambda t: 2 * t).part(0, 1).dense().equal(2 * expected[:1])
    assert [t.data_ptr() for t in term.held()] == [t.data_ptr() for t in term.term.held()]


SHARED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "data of samples": lambda x, w: x.data * w,
    "data of what depends on parameters": lambda x, w: (x * w).data * w,
    "data of a view of samples": lambda x, w: x[:, 1:].data * w[1:],
    "what is detached": lambda x, w: (x * w).detach() * w,
    "samples that are set as data": lambda x, w: _set(torch.zeros_like(x.detach()), x.exp()) * w,
    "samples that are set as data of samples": lambda x, w: _set(x * 1, x * x) * w,
}


def _set(t: Tensor, data: Tensor) -> Tensor:
    t.data = data
    return t


@pytest.mark.parametrize("name", SHARED)
def test_what_shares_the_memory_of_samples_is_samples(name: str) -> None:
    x, w = numbers(4, 3), numbers(3).requires_grad_()
    expected = [torch.autograd.grad(SHARED[name](one[None], w).pow(2).sum(), w)[0] for one in x]
    with per_sample([w]) as grads:
        SHARED[name](grads.batch(x), w).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize()[0], torch.stack(expected))
