"""What the cheapest cut saves, by the bytes of the values and by what may run again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from runtime import aot

aten: Any = torch.ops.aten
CUT: Any = aot.min_cut_rematerialization_partition


def saved(f: Any, *sizes: tuple[int, ...], **options: Any) -> list[str]:
    """What a cut of the joint graph of ``f`` saves, by the ops that make it; arguments
    by their numbers."""
    args = [torch.ones(s, requires_grad=True) for s in sizes]
    joint = aot.aot_export_joint_simple(lambda *a: [f(*a)], args, trace_joint=True)
    forward, _ = CUT(joint, num_fwd_outputs=1, **options)
    results: Any = forward.graph.output_node().args[0]
    numbers = {
        n: str(i) for i, n in enumerate(n for n in forward.graph.nodes if n.op == "placeholder")
    }
    return sorted(numbers[n] if n in numbers else str(n.target).split(".")[1] for n in results[1:])


def test_of_a_chain_the_narrowest_place_is_saved_and_of_equal_ones_the_last() -> None:
    assert saved(lambda x: x.sum(0).sin().exp().sum(), (50, 4)) == ["sum"]
    assert saved(lambda x: x.exp().sin().expand(50, 4).cos().sum(), (1, 4)) == ["exp"]


def test_an_argument_that_lives_anyway_costs_nothing() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x.sum(0) * y).sin().sum()

    assert saved(f, (50, 4), (4,)) == ["1", "sum"]
    assert saved(f, (50, 4), (4,), static_lifetime_input_indices=[0]) == ["0", "1"]
    assert saved(f, (50, 4), (4,), static_lifetime_input_indices=[1]) == ["1", "sum"]


def test_of_two_of_one_size_an_argument_is_saved_rather_than_what_is_computed_from_it() -> None:
    assert saved(lambda x: x.t().sin().sum(), (4, 4)) == ["0"]
    assert saved(lambda x: x.view(-1).sin().sum(), (4, 4)) == ["0"]


def test_what_is_expensive_is_saved_and_may_be_allowed_to_run_again() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x @ y).sin().sum()

    assert saved(f, (4, 4), (4, 4)) == ["0", "1", "mm"]
    cheap = [aten.cos, aten.t, aten.transpose]
    assert saved(f, (4, 4), (4, 4), recomputable_ops=[aten.mm, *cheap]) == ["0", "1"]
    assert saved(f, (4, 4), (4, 4), recomputable_ops=[aten.mm.default, *cheap]) == ["0", "1"]
    assert saved(f, (4, 4), (4, 4), may_recompute=lambda n: True) == ["0", "1"]


def test_factors_of_a_gradient_that_may_not_run_again_are_saved() -> None:
    def f(x: Any) -> Any:
        return x.sin().exp().cos().sum()

    assert saved(f, (4,)) == ["0"]
    # -sin(exp(sin(x))) * exp(sin(x)) * cos(x)
    assert saved(f, (4,), recomputable_ops=[]) == ["cos", "exp", "neg"]


def test_smaller_dtypes_take_fewer_bytes() -> None:
    assert saved(lambda x: (x * (x.detach() > 0)).sum(), (50,), recomputable_ops=[aten.gt]) == [
        "gt"
    ]


@pytest.mark.parametrize(
    "draw", [lambda x: torch.nn.functional.dropout(x, 0.5), lambda x: x * torch.rand_like(x)]
)
def test_a_draw_is_saved_and_not_repeated(draw: Any) -> None:
    args = [torch.ones(9, requires_grad=True)]
    joint = aot.aot_export_joint_simple(lambda x: [draw(x.sin()).sum()], args, trace_joint=True)
    _, backward = CUT(joint, num_fwd_outputs=1)
    called = [n.target for n in backward.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    assert called and not [
        func for func in called if torch.Tag.nondeterministic_seeded in func.tags
    ]


def test_a_program_whose_gradient_needs_nothing_saves_nothing() -> None:
    assert saved(lambda x: x.sum(), (4, 4)) == []
    assert saved(lambda x: (x * 3 + 1).sum(), (4, 4)) == []


def test_a_value_of_unknown_size_is_refused_by_its_name() -> None:
    joint = aot.aot_export_joint_simple(
        lambda x: [x.sin().exp()], [torch.ones(3, requires_grad=True)], trace_joint=True
    )
    node = next(
        n for n in joint.graph.nodes if isinstance(n, fx.Node) and n.target is aten.sin.default
    )
    del node.meta["val"]
    with pytest.raises(ValueError, match=f"the size of {node.name} is not known: it has no meta"):
        CUT(joint, num_fwd_outputs=1)
