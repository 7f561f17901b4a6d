"""The tables of special points and of definitions: wrong rows are noticed, and the matrix names
each row.

Inside: gen.reference.lines, gen.reference.special_numbers and gen.reference.scalars. A cell is
right by these tables, so that only a changed table shows that a wrong one would be noticed, and
only the tables say for which ops there is a check.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from gen.language.axes import AXES, DEGENERATE, OF_ARGUMENTS
from gen.language.validate import load
from gen.outcomes import Mismatch
from gen.reference import lines, special_numbers
from gen.reference.lines import LINES
from gen.reference.scalars import SCALARS
from gen.reference.special_numbers import POINTWISE
from gen.samples import points
from tests.checks.cells import case

SPECIAL = {"values": "special"}
CHECKS = load(Path(__file__).parents[3] / "matrix.yaml").matrix.checks


def test_a_wrong_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = replace(POINTWISE["torch.fmin"], value=POINTWISE["torch.fmax"].value)
    monkeypatch.setitem(special_numbers.POINTWISE, "torch.fmin", swapped)
    with pytest.raises(Mismatch, match="by the tables"):
        case("torch.fmin", axes=SPECIAL).assert_same("forward", against="standard")
    first = replace(LINES["torch.amax"], slopes=LINES["torch.max.reduction_with_dim"].slopes)
    monkeypatch.setitem(lines.LINES, "torch.amax", first)
    with pytest.raises(Mismatch, match="by the tables"):
        case("torch.amax", axes=SPECIAL).assert_same("vjp", against="standard")


def test_a_point_that_the_table_has_and_the_op_refuses_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = LINES["torch.argmin"].value
    whole = replace(LINES["torch.argmin"], value=lambda xs: known(xs) if xs else 0)
    monkeypatch.setitem(lines.LINES, "torch.argmin", whole)
    with pytest.raises(IndexError):
        case("torch.argmin", axes=SPECIAL).assert_same("forward", against="standard")


def test_checks_against_the_standard_name_every_op_of_the_tables() -> None:
    assert sorted(CHECKS["special_value"].ops) == sorted({*POINTWISE, *LINES})
    sloped = {name for name, rule in POINTWISE.items() if rule.slopes is not None}
    sloped |= {name for name, line in LINES.items() if line.slopes is not None}
    assert set(CHECKS["special_vjp"].ops) <= sloped


def test_checks_against_exact_name_every_op_with_a_definition() -> None:
    against_exact = {name: check for name, check in CHECKS.items() if check.against == ["exact"]}
    assert against_exact
    for name, check in against_exact.items():
        assert sorted(check.ops) == sorted(SCALARS), name


def test_the_words_of_yaml_are_the_words_that_there_are() -> None:
    assert {*DEGENERATE, *OF_ARGUMENTS} == set(points.WORDS) < set(AXES["values"])
