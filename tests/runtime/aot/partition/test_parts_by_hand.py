"""A joint graph made by hand, taken apart: what belongs where, what is handed over, and what is refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from runtime.aot.capture.origins import ORIGIN
from runtime.aot.partition.memory import Memory
from runtime.aot.partition.min_cut import INFINITE, min_cut
from runtime.aot.partition.network import Network
from runtime.aot.partition.parts import Parts
from runtime.aot.partition.reasons import Why, saved_values, source_of
from runtime.aot.partition.recompute import recomputable
from runtime.aot.partition.simplify import without_round_trips
from runtime.checkpoint import CheckpointPolicy

aten: Any = torch.ops.aten
X = torch.rand(3, 4)


class Joint:
    """A graph of the inputs ``primals_1``, ``primals_2`` and ``tangents_1``."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.inputs = [self.graph.placeholder(name) for name in ("primals_1", "primals_2", "tangents_1")]
        for n in self.inputs:
            n.meta["val"] = X

    def call(self, func: Any, *args: Any, val: Any = X) -> fx.Node:
        name = func._schema.name.partition("::")[2] if isinstance(func, torch._ops.OpOverload) else func.__name__
        n = self.graph.create_node("call_function", func, args, name=name)
        if val is not None:
            n.meta["val"] = val
        return n

    def parts(self, results: list[Any], gradients: list[Any], number: int | None = None, inputs: Any = None) -> Parts:
        self.graph.output([*results, *gradients])
        return Parts(fx.GraphModule({}, self.graph), len(results) if number is None else number, inputs)


@pytest.fixture
def joint() -> Joint:
    return Joint()


def names(nodes: Any) -> list[str]:
    return [n.name for n in nodes]


def test_forward_and_backward_are_what_their_results_need(joint: Joint) -> None:
    x, y, t = joint.inputs
    sin, cos, both = joint.call(aten.sin.default, x), joint.call(aten.cos.default, x), joint.call(aten.mul.Tensor, x, y)
    joint.call(aten.exp.default, y)  # nobody needs it
    grad = joint.call(aten.mul.Tensor, t, cos)
    late = joint.call(aten.mul.Tensor, grad, both)
    parts = joint.parts([sin, 3, None], [late, None])
    assert (parts.results, parts.gradients) == ([sin, 3, None], [late, None])
    assert (parts.primals, parts.tangents) == ([x, y], [t])
    assert names(parts.forward) == ["primals_1", "primals_2", "sin"]
    assert set(names(parts.after_tangents)) == {"tangents_1", "mul_1", "mul_2", "output"}
    assert set(names(parts.backward)) == {"cos", "mul", "mul_1", "mul_2", "tangents_1"}
    assert names(parts.candidates) == ["primals_1", "primals_2", "sin", "cos", "mul", "exp"]
    assert names(parts.forward_order([])) == ["sin"] and names(parts.forward_order([cos])) == ["sin", "cos"]
    assert names(parts.backward_order([x, y])) == ["cos", "mul_1", "mul", "mul_2"]
    assert names(parts.backward_order([both, cos])) == ["mul_1", "mul_2"]
    with pytest.raises(RuntimeError, match=r"^the backward needs primals_1, which is not saved$"):
        parts.backward_order([both])


@pytest.mark.parametrize(
    "number, error",
    [(-1, "num_fwd_outputs=-1, but the joint graph returns"), (3, "num_fwd_outputs=3"), (0, None), (1, None), (2, None)],
)
def test_the_number_of_results_is_one_of_a_graph_s(joint: Joint, number: int, error: str | None) -> None:
    x, _, t = joint.inputs
    grad = joint.call(aten.mul.Tensor, t, x)
    if error is not None:
        with pytest.raises(ValueError, match=error):
            joint.parts([x], [grad], number)
    elif number == 2:
        with pytest.raises(RuntimeError, match=r"^a forward result depends on a tangent: \['mul', 'tangents_1'\]$"):
            joint.parts([x], [grad], number)
    else:
        parts = joint.parts([x], [grad], number)
        assert (len(parts.results), len(parts.gradients)) == (number, 2 - number)


def test_a_graph_that_returns_no_flat_list_is_refused(joint: Joint) -> None:
    x, _, _ = joint.inputs
    joint.graph.output(x)
    with pytest.raises(ValueError, match="num_fwd_outputs=0, but the joint graph returns primals_1"):
        Parts(fx.GraphModule({}, joint.graph), 0)
    nested = Joint()
    with pytest.raises(ValueError, match="the joint graph returns nested results"):
        nested.parts([[nested.inputs[0]]], [])


def test_without_a_tangent_there_are_no_gradients() -> None:
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.output([a, None, b])
    module = fx.GraphModule({}, graph)
    with pytest.raises(ValueError, match="no input of the joint graph is known to be a tangent"):
        Parts(module, 2)
    assert Parts(module, 3).tangents == []
    assert Parts(module, 2, ([X], [X])).tangents == [b]


def test_effects_run_in_the_forward_and_those_of_the_backward_there(joint: Joint) -> None:
    x, _, t = joint.inputs
    early = joint.call(aten.rand_like.default, x)
    late = joint.call(aten.rand_like.default, x)
    late.meta[ORIGIN] = None
    grad = joint.call(aten.mul.Tensor, t, x)
    parts = joint.parts([x], [grad])
    assert (parts.effects, parts.late_effects) == ([early], [late])
    assert names(parts.forward_order([])) == ["rand_like"]
    assert names(parts.backward_order([x])) == ["rand_like_1", "mul"]


def test_of_a_call_with_several_results_the_items_that_the_backward_asks_for_are_saved(joint: Joint) -> None:
    x, _, t = joint.inputs
    sort = joint.call(aten.sort.default, x, val=(X, X.long()))
    values, places = joint.call(operator.getitem, sort, 0), joint.call(operator.getitem, sort, 1, val=X.long())
    number = joint.call(operator.add, 1, 2, val=3)
    grad = joint.call(aten.gather.default, t, 0, places)
    scaled = joint.call(aten.mul.Tensor, grad, number)
    parts = joint.parts([values], [scaled, x])
    assert parts.saved([number, sort]) == [places, x, number], "tensors, then numbers; and a gradient that the forward has"
    assert parts.saved([x, x]) == [x]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_cut_modules_say_the_facts_that_passes_of_torch_ask_for(joint: Joint) -> None:
    x, _, t = joint.inputs
    sparse = joint.call(aten._to_sparse.default, x, val=X.to_sparse())
    nested = joint.call(aten.alias.default, x, val=torch.nested.nested_tensor([X[0], X[0, :2]], layout=torch.strided))
    sin = joint.call(aten.sin.default, x)
    sin.meta["tensor_meta"] = "known"
    grad = joint.call(aten.mul.Tensor, t, x)
    forward, backward = joint.parts([sparse, nested, sin, joint.call(aten.cos.default, x)], [grad]).cut([x])
    facts = {n.name: n.meta.get("tensor_meta") for n in forward.graph.nodes if n.op == "call_function"}
    assert facts["_to_sparse"] is None and facts["alias"] is None and facts["sin"] == "known"
    assert (facts["cos"].shape, facts["cos"].dtype, facts["cos"].stride) == (X.shape, X.dtype, X.stride())
    assert all("tensor_meta" in n.meta for n in backward.graph.nodes if n.op != "output")
    assert "tensor_meta" not in x.meta and "tensor_meta" not in grad.meta, "the joint graph stays as it is"
    assert [type(m).__name__ for m in (forward, backward)] == ["Forward", "Backward"]


def test_arithmetic_with_sizes_gets_the_value_that_the_trace_has_left_out(joint: Joint) -> None:
    n = joint.call(aten.sym_size.int, joint.inputs[0], 0, val=5)
    double = joint.call(operator.mul, n, 2, val=None)
    more = joint.call(max, double, 3, val=None)
    of_tensor = joint.call(operator.getitem, joint.inputs[0], 0, val=None)
    alone = joint.call(max, 1, 2, val=None)
    joint.parts([joint.inputs[0]], [])
    assert (double.meta["val"], more.meta["val"]) == (10, 10)
    assert "val" not in of_tensor.meta and "val" not in alone.meta


def _region(n: fx.Node, number: int, wish: CheckpointPolicy = CheckpointPolicy.MUST_RECOMPUTE) -> fx.Node:
    n.meta |= {"recompute": wish, "ac_graph_id": number}
    return n


@pytest.mark.parametrize(
    "of, leaves",
    [
        ("the backward alone", False),
        ("the same region", False),
        ("another region", True),
        ("no region", True),
        ("a result", True),
        ("an item", False),
    ],
)
def test_a_value_leaves_its_region_where_the_forward_uses_it_outside(joint: Joint, of: str, leaves: bool) -> None:
    x, _, t = joint.inputs
    inner = _region(joint.call(aten.sin.default, x), 1)
    last: fx.Node = x
    if of in ("the same region", "another region", "no region"):
        last = joint.call(aten.exp.default, inner)
        if of != "no region":
            _region(last, 1 if of == "the same region" else 2)
    elif of == "an item":
        last = joint.call(operator.getitem, inner, 0)
    results = [inner] if of == "a result" else [joint.call(aten.cos.default, last)]
    if of == "the same region":
        _region(results[0], 1)
    parts = joint.parts(results, [joint.call(aten.mul.Tensor, t, inner)])
    assert parts.leaves_region(inner) is leaves
    assert parts.leaves_region(x) is False


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
    region = _region(joint.call(aten.exp.default, x), 1)
    forward = joint.call(aten.cat.default, [view, sin, inner_view, item, empty, region], size)
    _region(forward, 1)
    grad = joint.call(aten.addcmul.default, t, behind, sin)
    parts = joint.parts([forward], [grad])
    network = Network(parts, {y}, recomputable)
    bytes_of = {n.name: network._bytes(n) for n in parts.candidates}
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
    assert network.inside(region) and not network.inside(sin)


def test_a_price_is_that_of_the_call_and_at_least_one(joint: Joint) -> None:
    x, _, t = joint.inputs
    several = joint.call(aten.sort.default, x, val=(X, X.long()))
    item = joint.call(operator.getitem, several, 1, val=X.long())
    grad = joint.call(aten.gather.default, t, 0, item)
    network = Network(joint.parts([item], [grad]), (), recomputable)
    assert network.work(item) == network.work(several) == network.price_of(item) > 48 + 48 + 96
    assert (network.work(x), network.price_of(x)) == (0, 1)


def test_the_value_of_a_cut_is_that_of_its_edges_and_parallel_edges_add_up() -> None:
    assert min_cut(3, [(0, 1, 5), (0, 1, 2), (1, 2, 9)], 0, 2)[0] == 7
    assert min_cut(3, [(0, 1, INFINITE), (0, 1, INFINITE), (1, 2, 9)], 0, 2)[0] == 9
    assert min_cut(4, [(0, 1, 5), (2, 3, 1), (0, 3, 0)], 0, 3)[0] == 0
    assert min_cut(2, [(0, 1, 0)], 0, 1)[0] == 0
    large = 2**31
    value, side = min_cut(3, [(0, 1, large), (1, 2, large - 1), (0, 2, 3)], 0, 2)
    assert value == large + 2 and list(side) == [False, False, True]


def test_a_number_among_the_items_of_a_call_is_saved_as_a_size(joint: Joint) -> None:
    x, _, t = joint.inputs
    call = joint.call(aten._scaled_dot_product_flash_attention.default, x, x, x, val=(X, X, 7))
    values, number = joint.call(operator.getitem, call, 0), joint.call(operator.getitem, call, 2, val=7)
    grad = joint.call(aten.mul.Tensor, t, number)
    parts = joint.parts([values], [grad])
    found = saved_values(parts, Memory(parts), [x, number], {x: "args[0]"}, set(), True)
    assert [(v.why, v.bytes, v.dtype, v.shape, v.shares) for v in found] == [
        (Why.ARGUMENT, 48, torch.float32, (3, 4), None),
        (Why.SIZE, 8, None, (), None),
    ]


@pytest.mark.parametrize("recomputes, why", [(True, Why.CHEAPEST), (False, Why.FORWARD)])
def test_the_reason_of_a_value_is_that_of_what_it_shows_and_sharing_is_told(joint: Joint, recomputes: bool, why: Why) -> None:
    x, y, t = joint.inputs
    sin, product = joint.call(aten.sin.default, x), joint.call(aten.mm.default, x, y)
    views = [joint.call(aten.t.default, n) for n in (sin, product, x, y)]
    behind = joint.call(aten.exp.default, x)
    policy = _region(joint.call(aten.tanh.default, x), 1, CheckpointPolicy.MUST_SAVE)
    kept = joint.call(aten.cos.default, x)
    saved = [*views, sin, behind, policy, kept]
    forward = joint.call(aten.cat.default, [*views, sin, policy])
    grad = joint.call(aten.cat.default, [t, *saved])
    parts = joint.parts([forward, kept], [grad])
    found = saved_values(parts, Memory(parts), saved, {x: "args[0]"}, {y}, recomputes)
    assert [v.why for v in found] == [why, Why.EXPENSIVE, Why.ARGUMENT, Why.CLOSED_OVER, why, Why.CHEAPEST, Why.POLICY, Why.RESULT]
    assert [v.shares for v in found] == [None, None, None, None, "t", None, None, None]
    assert [source_of(v, {x: "args[0]"}) for v in views] == [
        "aten.t.default of aten.sin.default",
        "aten.t.default of aten.mm.default",
        "aten.t.default of args[0]",
        "aten.t.default of primals_2",
    ]


def test_the_item_of_a_call_is_named_with_its_number_and_that_of_a_view_with_what_it_shows(joint: Joint) -> None:
    x, _, _ = joint.inputs
    sort = joint.call(aten.sort.default, x, val=(X, X.long()))
    split = joint.call(aten.split.Tensor, x, 2, val=[X[:2], X[2:]])
    items = [joint.call(operator.getitem, call, 1) for call in (sort, split)]
    assert [source_of(n, {}) for n in items] == ["aten.sort.default[1]", "aten.split.Tensor of primals_1"]


def _simplified(f: Callable[[Tensor], Any], *sizes: int) -> list[str]:
    module = fx.experimental.proxy_tensor.make_fx(f)(torch.rand(*sizes))
    without_round_trips(module.graph)
    return [str(n.target).split(".")[1] for n in module.graph.nodes if n.op == "call_function"]


def test_a_transposition_back_is_none_where_no_result_is_what_it_started_from() -> None:
    assert _simplified(lambda x: x.sin().t().t().cos(), 3, 4) == ["sin", "cos"]
    assert _simplified(lambda x: (y := x.sin(), y.t().t()), 3, 4) == ["sin", "t", "t"]
    assert _simplified(lambda x: x.sin().transpose(0, 2).transpose(-1, -3).cos(), 2, 3, 4) == ["sin", "cos"]
    assert _simplified(lambda x: x.sin().transpose(0, 2).transpose(0, 1).cos(), 2, 3, 4) == ["sin", "transpose", "transpose", "cos"]
    assert _simplified(lambda x: x.sin().t().t().cos(), 3) == ["sin", "t", "t", "cos"]


def test_sizes_of_any_program_are_weighed_as_they_were() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    joint = Joint()
    x, _, t = joint.inputs
    x.meta["val"] = mode.from_tensor(torch.ones(5, 7))
    parts = joint.parts([joint.call(aten.sin.default, x, val=x.meta["val"])], [joint.call(aten.mul.Tensor, t, x)])
    assert Network(parts, (), recomputable)._bytes(x) == 5 * 7 * 4
