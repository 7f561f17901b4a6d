"""In which parts of the samples the gradients are computed so that they fit into the limit of
memory, and what the table tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime.extend import Dense
from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads

from .reference import with_gradients

B, T, ROWS, COLUMNS = 6, 6, 4, 5
EACH = ROWS * COLUMNS * 8  # bytes of the gradient of one sample


def gradients(limit: int = 1 << 30, times: int = T) -> PerSampleGrads:
    """Of a linear layer that each sample uses so often that its gradients are dense."""
    torch.manual_seed(0)
    layer, x = (
        nn.Linear(COLUMNS, ROWS, bias=False).double(),
        torch.randn(B, times, COLUMNS, dtype=torch.float64),
    )
    with per_sample([layer.weight], memory_limit=limit) as grads:
        layer(grads.batch(x)).pow(3).sum().backward()
    return grads


def _spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    of = Dense.part

    def part(self: Dense, start: int, stop: int) -> Dense:
        found.append((start, stop))
        return of(self, start, stop)

    monkeypatch.setattr(Dense, "part", part)
    return found


def _steps(each: int, limit: int, passes: int = 1) -> list[tuple[int, int]]:
    step = max(1, limit // each)
    return [(i, min(i + step, B)) for i in range(0, B, step)] * passes


# bytes that a sample takes, and how often all are computed
ASKED: dict[str, tuple[Callable[[PerSampleGrads], Any], int, int]] = {
    "norms": (lambda g: g.norms(), EACH, 1),
    "second moment": (lambda g: g.second_moment(), EACH, 1),
    "variance": (lambda g: g.variance(), EACH, 2),
    "out": (lambda g: g.materialize([torch.empty(B, ROWS, COLUMNS, dtype=torch.float64)]), EACH, 1),
    "project": (lambda g: g.project(8), 4 * EACH, 1),
    "project from both sides": (lambda g: g.project((2, 3)), EACH, 1),
}


@pytest.mark.parametrize("samples", [0.5, 0.99, 1, 1.99, 2, 2.5, 4, 6, 100])
@pytest.mark.parametrize("name", ASKED)
def test_as_many_samples_are_computed_at_once_as_the_limit_allows(
    name: str, samples: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, each, passes = ASKED[name]
    expected = ask(gradients())
    grads = gradients(limit := int(samples * each))
    parts = _spied(monkeypatch)
    torch.testing.assert_close(ask(grads), expected)
    assert parts == _steps(each, limit, passes)


@pytest.mark.parametrize("samples", [0.5, 1, 1.99, 2, 3, 100])
def test_products_of_all_pairs_take_two_parts_at_once(
    samples: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients().gram()
    grads = gradients(limit := int(samples * 2 * EACH))
    parts = _spied(monkeypatch)
    torch.testing.assert_close(grads.gram(), expected)
    steps = _steps(2 * EACH, limit)
    assert parts == [one for i in steps for j in steps for one in (i, j)]


def test_without_out_all_samples_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grads = gradients(1)
    parts = _spied(monkeypatch)
    grads.materialize()
    assert parts == [(0, B)]


@pytest.mark.parametrize(
    "ask",
    [lambda g: g.norms(), lambda g: g.gram(), lambda g: g.project(3)],
    ids=["norms", "gram", "project"],
)
def test_small_gradients_are_computed_at_once_where_no_limit_is_said(
    ask: Callable[[PerSampleGrads], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = nn.Linear(COLUMNS, ROWS, bias=False), torch.randn(B, T, COLUMNS)
    with per_sample([layer.weight]) as grads:
        layer(grads.batch(x)).pow(3).sum().backward()
    by_function = per_sample_grads(lambda w, x: (x @ w).pow(3).sum())(torch.ones(COLUMNS, ROWS), x)
    parts = _spied(monkeypatch)
    for each in (grads, by_function):
        ask(each)
    assert set(parts) == {(0, B)}


def test_factors_are_kept_if_they_give_the_norms() -> None:
    few, many = gradients(times=1), gradients(times=T)
    forms = [_lines(g)[3][4] for g in (few, many)]
    assert forms == ["outer", "dense"]
    expected = many.materialize()[0].flatten(1).norm(dim=1)
    torch.testing.assert_close(many.norms(), expected)


def _lines(grads: PerSampleGrads) -> list[list[str]]:
    return [line.split() for line in grads.explain().splitlines() if line.strip()]


def test_the_table_has_a_line_for_each_parameter() -> None:
    torch.manual_seed(0)
    layer, unused = nn.Linear(COLUMNS, ROWS), nn.Parameter(torch.ones(3, dtype=torch.float16))
    params: Any = {"layer": list(layer.parameters()), "unused": unused}
    with per_sample(params) as grads:
        layer(
            layer(grads.batch(torch.ones(B, 1, COLUMNS))).repeat(1, 1, 2)[..., :COLUMNS]
        ).sum().backward()
    title, head, _, *rows = _lines(grads)
    assert title == ["gradients", "of", "6", "samples"] and head == [
        "parameter",
        "shape",
        "uses",
        "form",
        "norms",
        "dense",
        "bytes",
    ]
    assert rows == [
        ["['layer'][0]", "[4,", "5]", "1", "outer", "ghost", "480"],
        ["['layer'][1]", "[4]", "1", "dense", "direct", "96"],
        ["['unused']", "[3]", "0", "unused", "direct", "36"],
    ]


def test_a_table_of_large_gradients_has_no_more_than_a_hundred_and_twenty_columns() -> None:
    w = nn.Parameter(torch.ones(1000, 1))
    with per_sample({"a" * 200: w}) as grads:
        (grads.batch(torch.ones(2, 1)) @ w.t()).sum().backward()
    assert "8,000" in grads.explain() and max(map(len, grads.explain().splitlines())) == 120


@pytest.mark.parametrize(
    ("k", "fits"),
    [(1, True), (0, False), (-1, False), ((1, 1), True), ((1, 0), False), ((0, 1), False)],
)
def test_a_number_of_columns_is_positive(k: Any, fits: bool) -> None:
    grads = gradients()
    if fits:
        assert grads.project(k).shape == (B, 1)
        return
    with pytest.raises(ValueError, match="project: k must be positive"):
        grads.project(k)


SHAPES: list[tuple[int, ...]] = [(), (1,), (5,), (3, 4), (2, 3, 4), (1, 1)]


def basis(shape: tuple[int, ...]) -> Tensor:
    """A gradient for each entry of a parameter of that shape: one there, and zero elsewhere."""
    n = torch.Size(shape).numel()
    return torch.eye(n, dtype=torch.float64).reshape(n, *shape)


def four(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(4, *shape, dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_projection_is_linear_and_of_signs(shape: tuple[int, ...], k: int) -> None:
    units, values = basis(shape), four(shape)
    n = len(units)
    matrix = with_gradients({"w": units}).project(k, seed=3)
    torch.testing.assert_close(matrix.abs(), torch.full((n, k), k**-0.5, dtype=torch.float64))
    found = with_gradients({"w": values}, memory_limit=100).project(k, seed=3)
    torch.testing.assert_close(found, values.reshape(4, n) @ matrix)


@pytest.mark.parametrize("shape", SHAPES)
def test_seeds_and_parameters_have_matrices_of_their_own(shape: tuple[int, ...]) -> None:
    units, k = basis(shape), 9  # so that two of them are not equal by chance
    first = with_gradients({"w": units}).project(k, seed=3)
    of_another_seed = with_gradients({"w": units}).project(k, seed=4)
    before = torch.zeros(len(units), 2, dtype=torch.float64)
    of_the_second_parameter = with_gradients({"v": before, "w": units}).project(k, seed=3)
    assert not of_another_seed.equal(first)
    assert not of_the_second_parameter.equal(first)


@pytest.mark.parametrize("k", [(1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_projection_from_both_sides_is_a_product_of_signs(
    shape: tuple[int, ...], k: tuple[int, int]
) -> None:
    units, values = basis(shape), four(shape)
    n, columns = len(units), k[0] * k[1]
    matrix = with_gradients({"w": units}).project(k, seed=3)
    torch.testing.assert_close(
        matrix.abs(), torch.full((n, columns), columns**-0.5, dtype=torch.float64)
    )
    found = with_gradients({"w": values}, memory_limit=1).project(k, seed=3)
    torch.testing.assert_close(found, values.reshape(4, n) @ matrix)


@pytest.mark.parametrize("k", [3, (3, 4)])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_a_parameter_without_elements_projects_to_zeros(shape: tuple[int, ...], k: Any) -> None:
    columns = k if isinstance(k, int) else k[0] * k[1]
    found = with_gradients({"w": torch.ones(2, *shape, dtype=torch.float64)}).project(k)
    assert found.equal(torch.zeros(2, columns, dtype=torch.float64))


@pytest.mark.parametrize(("k", "columns"), [(3, 3), ((3, 4), 12)])
def test_a_parameter_without_uses_projects_to_zeros(k: Any, columns: int) -> None:
    params = {"w": torch.ones(2, dtype=torch.float64)}
    grads = per_sample_grads(lambda params, x: x.sum())(params, torch.ones(2, 3).double())
    assert grads.project(k).equal(torch.zeros(2, columns, dtype=torch.float64))


@pytest.mark.parametrize("limit", [1, 2 * EACH, 1 << 30])
def test_moments_are_those_of_the_gradients(limit: int) -> None:
    grads = gradients(limit)
    (dense,) = grads.materialize()
    torch.testing.assert_close(grads.second_moment(), [dense.square().mean(0)])
    torch.testing.assert_close(grads.variance(), [dense.var(0, unbiased=False)])
    torch.testing.assert_close(grads.gram(), dense.flatten(1) @ dense.flatten(1).T)
    torch.testing.assert_close(grads.norms("parameter"), [dense.flatten(1).norm(dim=1)])
    assert dense.var(0, unbiased=False).min() > 0
