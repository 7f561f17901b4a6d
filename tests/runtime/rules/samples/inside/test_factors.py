"""Factored gradients: each method equals the same computation on the dense gradients.

Inside: the terms of ``runtime.rules.samples.factors``. A per-sample step chooses one way for a
term by its sizes, so that no program reaches each method for each kind of term."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from runtime.extend import Dense, Outer
from runtime.rules.samples.factors import Grams, Rows, Term, joined, reduced
from runtime.rules.samples.windows import Windows
from tests.runtime.rules.samples.large_gradients import check_transforms_of_torch


def _draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def _rows() -> tuple[Term, Tensor]:
    indices = torch.tensor([[0, 2, 2], [1, 0, 3], [4, 4, 4]])
    g = _draw(3, 3, 2)
    want = torch.zeros(3, 5, 2, dtype=g.dtype)
    for b in range(3):
        for i in range(3):
            want[b, indices[b, i]] += g[b, i]
    return Rows(indices, g, 5), want


def _windows(groups: int, g_places: int) -> tuple[Term, Tensor]:
    x, g = _draw(3, 1, 2 * groups, 6), _draw(3, 1, 4, g_places)
    want = torch.zeros(3, 4, 2, 6 - g_places + 1, dtype=x.dtype)
    for b in range(3):
        w = want[b].clone().requires_grad_()
        (want[b],) = torch.autograd.grad(
            torch.nn.functional.conv1d(x[b], w, groups=groups), w, g[b]
        )
    return Windows(g, x, want.shape[1:], [1], [0], [1], groups), want


def _outer(t: int, dtype: torch.dtype = torch.float64) -> tuple[Term, Tensor]:
    left, right = _draw(3, t, 4, dtype=dtype), _draw(3, t, 5, dtype=dtype)
    return Outer(left, right), torch.einsum("btm,btn->bmn", left, right)


TERMS: dict[str, Callable[[], tuple[Term, Tensor]]] = {
    "an outer product": lambda: _outer(1),
    "a sum of few": lambda: _outer(2),
    "a sum of many": lambda: _outer(9),
    "complex": lambda: _outer(2, torch.complex128),
    "rows of a table": _rows,
    "windows": lambda: _windows(1, 4),
    "few windows": lambda: _windows(1, 1),
    "windows in groups": lambda: _windows(2, 4),
    "at hand": lambda: (Dense(_draw(3, 2, 2)), _draw(3, 2, 2)),
    "summed": lambda: (
        reduced(_draw(3, 4, 5, 2), (1, 2)),
        _draw(3, 4, 5, 2).sum((1, 2)).unsqueeze(1),
    ),
}


@pytest.fixture(params=TERMS)
def both(request: pytest.FixtureRequest) -> tuple[Term, Tensor]:
    return TERMS[request.param]()


Both = tuple[Term, Tensor]


def test_shape_size_and_dtype(both: Both) -> None:
    term, dense = both
    assert (term.size, *term.shape) == dense.shape
    assert term.dtype is dense.dtype


def test_dense_and_parts(both: Both) -> None:
    term, dense = both
    torch.testing.assert_close(term.dense(), dense)
    torch.testing.assert_close(term.part(1, 3).dense(), dense[1:3])


def test_weighted_sum(both: Both) -> None:
    term, dense = both
    weights = _draw(3)
    torch.testing.assert_close(
        term.weighted_sum(weights), torch.einsum("b,b...->...", weights.to(dense.dtype), dense)
    )


def test_products(both: Both) -> None:
    term, dense = both
    v = _draw(*term.shape, dtype=dense.dtype)
    rows = torch.view_as_real(dense).flatten(1) if dense.is_complex() else dense.flatten(1)
    row = torch.view_as_real(v).flatten() if v.is_complex() else v.flatten()
    torch.testing.assert_close(term.squared_norms(Grams(term.vectors())), rows.square().sum(1))
    torch.testing.assert_close(term.products(term), rows.square().sum(1))
    torch.testing.assert_close(term.gram(term), rows @ rows.mT)
    torch.testing.assert_close(term.dot(v), rows @ row)


def test_the_gram_matrix_of_a_shared_factor_is_computed_once() -> None:
    t, other = _draw(2, 3, 4), _draw(2, 3, 4)
    grams = Grams([t, t, other])
    first = grams.of(t)
    torch.testing.assert_close(first, t @ t.mT)
    torch.testing.assert_close(grams.of(other), other @ other.mT)
    assert grams.of(t[:]) is first
    assert grams.of(t) is not first  # nobody was to ask a third time
    torch.testing.assert_close(grams.of(t.mT), t.mT @ t)  # of the same memory


def test_factors_are_used_where_they_are_smaller() -> None:
    assert Outer(_draw(2, 1, 3), _draw(2, 1, 3)).way == "ghost"
    assert Outer(_draw(2, 64, 4), _draw(2, 64, 4)).way == "direct"
    assert Outer(_draw(2, 2, 64), _draw(2, 2, 64)).way == "ghost"


def test_a_transposed_outer_product_is_that_of_the_transpose() -> None:
    term, dense = _outer(3)
    turned = term.transposed
    assert turned is not None
    torch.testing.assert_close(turned.dense(), dense.mT)


def test_a_padding_row_has_no_gradient() -> None:
    indices, g = torch.tensor([[0, 1]]), _draw(1, 2, 3)
    assert torch.equal(Rows(indices, g, 4, padding=1).dense()[0, 1], torch.zeros(3, dtype=g.dtype))


def test_terms_of_one_form_become_one() -> None:
    terms = [
        _outer(1)[0],
        _rows()[0],
        Dense(_draw(3, 4, 5)),
        _outer(3)[0],
        Dense(_draw(3, 4, 5) * 2),
    ]
    matrices = [t for t in terms if t.shape == (4, 5)]
    found = joined(matrices)
    assert [type(t) for t in found] == [Outer, Dense]
    torch.testing.assert_close(sum(t.dense() for t in found), sum(t.dense() for t in matrices))
    (table,) = joined([_rows()[0], _rows()[0]])
    torch.testing.assert_close(table.dense(), 2 * _rows()[1])


G, X = torch.randn(200, 1, 64, 16, 16), torch.randn(200, 1, 32, 16, 16)


def _scaled_windows(scale: torch.Tensor) -> Windows:
    return Windows(G * scale, X, (64, 32, 3, 3), (1, 1), (1, 1), (1, 1), 1)


def test_transforms_of_torch_pass_through_large_gradients() -> None:
    check_transforms_of_torch(_scaled_windows)
