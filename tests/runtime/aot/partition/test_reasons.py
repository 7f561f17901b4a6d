"""The reason for which a value is saved, and the names that its origin goes by."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime import aot
from runtime.checkpoint import checkpoint

aten: Any = torch.ops.aten
CUT: Any = aot.min_cut_rematerialization_partition
EVERYTHING: Any = aot.default_partition


def saved(f: Any, *args: Any, cut: Any = CUT, **options: Any) -> dict[str, str]:
    report = aot.explain(aot.aot_function(f, aot.nop, partition_fn=cut, **options), *args)
    return {v.source: v.why.name for v in report.saved}


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def test_an_argument_and_a_tensor_from_outside_are_told_apart() -> None:
    scale = torch.randn(3)
    found = saved(lambda x, y: (x * y * scale).sum(), leaf(3), torch.randn(3), cut=EVERYTHING)
    assert found == {"args[1]": "ARGUMENT", "a tensor from outside": "CLOSED_OVER"}


def test_arguments_go_by_their_places_and_names() -> None:
    f = aot.aot_function(lambda x, d, *, k: (x * d["a"][1] * k).sum(), aot.nop)
    report = aot.explain(f, leaf(3), {"a": [1.0, torch.randn(3)]}, k=torch.randn(3))
    assert {v.source for v in report.saved} == {"args[1]['a'][1]", "kwargs['k']"}


def test_an_item_is_named_by_its_call_and_number() -> None:
    found = saved(lambda x: F.layer_norm(x, (4,)).square().sum(), leaf(3, 4), cut=EVERYTHING)
    assert found == {
        "args[0]": "ARGUMENT",
        "aten.native_layer_norm.default[0]": "FORWARD",
        "aten.native_layer_norm.default[1]": "FORWARD",
        "aten.native_layer_norm.default[2]": "FORWARD",
    }


def test_a_view_is_named_with_what_it_is_a_view_of() -> None:
    found = saved(
        lambda x, w: (x.t() * w.sin()).sum(), torch.randn(3, 4), leaf(4, 3), cut=EVERYTHING
    )
    assert found == {"aten.t.default of args[0]": "ARGUMENT", "args[1]": "ARGUMENT"}


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_where_the_cheapest_cut_passes_is_a_reason_if_anything_runs_again(budget: float) -> None:
    """The sum over the rows is small, and what follows is computed again from it."""
    found = saved(
        lambda x: x.sum(0).sin().exp().sum(), leaf(50, 4), cut=partial(CUT, memory_budget=budget)
    )
    assert found == {"aten.sum.dim_IntList": "CHEAPEST"}


def test_what_the_forward_has_anyway_is_the_reason_if_nothing_runs_again() -> None:
    assert saved(lambda x: x.sum(0).square().sum(), leaf(50, 4), cut=EVERYTHING) == {
        "aten.sum.dim_IntList": "FORWARD"
    }


def test_an_expensive_op_a_result_and_a_draw_are_reasons() -> None:
    assert (
        saved(lambda x, w: (x @ w).sin(), torch.randn(3, 4), leaf(4, 4))["aten.mm.default"]
        == "EXPENSIVE"
    )
    assert saved(lambda x: x.exp(), leaf(3)) == {"aten.exp.default": "RESULT"}
    (why,) = (
        why
        for source, why in saved(lambda x: (x * torch.rand(3)).sum(), leaf(3)).items()
        if "rand" in source
    )
    assert why == "DRAW"


def test_the_view_of_an_expensive_result_is_saved_for_the_same_reason() -> None:
    found = saved(
        lambda x, w: ((x @ w).view(-1) ** 3).sum(), torch.randn(3, 4), leaf(4, 4), cut=EVERYTHING
    )
    (why,) = (
        why for source, why in found.items() if source == "aten.view.default of aten.mm.default"
    )
    assert why == "EXPENSIVE"


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
    assert found["aten.exp.default"] == "BOUNDARY"
