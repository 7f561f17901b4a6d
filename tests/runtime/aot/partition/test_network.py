"""What the cheapest cut saves, by the bytes of the values and by what may run again."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from runtime import aot
from runtime.aot.partition.network import INFINITE, Network
from runtime.aot.partition.recompute import recomputable

from .by_hand import Joint, X, region

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


def test_what_it_costs_to_save_a_value(joint: Joint) -> None:
    x, y, t = joint.inputs
    view = joint.call(aten.t.default, x)
    sin = joint.call(aten.sin.default, x)
    inner_view = joint.call(aten.t.default, sin)
    behind = joint.call(aten.cos.default, y)
    several = joint.call(aten.sort.default, x, val=(X, X.long()))
    item = joint.call(operator.getitem, several, 1, val=X.long())
    size = joint.call(operator.add, 1, 2, val=3)
    empty = joint.call(aten.clone.default, x, val=X[:0])
    inner = region(joint.call(aten.exp.default, x), 1)
    forward = joint.call(aten.cat.default, [view, sin, inner_view, item, empty, inner], size)
    region(forward, 1)
    grad = joint.call(aten.addcmul.default, t, behind, sin)
    parts = joint.parts([forward], [grad])
    network = Network(parts, {y}, recomputable)
    bytes_of = {n.name: network._price_of_saving(n) for n in parts.candidates}
    assert bytes_of == {
        "primals_1": 48,
        "primals_2": 0,
        "t": 48 + 1,
        "sin": 48,
        "t_1": 48,
        "cos": 48 + 1,
        "sort": INFINITE,
        "getitem": 96,
        "add": 8,
        "clone": 1,
        "exp": INFINITE,
        "cat": 48,
    }
    assert network.inside(inner) and not network.inside(sin)


def test_a_price_is_that_of_the_call_and_at_least_one(joint: Joint) -> None:
    x, _, t = joint.inputs
    several = joint.call(aten.sort.default, x, val=(X, X.long()))
    item = joint.call(operator.getitem, several, 1, val=X.long())
    grad = joint.call(aten.gather.default, t, 0, item)
    network = Network(joint.parts([item], [grad]), (), recomputable)
    assert network.work(item) == network.work(several) == network.price_of(item) > 48 + 48 + 96
    assert (network.work(x), network.price_of(x)) == (0, 1)


def test_sizes_of_any_program_are_weighed_as_they_were() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    joint = Joint()
    x, _, t = joint.inputs
    x.meta["val"] = mode.from_tensor(torch.ones(5, 7))
    parts = joint.parts(
        [joint.call(aten.sin.default, x, val=x.meta["val"])], [joint.call(aten.mul.Tensor, t, x)]
    )
    assert Network(parts, (), recomputable)._price_of_saving(x) == 5 * 7 * 4
