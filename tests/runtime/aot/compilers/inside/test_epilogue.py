"""New values of arguments are written at the end of a graph, where no result shows what
the argument was.

Inside: ``runtime.aot.compilers.inductor_graphs``. Inductor compiles this graph to C++, which gives
the same results wherever the writes stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime.aot.compilers.inductor_graphs import write_at_the_end
from runtime.aot.compilers.placing import DESTINATIONS, Destination
from runtime.jit import jit
from tests.runtime.aot.compilers.by_hand import node_of

aten = torch.ops.aten


def captured(program: Callable[..., Any], *args: Tensor) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    jit(program, compiler=keep)(*args)
    return graphs[0]


def written(program: Callable[..., Any], *args: Tensor) -> tuple[fx.GraphModule, dict[int, int]]:
    module = captured(program, *(x.clone() for x in args))
    found = write_at_the_end(module.graph, module.meta[DESTINATIONS])
    module.graph.lint()
    module.recompile()
    return module, found


def test_a_graph_writes_the_new_value_of_an_argument_to_it() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x.sum() * y

    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    module, found = written(program, x, y)
    assert found == {0: 1}
    results = module(x, y)
    assert x.tolist() == [4.0, 7.0] and y.tolist() == [3.0, 5.0]
    assert results[0] is None and results[1].tolist() == [33.0, 55.0]


def test_every_write_of_the_program_counts() -> None:
    def program(x: Tensor) -> None:
        x.mul_(2)
        x.add_(1)

    assert written(program, torch.ones(2))[1] == {0: 2}


def test_two_arguments_may_exchange_their_values() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        before = x.clone()
        x.copy_(y)
        y.copy_(before)

    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    module, _ = written(program, x, y)
    module(x, y)
    assert (x.tolist(), y.tolist()) == ([3.0, 4.0], [1.0, 2.0])


def test_an_argument_whose_memory_is_a_result_is_left_to_the_caller() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2, 3)
    row = graph.call_function(aten.select.int, (x, 0, 1))
    new = graph.call_function(aten.add.Tensor, (x, 1))
    graph.output([new, row])
    module = captured(lambda x: x.add_(1), torch.ones(2, 3))
    assert write_at_the_end(graph, module.meta[DESTINATIONS]) == {}
    assert graph.output_node().args[0] == [new, row]


X = torch.rand(4, 3)


@pytest.mark.parametrize(
    "case, written",
    [
        ("plain", True),
        ("twice a result", False),
        ("its memory is returned", False),
        ("lazy", False),
        ("no node", False),
    ],
)
def test_a_new_value_is_written_at_the_end_where_no_result_shows_the_former_one(
    case: str, written: bool
) -> None:
    graph = fx.Graph()
    x = node_of(torch.complex(X, X).conj() if case == "lazy" else X, graph)
    new, view = (
        graph.call_function(aten.mul.Tensor, (x, 2)),
        graph.call_function(aten.t.default, (x,)),
    )
    results: list[Any] = [
        new if case != "no node" else 3,
        new if case == "twice a result" else view if case == "its memory is returned" else 7,
    ]
    graph.output(results)
    found = write_at_the_end(graph, [Destination(0, 0, 3)])
    assert found == ({0: 3} if written else {})
    calls = [(n.target, n.args) for n in graph.nodes if n.target is aten.copy_.default]
    assert calls == ([(aten.copy_.default, (x, new))] if written else [])
    assert graph.output_node().args[0] == ([None, *results[1:]] if written else results)
