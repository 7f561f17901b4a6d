"""The reason for which a value is saved, and the names that its origin goes by."""

from __future__ import annotations

import dataclasses
import operator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime import aot
from runtime.aot.partition.memory import Memory
from runtime.aot.partition.reasons import Why, saved_values, source_of
from runtime.checkpoint import CheckpointPolicy, checkpoint

from .by_hand import Joint, X, region

aten: Any = torch.ops.aten
CUT: Any = aot.min_cut_rematerialization_partition
EVERYTHING: Any = aot.default_partition


def saved(f: Any, *args: Any, cut: Any = CUT, **options: Any) -> dict[str, Why]:
    report = aot.explain(aot.aot_function(f, aot.nop, partition_fn=cut, **options), *args)
    return {v.source: v.why for v in report.saved}


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def test_an_argument_and_a_tensor_from_outside_are_told_apart() -> None:
    scale = torch.randn(3)
    found = saved(lambda x, y: (x * y * scale).sum(), leaf(3), torch.randn(3), cut=EVERYTHING)
    assert found == {"args[1]": Why.ARGUMENT, "a tensor from outside": Why.CLOSED_OVER}


def test_arguments_go_by_their_places_and_names() -> None:
    f = aot.aot_function(lambda x, d, *, k: (x * d["a"][1] * k).sum(), aot.nop)
    report = aot.explain(f, leaf(3), {"a": [1.0, torch.randn(3)]}, k=torch.randn(3))
    assert {v.source for v in report.saved} == {"args[1]['a'][1]", "kwargs['k']"}


def test_an_item_is_named_by_its_call_and_number() -> None:
    found = saved(lambda x: F.layer_norm(x, (4,)).square().sum(), leaf(3, 4), cut=EVERYTHING)
    assert found == {
        "args[0]": Why.ARGUMENT,
        "aten.native_layer_norm.default[0]": Why.FORWARD,
        "aten.native_layer_norm.default[1]": Why.FORWARD,
        "aten.native_layer_norm.default[2]": Why.FORWARD,
    }


def test_a_view_is_named_with_what_it_is_a_view_of() -> None:
    found = saved(
        lambda x, w: (x.t() * w.sin()).sum(), torch.randn(3, 4), leaf(4, 3), cut=EVERYTHING
    )
    assert found == {"aten.t.default of args[0]": Why.ARGUMENT, "args[1]": Why.ARGUMENT}


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_where_the_cheapest_cut_passes_is_a_reason_if_anything_runs_again(budget: float) -> None:
    """The sum over the rows is small, and what follows is computed again from it."""
    found = saved(
        lambda x: x.sum(0).sin().exp().sum(), leaf(50, 4), cut=partial(CUT, memory_budget=budget)
    )
    assert found == {"aten.sum.dim_IntList": Why.CHEAPEST}


def test_what_the_forward_has_anyway_is_the_reason_if_nothing_runs_again() -> None:
    assert saved(lambda x: x.sum(0).square().sum(), leaf(50, 4), cut=EVERYTHING) == {
        "aten.sum.dim_IntList": Why.FORWARD
    }


def test_an_expensive_op_a_result_and_a_draw_are_reasons() -> None:
    assert (
        saved(lambda x, w: (x @ w).sin(), torch.randn(3, 4), leaf(4, 4))["aten.mm.default"]
        is Why.EXPENSIVE
    )
    assert saved(lambda x: x.exp(), leaf(3)) == {"aten.exp.default": Why.RESULT}
    (why,) = (
        why
        for source, why in saved(lambda x: (x * torch.rand(3)).sum(), leaf(3)).items()
        if "rand" in source
    )
    assert why is Why.DRAW


def test_the_view_of_an_expensive_result_is_saved_for_the_same_reason() -> None:
    found = saved(
        lambda x, w: ((x @ w).view(-1) ** 3).sum(), torch.randn(3, 4), leaf(4, 4), cut=EVERYTHING
    )
    (why,) = (
        why for source, why in found.items() if source == "aten.view.default of aten.mm.default"
    )
    assert why is Why.EXPENSIVE


def test_the_border_of_a_region_is_a_reason() -> None:
    def half(x: Any) -> Any:
        return x.sin().exp()

    found = saved(
        lambda x: (
            checkpoint(half, checkpoint(half, x, use_reentrant=False), use_reentrant=False)
            .square()
            .sum()
        ),
        leaf(3),
    )
    assert found["aten.exp.default"] is Why.BOUNDARY


def test_a_number_among_the_items_of_a_call_is_saved_as_a_size(joint: Joint) -> None:
    x, _, t = joint.inputs
    call = joint.call(aten._scaled_dot_product_flash_attention.default, x, x, x, val=(X, X, 7))
    values, number = (
        joint.call(operator.getitem, call, 0),
        joint.call(operator.getitem, call, 2, val=7),
    )
    grad = joint.call(aten.mul.Tensor, t, number)
    parts = joint.parts([values], [grad])
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
    parts = joint.parts([forward, kept], [grad])
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
    parts = joint.parts([x], [t])
    value: Any
    (value,) = saved_values(parts, Memory(parts), [x], {}, set(), True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.line = "elsewhere"
    assert (value.line, value.shares, value.name) == (None, None, "primals_1")
