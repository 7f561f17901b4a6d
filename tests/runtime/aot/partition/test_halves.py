"""The two modules of a partition: what they take and give, and that nothing in them is idle."""

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime import aot

aten: Any = torch.ops.aten
CUT: Any = aot.min_cut_rematerialization_partition
CUTS: list[Any] = [aot.default_partition, CUT, partial(CUT, memory_budget=0)]


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
