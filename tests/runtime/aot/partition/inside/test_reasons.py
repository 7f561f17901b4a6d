"""The reason for which a value of a graph by hand is saved, and the names that it goes by.

Inside: ``runtime.aot.partition.reasons``. What is saved is chosen by the test; a cut of a program
saves few of these kinds at once."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import pytest
import torch

from runtime.aot.partition.memory import Memory
from runtime.aot.partition.reasons import Why, saved_values, source_of
from runtime.checkpoint import CheckpointPolicy
from tests.runtime.aot.partition.by_hand import Joint, X, region
from tests.runtime.aot.partition.inside.parts_by_hand import parts_of

aten: Any = torch.ops.aten


def test_a_number_among_the_items_of_a_call_is_saved_as_a_size(joint: Joint) -> None:
    x, _, t = joint.inputs
    call = joint.call(aten._scaled_dot_product_flash_attention.default, x, x, x, val=(X, X, 7))
    values, number = (
        joint.call(operator.getitem, call, 0),
        joint.call(operator.getitem, call, 2, val=7),
    )
    grad = joint.call(aten.mul.Tensor, t, number)
    parts = parts_of(joint, [values], [grad])
    found = saved_values(parts, Memory(parts), [x, number], {x: "args[0]"}, set(), True)
    assert [(v.why, v.bytes, v.dtype, v.shape, v.shares) for v in found] == [
        (Why.ARGUMENT, 48, torch.float32, (3, 4), None),
        (Why.SIZE, 8, None, (), None),
    ]


@pytest.mark.parametrize("recomputes, why", [(True, Why.CHEAPEST), (False, Why.FORWARD)])
def test_the_reason_of_a_value_is_that_of_what_it_shows_and_sharing_is_told(
    joint: Joint, recomputes: bool, why: Why
) -> None:
    x, y, t = joint.inputs
    sin, product = joint.call(aten.sin.default, x), joint.call(aten.mm.default, x, y)
    views = [joint.call(aten.t.default, n) for n in (sin, product, x, y)]
    behind = joint.call(aten.exp.default, x)
    policy = region(joint.call(aten.tanh.default, x), 1, CheckpointPolicy.MUST_SAVE)
    kept = joint.call(aten.cos.default, x)
    saved = [*views, sin, behind, policy, kept]
    forward = joint.call(aten.cat.default, [*views, sin, policy])
    grad = joint.call(aten.cat.default, [t, *saved])
    parts = parts_of(joint, [forward, kept], [grad])
    found = saved_values(parts, Memory(parts), saved, {x: "args[0]"}, {y}, recomputes)
    assert [v.why for v in found] == [
        why,
        Why.EXPENSIVE,
        Why.ARGUMENT,
        Why.CLOSED_OVER,
        why,
        Why.CHEAPEST,
        Why.POLICY,
        Why.RESULT,
    ]
    assert [v.shares for v in found] == [None, None, None, None, "t", None, None, None]
    assert [source_of(v, {x: "args[0]"}) for v in views] == [
        "aten.t.default of aten.sin.default",
        "aten.t.default of aten.mm.default",
        "aten.t.default of args[0]",
        "aten.t.default of primals_2",
    ]


def test_the_item_of_a_call_is_named_with_its_number_and_that_of_a_view_with_what_it_shows(
    joint: Joint,
) -> None:
    x, _, _ = joint.inputs
    sort = joint.call(aten.sort.default, x, val=(X, X.long()))
    split = joint.call(aten.split.Tensor, x, 2, val=[X[:2], X[2:]])
    items = [joint.call(operator.getitem, call, 1) for call in (sort, split)]
    assert [source_of(n, {}) for n in items] == [
        "aten.sort.default[1]",
        "aten.split.Tensor of primals_1",
    ]


def test_what_is_told_of_a_saved_value_cannot_be_changed(joint: Joint) -> None:
    x, _, t = joint.inputs
    parts = parts_of(joint, [x], [t])
    value: Any
    (value,) = saved_values(parts, Memory(parts), [x], {}, set(), True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.line = "elsewhere"
    assert (value.line, value.shares, value.name) == (None, None, "primals_1")
