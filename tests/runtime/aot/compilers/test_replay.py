"""Graphs run as straight Python, and the calls that need not run at all."""

import operator
import weakref
from typing import Any

import pytest
import torch
from torch import fx

import runtime
from runtime import aot

from .generated_code import call_in

aten = torch.ops.aten


def graph_of(func: Any, *args: Any, val: Any) -> fx.GraphModule:
    """A graph that returns the value of one call, whose tensors it is given."""
    graph = fx.Graph()
    nodes: list[Any] = []
    for i, a in enumerate(args):
        nodes.append(graph.placeholder(f"x{i}") if isinstance(a, torch.Tensor) else a)
        if isinstance(a, torch.Tensor):
            nodes[-1].meta["val"] = a
    n = graph.call_function(func, tuple(nodes))
    n.meta["val"] = val
    graph.output([n])
    return fx.GraphModule({}, graph)


def called(func: Any, *args: Any, val: Any) -> tuple[Any, str]:
    """What stands for a call in the code, and the text of its arguments."""
    return call_in(
        graph_of(func, *args, val=val), *(a for a in args if isinstance(a, torch.Tensor))
    )


def _run(module: fx.GraphModule, args: list[Any]) -> Any:
    """The results of the second call, for which there is code."""
    run = aot.nop(module, [])
    run(list(args))
    return run(args)


def test_a_binding_stands_for_the_overload_that_it_calls() -> None:
    x = torch.randn(2, 3)
    assert called(aten.mul.Tensor, x, x, val=x * x) == (torch.mul, "v_x0, v_x1")
    expanded = called(aten.expand.default, x, [4, 2, 3], val=x.expand(4, 2, 3))
    assert expanded == (torch._C.TensorBase.expand, "v_x0, [4, 2, 3]")


def test_a_number_stands_for_a_list_of_one_where_that_is_the_same_call() -> None:
    x = torch.randn(2, 3)
    assert called(aten.sum.dim_IntList, x, [0], val=x.sum(0)) == (torch.sum, "v_x0, 0")
    assert called(aten.flip.default, x, [0], val=x.flip(0)) == (torch.flip, "v_x0, [0]")
    backward, cotangent = aten.upsample_nearest1d_backward.default, torch.randn(2, 3, 8)
    found = called(backward, cotangent, [8], [2, 3, 4], val=torch.randn(2, 3, 4))
    assert found == (backward._op, "v_x0, [8], [2, 3, 4]")


@pytest.mark.parametrize(
    "func, other", [(aten.mul.Scalar, 2), (aten.tanh_backward.default, torch.ones(3, 3))]
)
def test_a_binding_that_calls_another_overload_or_does_not_exist_is_not_taken(
    func: Any, other: Any
) -> None:
    x = torch.randn(3, 3)
    assert called(func, x, other, val=func(x, other))[0] == func._op


def test_finding_a_binding_runs_nothing() -> None:
    """The second call generates the code, and its own calls are all that happens."""
    x = torch.zeros(3)
    written = graph_of(aten.add_.Tensor, x, 1, val=x)
    assert _run(written, [x])[0] is x and x.tolist() == [2.0] * 3
    torch.manual_seed(0)
    drawn = _run(graph_of(aten.bernoulli.p, x, 0.5, val=x), [x])[0]
    torch.manual_seed(0)
    aten.bernoulli.p(x, 0.5)
    assert torch.equal(drawn, aten.bernoulli.p(x, 0.5))


def test_a_replayed_graph_frees_each_tensor_after_its_last_use() -> None:
    alive: list[bool] = []

    def watch(t: Any, seen: Any) -> Any:
        alive.append(seen() is not None)
        return t

    graph = fx.Graph()
    x, ref = graph.placeholder("x"), graph.placeholder("ref")
    first = graph.call_function(watch, (x, ref))
    sine = graph.call_function(aten.sin.default, (first,))
    graph.output([graph.call_function(watch, (sine, ref))])
    run = aot.nop(fx.GraphModule(torch.nn.Module(), graph), [])
    for _ in range(2):
        alive.clear()
        t = torch.randn(3)
        args = [t, weakref.ref(t)]
        del t
        (out,) = run(args)
    assert alive == [True, False] and args == [] and out.shape == (3,)


def test_a_replay_records_nothing_on_torchs_tape() -> None:
    w = torch.nn.Parameter(torch.randn(3))
    graph = fx.Graph()
    root = torch.nn.Module()
    root.w = w
    graph.output(graph.call_function(aten.sin.default, (graph.get_attr("w"),)))
    out = _run(fx.GraphModule(root, graph), [])
    assert not out.requires_grad and torch.equal(out, w.detach().sin())


@pytest.mark.parametrize("cut", [aot.default_partition, aot.min_cut_rematerialization_partition])
def test_a_weight_is_not_transposed_back_and_forth(cut: Any) -> None:
    backwards: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        backwards.append(module)
        return aot.nop(module, inputs)

    x = runtime.wrap(torch.randn(4, 3), requires_grad=True)
    w = runtime.wrap(torch.randn(5, 3), requires_grad=True)
    aot.aot_function(torch.nn.functional.linear, aot.nop, keep, cut)(x, w).sum().backward()
    transposed = [
        n for n in backwards[0].graph.nodes if n.target in (aten.t.default, aten.transpose.int)
    ]
    assert len(transposed) == 1  # of the cotangent, for the weight's gradient
    expected = torch.ones(4, 5)
    torch.testing.assert_close(x.grad, runtime.wrap(expected @ runtime.unwrap(w)))
    torch.testing.assert_close(w.grad, runtime.wrap(expected.t() @ runtime.unwrap(x)))


def test_a_result_that_is_its_argument_transposed_twice_is_a_tensor_of_its_own() -> None:
    x = runtime.wrap(torch.randn(2, 3), requires_grad=True)
    y, z = aot.aot_function(lambda x: (x.t().t(), x * 2), aot.nop)(x)
    assert y is not x and y.data_ptr() == x.data_ptr()
    (y.sum() + z.sum()).backward()
    assert torch.equal(runtime.unwrap(x.grad), torch.full((2, 3), 3.0))


def test_an_argument_may_be_a_slice() -> None:
    module = graph_of(operator.getitem, torch.ones(5), slice(1, None, 2), val=torch.ones(2))
    assert _run(module, [torch.arange(5.0)])[0].tolist() == [1.0, 3.0]


def test_a_slice_may_begin_at_a_number_of_the_graph() -> None:
    graph = fx.Graph()
    x, start = graph.placeholder("x"), graph.placeholder("start")
    x.meta["val"], start.meta["val"] = torch.ones(5), 1
    item = graph.call_function(operator.getitem, (x, slice(start, 4, start)))
    item.meta["val"] = torch.ones(3)
    graph.output([item])
    run = aot.nop(fx.GraphModule(torch.nn.Module(), graph), [])
    for number, expected in ((2, [2.0]), (1, [1.0, 2.0, 3.0]), (3, [3.0])):
        assert run([torch.arange(5.0), number])[0].tolist() == expected


def test_arguments_of_every_kind_reach_a_call() -> None:
    def taken(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    rest = [None, True, 3, 2.5, "s", torch.Size([2]), torch.float64]
    n = graph.call_function(
        taken, (x, [x, 1], (x,), (), {"a": x, "b": [x]}, *rest), {"k": (x, [x]), "d": {"e": x}}
    )
    graph.output((n, x))
    t = torch.zeros(2)
    (args, kwargs), same = _run(fx.GraphModule(torch.nn.Module(), graph), [t])
    assert same is t and kwargs == {"k": (t, [t]), "d": {"e": t}}
    assert args[:5] == (t, [t, 1], (t,), (), {"a": t, "b": [t]}) and list(args[5:]) == rest
