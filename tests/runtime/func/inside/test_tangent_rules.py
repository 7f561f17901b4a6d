"""The rule for tangents of each op refuses what its record has no formula for.

Inside: ``runtime.func.tangent_rules``, asked for each record. A call of each op would need
arguments that its kernel accepts. The rule refuses before any kernel runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime.errors import MissingRule
from runtime.func.tangent_rules import tangent_rule
from runtime.rules import RECORDS
from runtime.rules.ops import op_of
from runtime.rules.record import parameters

T = torch.ones(2, 3)


def _formulas(op: Any) -> set[int]:
    """The arguments that the jvp of a record mentions, or, where it has none of its own, the
    vjp."""
    jvp = op.record.jvp
    if isinstance(jvp, dict):
        return {op.positions[name] for name in jvp if name in op.positions}
    if callable(jvp):
        return {i for i, name in enumerate(op.arg_names) if f"{name}_t" in parameters(jvp)}
    return set(op.vjp_args)


def test_every_rule_refuses_a_tangent_of_an_argument_that_it_has_no_formula_for() -> None:
    refused = 0
    for func in list(RECORDS):
        op = op_of(func)
        if (
            op.record is None
            or op.record.nondiff is True
            or (op.record.vjp is None and op.record.jvp is None)
        ):
            continue
        for i in op.tensor_args:
            if i not in _formulas(op):
                tangents = [T if k == i else None for k in range(len(op.arg_names))]
                with pytest.raises(MissingRule, match=f"'{op.arg_names[i]}'"):
                    tangent_rule(op)(op, [None] * len(tangents), tangents, {}, None)
                refused += 1
    assert refused > 50
