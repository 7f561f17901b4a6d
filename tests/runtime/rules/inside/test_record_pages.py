"""What the pages about records are made of: the source of a formula, and what torch
differentiates.

Inside: ``runtime.coverage``, ``runtime.records_page`` and ``runtime.facts.derivatives``. The
pages show the formulas that there are; other kinds of formulas, and a record that denies a
derivative, need the functions."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.coverage import denied, missing, torch_differentiates
from runtime.extend import Record, asking, register
from runtime.facts.derivatives import formulas, has_formula
from runtime.records_page import source
from runtime.rules.record import made_of


def test_what_is_missing_is_what_torch_lists_and_no_record_covers() -> None:
    listed = set(torch_differentiates())
    assert "sin.default" in listed
    assert set(missing()) <= listed


def test_no_record_denies_a_derivative_that_the_installed_torch_has() -> None:
    assert denied() == []
    table: dict[Any, Record] = {}
    register("sin argmax", table, nondiff=True)
    assert denied(table) == ["sin.default"]


def twice(g: Any) -> Any:
    return 2 * g


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        (lambda g, self: g * self, "g * self"),
        (
            asking("g", "other")(lambda g, y: g if g.is_complex() else y),
            "g if g.is_complex() else other",
        ),
        (asking("g", "other")(lambda g, *rest: rest[0](lambda g: g)), "rest[0](lambda g: g)"),
        ([lambda x: x, lambda g: -g][1], "-g"),
        (made_of("g / {}", lambda self: self + 1, lambda g: g), "g / (self + 1)"),
        (twice, "twice(g)"),
        (lambda: None, "None"),
        (
            lambda g: (
                g.sin().cos().sin().cos().sin().cos().sin().cos().tan().tan().tan(),
                g.sin().cos().sin().cos().sin().cos().sin().cos(),
            ),
            "…",
        ),
    ],
)
def test_a_formula_shows_its_source(formula: Any, shown: str) -> None:
    assert source(formula) == shown


def test_torchs_list_says_which_arguments_have_a_formula() -> None:
    assert formulas()["mul.Tensor"] == ("self", "other")
    assert formulas()["index_select.default"] == ("self",)
    assert has_formula("sum.dim_IntList") and not has_formula("argmax.default")
