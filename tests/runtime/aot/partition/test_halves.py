"""The two modules of a partition: what they take and give, and that nothing in them is idle."""

import operator
import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

import runtime
from runtime import aot
from runtime.aot.capture.origins import ORIGIN
from runtime.aot.partition.halves import Parts

from .by_hand import Joint, X, region

CUT: Any = aot.min_cut_rematerialization_partition
CUTS: list[Any] = [aot.default_partition, CUT, partial(CUT, memory_budget=0)]
aten: Any = torch.ops.aten


class Graphs:
    """The forward and backward module of a compiled function, and its joint module."""

    def __init__(self, f: Any, *args: Any, cut: Any = CUT, dynamic: bool = False) -> None:
        modules: list[torch.fx.GraphModule] = []

        def keep(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            modules.append(module)
            return aot.nop(module, inputs)

        def noted(joint: torch.fx.GraphModule, *rest: Any, **options: Any) -> Any:
            self.joint, self.n_results = joint, options["num_fwd_outputs"]
            return cut(joint, *rest, **options)

        out = aot.aot_function(f, keep, keep, noted, dynamic=dynamic)(*args)
        out.sum().backward()
        self.forward, self.backward = modules

    @property
    def results(self) -> list[Any]:
        found: Any = self.forward.graph.output_node().args[0]
        return list(found[: self.n_results])

    @property
    def saved(self) -> list[Any]:
        found: Any = self.forward.graph.output_node().args[0]
        return list(found[self.n_results :])


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.layer_norm(x @ w, (4,)).relu(), 0.5) @ w


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("cut", CUTS)
def test_every_call_is_for_a_result_or_a_draw(cut: Any) -> None:
    graphs = Graphs(block, *inputs(), cut=cut)
    for module in (graphs.forward, graphs.backward):
        for n in module.graph.nodes:
            if n.op == "call_function":
                assert n.users or n.is_impure()
    assert all(n.users for n in graphs.backward.graph.nodes if n.op == "placeholder")


@pytest.mark.parametrize("cut", CUTS)
def test_nodes_keep_their_names_and_have_the_meta_that_passes_ask_for(cut: Any) -> None:
    graphs = Graphs(block, *inputs(), cut=cut)
    known = {n.name for n in graphs.joint.graph.nodes}
    for module in (graphs.forward, graphs.backward):
        for n in module.graph.nodes:
            if n.op != "output":
                assert n.name in known
                assert (
                    not isinstance(n.meta["val"], torch.Tensor)
                    or n.meta["tensor_meta"].shape == n.meta["val"].shape
                )


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_saved_is_what_the_backward_takes(cut: Any) -> None:
    graphs = Graphs(block, *inputs(), cut=cut)
    given = [n.name for n in graphs.backward.graph.find_nodes(op="placeholder")]
    assert given == [*(n.name for n in graphs.saved), "tangents_1"]
    assert len(set(given)) == len(given)


def test_a_result_that_the_backward_needs_is_handed_over_as_it_is() -> None:
    graphs = Graphs(lambda x: x.exp(), torch.randn(3, requires_grad=True))
    assert graphs.results == graphs.saved
    assert len(graphs.forward.graph.find_nodes(op="call_function", target=aten.exp.default)) == 1


def test_the_default_partition_saves_of_several_results_only_what_the_backward_uses() -> None:
    """The normalized values themselves serve the forward alone."""
    graphs = Graphs(
        lambda x: F.layer_norm(x, (4,)).sum() * 2,
        torch.randn(3, 4, requires_grad=True),
        cut=aot.default_partition,
    )
    assert [
        n.args[1] for n in graphs.saved if n.op == "call_function" and n.name.startswith("getitem")
    ] == [1, 2]


@pytest.mark.parametrize("cut", CUTS)
def test_sizes_of_a_dynamic_graph_are_saved_as_numbers_after_the_tensors(cut: Any) -> None:
    graphs = Graphs(
        lambda x, y: x.sum(0) + (x * y).sum(),
        *(torch.randn(3, 5, requires_grad=True) for _ in "xy"),
        cut=cut,
        dynamic=True,
    )
    numbers = [not isinstance(n.meta["val"], torch.Tensor) for n in graphs.saved]
    assert numbers == sorted(numbers)


def test_where_a_size_will_do_no_tensor_is_saved() -> None:
    graphs = Graphs(lambda x: x.sum(0), torch.randn(3, 5, requires_grad=True), dynamic=True)
    assert 1 <= len(graphs.saved) <= 2
    assert all(isinstance(n.meta["val"], torch.SymInt) for n in graphs.saved)


def written(seed: int) -> Any:
    """A random program that reads ``b``, or a view of it, before, between and after writes to it.

    It copies what its derivative needs. A partition may make the copy again from ``b``.
    """
    source = random.Random(seed)
    steps = [(source.randrange(4), source.randrange(4)) for _ in range(source.randint(4, 10))]

    def program(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        views = [b, b.t(), b[1:], b.view(-1)]
        y = x
        for kind, which in steps:
            view = views[which]
            if kind == 0:
                y = (y * b.clone()).sin()
            elif kind == 1:
                y = (y @ views[which % 2].clone()).tanh()
            elif kind == 2:
                view.mul_(1.25)
            else:
                view.add_(y.detach().mean())
        return (y * views[1].clone()).sum() + views[2].sin().sum()

    return program


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("seed", range(25))
def test_a_backward_never_reads_an_argument_as_it_was_written_later(seed: int, cut: Any) -> None:
    program, x, b = written(seed), torch.randn(4, 4), torch.randn(4, 4)
    leaf, expected = x.clone().requires_grad_(), b.clone()
    torch.autograd.backward(program(leaf, expected))
    given, buffer = runtime.wrap(x, requires_grad=True), b.clone()
    aot.aot_function(program, aot.nop, partition_fn=cut)(given, buffer).backward()
    torch.testing.assert_close(buffer, expected)
    torch.testing.assert_close(runtime.unwrap(given.grad), leaf.grad)


def test_a_size_that_depends_on_values_can_be_weighed() -> None:
    """The number of selected elements is unknown in the trace, and the cut compares bytes."""
    x, mask = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([True, False, True, True])
    run: Any = aot.aot_function(
        lambda x, mask: torch.masked_select(x.exp(), mask).square().sum(),
        aot.nop,
        partition_fn=aot.min_cut_rematerialization_partition,
        dynamic=True,
    )
    y = runtime.wrap(x, True)
    run(y, mask).backward()
    torch.testing.assert_close(runtime.unwrap(y.grad), torch.where(mask, 2 * (2 * x).exp(), 0))


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
    parts = joint.parts([sin, 3, None], [late, None])
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
    parts = joint.parts([x], [second, first])
    assert names(parts.backward_order([x, y])) == ["cos", "exp", "mul", "add", "neg"]


def test_a_gradient_that_is_saved_is_not_computed(joint: Joint) -> None:
    x, _, t = joint.inputs
    sin = joint.call(aten.sin.default, x)
    parts = joint.parts([sin], [sin, joint.call(aten.mul.Tensor, t, sin)])
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
            joint.parts([x], [grad], number)
    elif number == 2:
        with pytest.raises(
            RuntimeError, match=r"^a forward result depends on a tangent: \['mul', 'tangents_1'\]$"
        ):
            joint.parts([x], [grad], number)
    else:
        parts = joint.parts([x], [grad], number)
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
    parts = joint.parts([values], [scaled, x])
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
    forward, backward = joint.parts(
        [sparse, nested, sin, joint.call(aten.cos.default, x)], [grad]
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
    joint.parts([joint.inputs[0]], [])
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
    parts = joint.parts(results, [joint.call(aten.mul.Tensor, t, inner)])
    assert parts.leaves_region(inner) is leaves
    assert parts.leaves_region(x) is False
