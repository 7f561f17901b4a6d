"""The sets of calls of which the two modules of a partition are made, by graphs by hand.

Inside: ``runtime.aot.partition.halves.Parts``. Two modules show the calls that they have, but not
which calls could have been in either of them."""

import operator
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot.partition.halves import Parts
from tests.runtime.aot.partition.by_hand import Joint, X, region
from tests.runtime.aot.partition.inside.parts_by_hand import parts_of

aten: Any = torch.ops.aten


def names(nodes: Any) -> list[str]:
    return [n.name for n in nodes]


def test_forward_and_backward_are_what_their_results_need(joint: Joint) -> None:
    x, y, t = joint.inputs
    sin, cos, both = (
        joint.call(aten.sin.default, x),
        joint.call(aten.cos.default, x),
        joint.call(aten.mul.Tensor, x, y),
    )
    joint.call(aten.exp.default, y)  # nobody needs it
    grad = joint.call(aten.mul.Tensor, t, cos)
    late = joint.call(aten.mul.Tensor, grad, both)
    parts = parts_of(joint, [sin, 3, None], [late, None])
    assert (parts.results, parts.gradients) == ([sin, 3, None], [late, None])
    assert (parts.primals, parts.tangents) == ([x, y], [t])
    assert names(parts.forward) == ["primals_1", "primals_2", "sin"]
    assert set(names(parts.after_tangents)) == {"tangents_1", "mul_1", "mul_2", "output"}
    assert set(names(parts.backward)) == {"cos", "mul", "mul_1", "mul_2", "tangents_1"}
    assert names(parts.candidates) == ["primals_1", "primals_2", "sin", "cos", "mul", "exp"]
    assert names(parts.forward_order([])) == ["sin"] and names(parts.forward_order([cos])) == [
        "sin",
        "cos",
    ]
    assert names(parts.backward_order([x, y])) == ["cos", "mul_1", "mul", "mul_2"]
    assert names(parts.backward_order([both, cos])) == ["mul_1", "mul_2"]
    _, backward = parts.cut([x, y])
    assert names(n for n in backward.graph.nodes if n.op == "call_function") == [
        "cos",
        "mul_1",
        "mul",
        "mul_2",
    ]
    with pytest.raises(RuntimeError, match=r"^the backward needs primals_1, which is not saved$"):
        parts.backward_order([both])


def test_calls_of_the_backward_keep_their_order_and_what_runs_again_comes_in_that_of_the_forward(
    joint: Joint,
) -> None:
    x, y, t = joint.inputs
    cos, exp = joint.call(aten.cos.default, x), joint.call(aten.exp.default, y)
    both = joint.call(aten.mul.Tensor, exp, cos)
    first, second = joint.call(aten.add.Tensor, t, both), joint.call(aten.neg.default, t)
    parts = parts_of(joint, [x], [second, first])
    assert names(parts.backward_order([x, y])) == ["cos", "exp", "mul", "add", "neg"]


def test_a_gradient_that_is_saved_is_not_computed(joint: Joint) -> None:
    x, _, t = joint.inputs
    sin = joint.call(aten.sin.default, x)
    parts = parts_of(joint, [sin], [sin, joint.call(aten.mul.Tensor, t, sin)])
    assert names(parts.saved([])) == ["sin"] and names(parts.backward_order([sin])) == ["mul"]


@pytest.mark.parametrize(
    "number, error",
    [
        (-1, "num_fwd_outputs=-1, but the joint graph returns"),
        (3, "num_fwd_outputs=3"),
        (0, None),
        (1, None),
        (2, None),
    ],
)
def test_the_number_of_results_is_one_of_a_graph_s(
    joint: Joint, number: int, error: str | None
) -> None:
    x, _, t = joint.inputs
    grad = joint.call(aten.mul.Tensor, t, x)
    if error is not None:
        with pytest.raises(ValueError, match=error):
            parts_of(joint, [x], [grad], number)
    elif number == 2:
        with pytest.raises(
            RuntimeError, match=r"^a forward result depends on a tangent: \['mul', 'tangents_1'\]$"
        ):
            parts_of(joint, [x], [grad], number)
    else:
        parts = parts_of(joint, [x], [grad], number)
        assert (len(parts.results), len(parts.gradients)) == (number, 2 - number)


def test_a_graph_that_returns_no_flat_list_is_refused(joint: Joint) -> None:
    x, _, _ = joint.inputs
    joint.graph.output(x)
    with pytest.raises(
        ValueError, match="num_fwd_outputs=0, but the joint graph returns primals_1"
    ):
        Parts(fx.GraphModule({}, joint.graph), 0)
    nested = Joint()
    with pytest.raises(ValueError, match="the joint graph returns nested results"):
        parts_of(nested, [[nested.inputs[0]]], [])


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
    late.meta["origin"] = None
    grad = joint.call(aten.mul.Tensor, t, x)
    parts = parts_of(joint, [x], [grad])
    assert (parts.effects, parts.late_effects) == ([early], [late])
    assert names(parts.forward_order([])) == ["rand_like"]
    assert names(parts.backward_order([x])) == ["rand_like_1", "mul"]


def test_of_a_call_with_several_results_the_items_that_the_backward_asks_for_are_saved(
    joint: Joint,
) -> None:
    x, _, t = joint.inputs
    sort = joint.call(aten.sort.default, x, val=(X, X.long()))
    values, places = (
        joint.call(operator.getitem, sort, 0),
        joint.call(operator.getitem, sort, 1, val=X.long()),
    )
    number = joint.call(operator.add, 1, 2, val=3)
    grad = joint.call(aten.gather.default, t, 0, places)
    scaled = joint.call(aten.mul.Tensor, grad, number)
    parts = parts_of(joint, [values], [scaled, x])
    assert parts.saved([number, sort]) == [places, x, number], (
        "tensors, then numbers; and a gradient that the forward has"
    )
    assert parts.saved([x, x]) == [x]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_cut_modules_say_the_facts_that_passes_of_torch_ask_for(joint: Joint) -> None:
    x, _, t = joint.inputs
    sparse = joint.call(aten._to_sparse.default, x, val=X.to_sparse())
    nested = joint.call(
        aten.alias.default,
        x,
        val=torch.nested.nested_tensor([X[0], X[0, :2]], layout=torch.strided),
    )
    sin = joint.call(aten.sin.default, x)
    sin.meta["tensor_meta"] = "known"
    grad = joint.call(aten.mul.Tensor, t, x)
    forward, backward = parts_of(
        joint, [sparse, nested, sin, joint.call(aten.cos.default, x)], [grad]
    ).cut([x])
    facts = {
        n.name: n.meta.get("tensor_meta") for n in forward.graph.nodes if n.op == "call_function"
    }
    assert facts["_to_sparse"] is None and facts["alias"] is None and facts["sin"] == "known"
    assert (facts["cos"].shape, facts["cos"].dtype, facts["cos"].stride) == (
        X.shape,
        X.dtype,
        X.stride(),
    )
    assert all("tensor_meta" in n.meta for n in backward.graph.nodes if n.op != "output")
    assert "tensor_meta" not in x.meta and "tensor_meta" not in grad.meta, (
        "the joint graph stays as it is"
    )
    assert [type(m).__name__ for m in (forward, backward)] == ["Forward", "Backward"]


def test_arithmetic_with_sizes_gets_the_value_that_the_trace_has_left_out(joint: Joint) -> None:
    n = joint.call(aten.sym_size.int, joint.inputs[0], 0, val=5)
    double = joint.call(operator.mul, n, 2, val=None)
    more = joint.call(max, double, 3, val=None)
    of_tensor = joint.call(operator.getitem, joint.inputs[0], 0, val=None)
    alone = joint.call(max, 1, 2, val=None)
    parts_of(joint, [joint.inputs[0]], [])
    assert (double.meta["val"], more.meta["val"]) == (10, 10)
    assert "val" not in of_tensor.meta and "val" not in alone.meta


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
def test_a_value_leaves_its_region_where_the_forward_uses_it_outside(
    joint: Joint, of: str, leaves: bool
) -> None:
    x, _, t = joint.inputs
    inner = region(joint.call(aten.sin.default, x), 1)
    last: fx.Node = x
    if of in ("the same region", "another region", "no region"):
        last = joint.call(aten.exp.default, inner)
        if of != "no region":
            region(last, 1 if of == "the same region" else 2)
    elif of == "an item":
        last = joint.call(operator.getitem, inner, 0)
    results = [inner] if of == "a result" else [joint.call(aten.cos.default, last)]
    if of == "the same region":
        region(results[0], 1)
    parts = parts_of(joint, results, [joint.call(aten.mul.Tensor, t, inner)])
    assert parts.leaves_region(inner) is leaves
    assert parts.leaves_region(x) is False
