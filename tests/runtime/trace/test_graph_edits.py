"""Edits of graphs: calls are added, copied and left out as torch's own graph does it."""

from __future__ import annotations

import torch
from torch import fx

from runtime.trace.graph_edits import add_call, copy_of, has_effect, without_unused

aten = torch.ops.aten


def _graph() -> tuple[fx.Graph, fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = add_call(graph, aten.add.Tensor, (x, x), {"alpha": 2}, "add")
    graph.output([y])
    return graph, x


def test_an_added_call_is_the_one_that_torch_creates() -> None:
    ours, _ = _graph()
    theirs = fx.Graph()
    x = theirs.placeholder("x")
    theirs.output(
        [theirs.create_node("call_function", aten.add.Tensor, (x, x), {"alpha": 2}, "add")]
    )
    assert str(ours) == str(theirs)
    assert fx.GraphModule({}, ours).code == fx.GraphModule({}, theirs).code


def test_arguments_in_lists_are_users() -> None:
    graph, x = _graph()
    with graph.inserting_before(graph.output_node()):
        stacked = add_call(graph, aten.stack.default, ([x, x], 0))
    assert stacked.all_input_nodes == [x]
    assert stacked in x.users


def test_a_copy_computes_the_same_and_is_another_graph() -> None:
    graph, x = _graph()
    x.meta["val"] = 3
    copied = copy_of(graph)
    x.meta["val"] = 4
    next(n for n in graph.nodes if n.op == "call_function").args = (x, 1)
    t = torch.tensor([1.0, 2.0])
    assert torch.equal(fx.GraphModule({}, copied)(t)[0], t + 2 * t)
    assert [n.meta.get("val") for n in copied.nodes if n.op == "placeholder"] == [3]
    assert [n.name for n in copied.nodes] == [n.name for n in graph.nodes]


def test_unused_calls_without_effect_are_left_out_with_what_only_they_use() -> None:
    graph, x = _graph()
    with graph.inserting_before(graph.output_node()):
        constant = graph.get_attr("c")
        add_call(graph, aten.sin.default, (add_call(graph, aten.mul.Tensor, (x, constant)),))
        add_call(graph, aten.mul_.Tensor, (x, 2))
        add_call(graph, aten.rand_like.default, (x,))
    without_unused(graph)
    assert [str(n.target) for n in graph.nodes] == [
        "x",
        "aten.add.Tensor",
        "aten.mul_.Tensor",
        "aten.rand_like.default",
        "output",
    ]


def test_an_op_that_returns_nothing_has_an_effect() -> None:
    graph, x = _graph()
    with graph.inserting_before(graph.output_node()):
        check = add_call(graph, aten._assert_async.default, (x,))
        size = add_call(graph, aten.sym_size.int, (x, 0))
    assert has_effect(check)
    assert not has_effect(size)
