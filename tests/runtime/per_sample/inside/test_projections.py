"""Projections of matrices that are too large to be projected at once, and their generators.

Inside: ``runtime.per_sample.projections``. A parameter of a user has to be very large for that.
Here the largest piece has ten entries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from runtime.extend import Dense, Outer
from runtime.per_sample import per_sample_grads, projections
from runtime.per_sample.projections import Projection
from runtime.rules.samples.factors import Rows
from tests.runtime.per_sample.models import MODELS, build
from tests.runtime.per_sample.reference import parameters_of, sample_loss

B, ROWS, COLUMNS = 6, 4, 5


@pytest.mark.parametrize("kind", ["an outer product", "rows"])
def test_rows_of_a_matrix_that_is_too_large_to_be_projected_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By factors, of which the rows are known, as by the dense gradients."""
    monkeypatch.setattr("runtime.per_sample.projections._ENTRIES", 10)
    like = torch.ones((), dtype=torch.float64)
    left, right = (
        torch.randn(B, 2, ROWS, dtype=torch.float64),
        torch.randn(B, 2, COLUMNS, dtype=torch.float64),
    )
    used = torch.stack([torch.tensor([b % ROWS, (b * b) % ROWS]) for b in range(B)])
    term = Outer(left, right) if kind == "an outer product" else Rows(used, right, ROWS)
    seen: list[int] = []
    of = Projection._project

    def projected(self: Projection, number: int, piece: int, columns: Tensor) -> Tensor:
        seen.append(columns.shape[1])
        return of(self, number, piece, columns)

    monkeypatch.setattr(Projection, "_project", projected)
    found = [
        Projection(B, 7, 0, 1 << 30, like).of(0, term.shape, [t])
        for t in (term, Dense(term.dense()))
    ]
    assert seen == [10, 10] * 2
    torch.testing.assert_close(*found)


def test_entries_of_a_stack_that_is_too_large_to_be_projected_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.per_sample.projections._ENTRIES", 12)
    shape, like = torch.Size((2, 3, 5)), torch.ones((), dtype=torch.float64)
    basis = Dense(torch.eye(30, dtype=torch.float64).reshape(30, *shape))
    matrix = Projection(30, 7, 3, 1 << 30, like).of(0, shape, [basis])
    torch.testing.assert_close(matrix.abs(), torch.full((30, 7), 7**-0.5, dtype=torch.float64))
    assert len({tuple(row.sign().tolist()) for row in matrix}) > 20
    values = torch.randn(4, 30, dtype=torch.float64)
    found = Projection(4, 7, 3, 1 << 30, like).of(0, shape, [Dense(values.reshape(4, *shape))])
    torch.testing.assert_close(found, values @ matrix)


@pytest.mark.parametrize("k", [5, (2, 3)])
@pytest.mark.parametrize("model", MODELS)
def test_every_random_part_of_a_projection_has_a_generator_of_its_own(
    model: str, k: int | tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[tuple[int, ...]] = []
    generator = projections._generator

    def noted(place: Sequence[int]) -> torch.Generator:
        places.append(tuple(place))
        return generator(place)

    monkeypatch.setattr(projections, "_generator", noted)
    module, x = build(model)
    grads = per_sample_grads(sample_loss(module))(parameters_of(module), x)
    grads.project(k, seed=1)
    assert places and len(places) == len(set(places))
