"""A user's own row may name its in-place and out= variants, and say that it has no derivative."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gen.outcomes import Vacuous
from tests.checks.cells import case

NAME = "tests.checks.test_own_variants.double"


def double(x: Tensor) -> Tensor:
    return x * 2


def double_(x: Tensor) -> Tensor:
    return x.mul_(2)


def triple_(x: Tensor) -> Tensor:
    return x.mul_(3)


def double_out(x: Tensor, *, out: Tensor) -> Tensor:
    return torch.mul(x, 2, out=out)


def row(**more: Any) -> dict[str, Any]:
    return {"samples": [{"args": [{"shape": [2, 3]}]}], **more}


def outcome(form: str, described: dict[str, Any]) -> str:
    try:
        case(NAME, ops={NAME: described}).assert_same("forward", against="eager", form=form)
    except AssertionError as error:
        return type(error).__name__
    return "passed"


def test_the_named_variants_are_run() -> None:
    assert outcome("inplace", row(inplace=f"{NAME}_")) == "passed"
    assert outcome("out", row(out=f"{NAME}_out")) == "passed"


def test_a_wrong_variant_is_a_mismatch() -> None:
    assert outcome("inplace", row(inplace="tests.checks.test_own_variants.triple_")) == "Mismatch"


def test_a_row_without_derivative_has_no_differentiable_input() -> None:
    described = {NAME: row(differentiable=False)}
    with pytest.raises(Vacuous, match="no differentiable input"):
        case(NAME, ops=described).assert_same("vjp", against="loop")
    case(NAME, ops={NAME: row()}).assert_same("vjp", against="loop")
