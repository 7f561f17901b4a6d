"""The model of tensors: numbers with a chain rule, memory that views share, and torch's own results
on expressions that a person wrote.

Inside: gen.grammar.model_world and gen.reference.model. Programs that are drawn compare whole runs
with the model, so a mistake in it would show as a finding about torch, and not by its rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from gen.grammar.model_world import ModelWorld
from gen.grammar.prelude import World
from gen.reference.model import chain_rule as n
from gen.reference.model.cell_geometry import Geometry, Refused
from gen.reference.model.model_tensor import Tensor

FUNCTIONS: dict[str, Callable[[n.Cell], n.Cell]] = {
    "sine": n.sine,
    "cosine": n.cosine,
    "tanh": n.tanh,
    "exponential": n.exponential,
    "reciprocal": n.reciprocal,
    "positive_part": n.positive_part,
    "magnitude": n.magnitude,
    "square": lambda x: n.multiply(x, x),
    "nested": lambda x: n.sine(n.multiply(n.tanh(x), n.add(x, 2.0))),
}


def slope(function: Callable[[float], float], x: float) -> float:
    """Return the central difference of a function."""
    step = 1e-5
    return (function(x + step) - function(x - step)) / (2 * step)


@pytest.mark.parametrize("x", [0.7, -1.3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives_are_those_of_differences(name: str, x: float) -> None:
    def value(at: float) -> float:
        return n.value_of(FUNCTIONS[name](at))

    def derivative(at: float) -> float:
        leaf = n.Number(at)
        (found,) = n.derivatives([(FUNCTIONS[name](leaf), 1.0)], [leaf])
        return n.value_of(found)

    leaf = n.Number(x)
    (first,) = n.derivatives([(FUNCTIONS[name](leaf), 1.0)], [leaf])
    (second,) = n.derivatives([(first, 1.0)], [leaf])
    assert math.isclose(n.value_of(first), slope(value, x), rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(n.value_of(second), slope(derivative, x), rel_tol=1e-6, abs_tol=1e-6)


def test_a_number_that_is_used_twice_has_the_sum_of_both_derivatives() -> None:
    x = n.Number(3.0)
    y = n.multiply(x, x)
    (found,) = n.derivatives([(n.multiply(y, y), 1.0)], [x])
    assert n.value_of(found) == 4 * 27


def test_a_write_is_seen_by_all_who_share_the_cells() -> None:
    base = Tensor.of([1.0, 2.0, 3.0, 4.0], (2, 2))
    row, column = base[0], base.t()[0]
    row.mul_(10)
    assert base.numbers() == [10.0, 20.0, 3.0, 4.0]
    assert column.numbers() == [10.0, 3.0]


def test_a_write_replaces_the_history_of_its_cells_alone() -> None:
    leaf = Tensor.of([1.0, 2.0, 3.0], (3,)).requires_grad_()
    copy = leaf.clone()
    copy[0].fill_(5.0)
    roots = [(cell, 1.0) for cell in copy.numbers()]
    found = n.derivatives(roots, leaf.memory.leaves)
    assert list(map(n.value_of, found)) == [0.0, 1.0, 1.0]


def test_parts_of_a_complex_tensor_are_views_of_it() -> None:
    z = Tensor.of([(1.0, 2.0)], (1,), "complex")
    z.conj().imag.fill_(7.0)
    assert z.numbers() == [1.0, -7.0]


REFUSED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a leaf": lambda leaf, plain: leaf.mul_(2),
    "cells that are read elsewhere": lambda leaf, plain: plain[1:].add_(plain[:-1]),
    "one cell twice": lambda leaf, plain: plain[:1].expand(3).mul_(2),
    "through detach": lambda leaf, plain: (leaf * 1).detach().mul_(2),
    "a shape that does not fit": lambda leaf, plain: plain.view(2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_or_leaves_open_is_refused(name: str) -> None:
    leaf = Tensor.of([1.0, 2.0, 3.0], (3,)).requires_grad_()
    with pytest.raises(Refused):
        REFUSED[name](leaf, Tensor.of([1.0, 2.0, 3.0], (3,)))


@pytest.mark.parametrize(
    ("geometry", "shape"),
    [
        (Geometry((2, 3), (3, 1)), (6,)),
        (Geometry((3, 2), (1, 3)), (6,)),
        (Geometry((2, 3), (6, 2)), (3, 2)),
        (Geometry((4, 3), (6, 1)), (2, 2, 3)),
        (Geometry((2, 1, 3), (0, 5, 1)), (2, 3)),
        (Geometry((0, 3), (3, 1)), (3, 0)),
    ],
)
def test_a_view_of_another_shape_is_there_where_torch_has_one(
    geometry: Geometry, shape: tuple[int, ...]
) -> None:
    memory = torch.arange(40.0)
    x = memory.as_strided(geometry.shape, geometry.strides, geometry.offset)
    found = geometry.reshaped(shape)
    try:
        expected = x.view(shape)
    except RuntimeError:
        assert found is None
        return
    assert found is not None
    assert found.places() == [int(value) for value in expected.reshape(-1)]


EXPRESSIONS = (
    "a * b",
    "a + b[0]",
    "a - 2",
    "a / (b * b + 1)",
    "-a",
    "a.sin() * a.cos().tanh()",
    "a.exp().relu()",
    "a.abs().mean()",
    "a @ b.t()",
    "a.sum(0)",
    "a.sum(-1)",
    "a.cumsum(1)",
    "a.flip(0)",
    "a.index_select(1, torch.tensor([2, 0]))",
    "torch.stack([a, b], 1)",
    "torch.cat([a, b], 1)",
    "torch.where(a > b, a, b)",
    "a.masked_fill(b > 0, 3.0)",
    "a[[1, 0, 1]]",
    "a[a > 0]",
    "a[1, ::2]",
    "a[..., None, 1]",
    "a.permute(1, 0).reshape(-1)",
    "a.unfold(1, 2, 1)",
    "a.diagonal()",
    "a.as_strided((2, 2), (1, 1))",
    "a.expand(2, *a.shape)",
    "a.split(2, 1)[1]",
    "a.narrow(1, 1, 2)",
    "c * c.conj()",
    "c.real + c.conj().imag",
    "torch.view_as_real(c)",
    "c * (1 + 2j)",
    "layer(a)",
    "rounded(a) * tripled(b)",
    "checkpoint(lambda v: v.sin() * v, a)",
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_has_the_values_of_torch(expression: str) -> None:
    text = (
        "a = numbers(2, 3, seed=1)\nb = numbers(2, 3, seed=2)\nc = complex_numbers(2, 3, seed=3)\n"
    )
    model, torch_names = dict(ModelWorld().names), dict(World().names)
    exec(f"{text}found = {expression}", model)
    exec(f"{text}found = {expression}", torch_names)
    expected = torch_names["found"].detach().resolve_conj()
    if expected.is_complex():
        expected = torch.view_as_real(expected)
    found = torch.tensor(list(map(n.value_of, model["found"].numbers())), dtype=torch.float64)
    assert tuple(model["found"].shape) == tuple(torch_names["found"].shape)
    torch.testing.assert_close(found, expected.reshape(-1).to(torch.float64))
