"""Choices of cuts by their price, and what a network says of calls.

Inside: ``choices`` and ``Network`` of ``runtime.aot.partition``. A budget shows the one choice
that it ends with; that work rises while bytes fall holds along all of them."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime import aot
from runtime.aot.partition import partitions
from runtime.aot.partition.budget import choices
from runtime.aot.partition.halves import Parts
from runtime.aot.partition.network import Network
from runtime.aot.partition.recompute import Again, again, is_view, recomputable
from tests.runtime.aot.partition.by_hand import Joint, X
from tests.runtime.aot.partition.inside.parts_by_hand import parts_of
from tests.runtime.aot.partition.random_programs import joint_graph

aten: Any = torch.ops.aten


def network(seed: int) -> Network:
    return Network(Parts(joint_graph(seed), 1), set(), recomputable)


@pytest.mark.parametrize("seed", range(40))
def test_along_the_choices_work_rises_while_peak_and_saved_bytes_fall(seed: int) -> None:
    chain = choices(network(seed))
    for larger, smaller in itertools.pairwise(chain):
        assert smaller.work > larger.work
        assert smaller.peak < larger.peak
        assert smaller.bytes <= larger.bytes


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_cuts_at_rising_prices_are_nested(seed: int) -> None:
    net = network(seed)
    before: set[Any] | None = None
    for factor in (0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0):
        again = set(
            net.recomputed(
                net.cut(price=lambda n, factor=factor: math.ceil(factor * net.price_of(n)))  # type: ignore[misc]
            )
        )
        dear = {n for n in again if not net.allowed[n]}
        assert before is None or dear <= before
        before = dear


@pytest.mark.parametrize("seed", range(20))
def test_the_first_choice_runs_no_expensive_op_again_and_none_runs_what_is_impure(
    seed: int,
) -> None:
    net = network(seed)
    chain = choices(net)
    assert all(recomputable(n) for n in net.recomputed(chain[0].saved))
    for choice in chain:
        assert all(
            again(n) in (Again.LOW, Again.HIGH, Again.SIZE) for n in net.recomputed(choice.saved)
        )


def test_the_ops_that_a_caller_allows_are_the_only_ones_to_run_again() -> None:
    module = network(0).parts.module
    assert "sin" in {
        n.target.overloadpacket._qualified_op_name.split("::")[1]
        for n in module.graph.nodes
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)
    }
    for ops, expected in (
        ([torch.ops.aten.sin], {"sin"}),
        ([torch.ops.aten.mm.default], {"mm"}),
        ([], set()),
    ):
        _, backward = aot.min_cut_rematerialization_partition(
            module, None, "inductor", ops, num_fwd_outputs=1
        )
        forward_names = {n.name for n in Parts(module, 1).forward}
        ran = {
            n.target._schema.name[6:]
            for n in backward.graph.nodes
            if n.op == "call_function" and n.name in forward_names
        }
        assert ran <= expected


def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    cut = aot.min_cut_rematerialization_partition
    draws = aot.aot_export_joint_simple(
        lambda x: [F.dropout(x, 0.5)], [torch.randn(3, requires_grad=True)], trace_joint=True
    )
    drawing = {
        n.target for n in draws.graph.nodes if n.op == "call_function" and again(n) is Again.DRAW
    }
    with pytest.raises(ValueError, match=r"recomputable_ops has aten.*random draw"):
        cut(draws, recomputable_ops=drawing, num_fwd_outputs=1)
    with pytest.raises(ValueError, match="compiler='eager'"):
        cut(draws, compiler="eager", num_fwd_outputs=1)
    with pytest.raises(ValueError, match="num_fwd_outputs=7"):
        cut(draws, num_fwd_outputs=7)
    with pytest.raises(ValueError, match="exclude each other"):
        cut(draws, recomputable_ops=[], may_recompute=recomputable, num_fwd_outputs=1)
    unsized = torch.fx.symbolic_trace(
        lambda primals_1, tangents_1: [primals_1.sin(), tangents_1 * primals_1.cos()]
    )
    with pytest.raises(ValueError, match="no meta"):
        cut(unsized, num_fwd_outputs=1)
    unknown = torch.fx.symbolic_trace(lambda a, b: [a.sin(), b * a.cos()])
    with pytest.raises(ValueError, match="known to be a tangent"):
        cut(unknown, num_fwd_outputs=1)


def products(number: int) -> Network:
    """A chain of matrix products by one weight, each of which the backward needs,
    the last one first."""
    joint = Joint()
    value, weight, grad = joint.inputs
    values = [value]
    for _ in range(number):
        values.append(joint.call(aten.mm.default, values[-1], weight))
    for value in reversed(values):
        grad = joint.call(aten.mul.Tensor, grad, value)
    return Network(
        parts_of(joint, [joint.call(aten.sum.default, values[-1], val=X[0, 0])], [grad]),
        set(),
        recomputable,
    )


@pytest.mark.parametrize(
    "number, segments, peak",
    [
        (5, 2, 5),
        (12, 3, 8),
        (20, 4, 10),
        (42, 5, 14),
        (49, 6, 15),
        (72, 8, 18),
        (110, 10, 22),
        (156, 12, 26),
        (200, 16, 29),
    ],
)
def test_a_long_chain_takes_the_least_memory_in_about_as_many_segments_as_each_has_calls(
    number: int, segments: int, peak: int
) -> None:
    """Saved are the argument, the weight, and a product at each border. The loss
    takes four bytes."""
    least = choices(products(number))[-1]
    assert len(least.saved) == 2 + (segments - 1)
    assert least.peak == peak * X.nbytes + 4


def test_a_budget_of_one_measures_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise AssertionError("choices are measured")

    monkeypatch.setattr(partitions, "within", fail)
    module = network(0).parts.module
    aot.min_cut_rematerialization_partition(module, num_fwd_outputs=1)
    with pytest.raises(AssertionError, match="measured"):
        aot.min_cut_rematerialization_partition(module, num_fwd_outputs=1, memory_budget=0.9)


def test_views_cost_the_least_that_a_call_can() -> None:
    made = network(0)
    assert {made.price_of(n) for n in made.vertex if is_view(n)} == {1}


def test_a_choice_cannot_be_changed() -> None:
    chosen: Any = choices(network(0))[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.work = 0
