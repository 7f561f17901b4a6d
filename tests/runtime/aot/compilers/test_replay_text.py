"""The code that runs a graph: a line for each call, and each value freed after the line
that uses it last."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from runtime import aot, jit

from .by_hand import aten, node_of
from .generated_code import frame_of, source_of, text_of

X = torch.rand(4, 3)
Made = tuple[fx.Graph, fx.Node]


def lines(build: Callable[[fx.Graph, fx.Node], Any]) -> list[str]:
    """What runs between the arguments ``x`` and ``idle`` and the results of a graph."""
    graph = fx.Graph()
    x, idle = graph.placeholder("x"), graph.placeholder("idle")
    x.meta["val"] = idle.meta["val"] = X
    results = build(graph, x)
    graph.output(results)
    root = torch.nn.Module()
    root.inner = torch.nn.Module()
    root.inner.held = X
    head, cleared, guarded, freed, *rest = text_of(fx.GraphModule(root, graph), X, X)
    assert (head, cleared, guarded, freed) == (
        "[v_x, v_idle] = args",
        "args.clear()",
        "with below_autograd():",
        "    del v_idle",
    )
    return [line.removeprefix("    ") for line in rest]


def sort(
    graph: fx.Graph, x: fx.Node, *which: Any, val: Any = (X, X)
) -> tuple[fx.Node, list[fx.Node]]:
    several = graph.call_function(aten.sort.default, (x,))
    several.meta["val"] = val
    items = [graph.call_function(operator.getitem, (several, i)) for i in which]
    for n in items:
        n.meta["val"] = X
    return several, items


SORTED = "v_sort_default = sort_0(v_x)"
GONE = "del v_sort_default"
ITEM = "v_getitem = call_1(v_sort_default, {})"
PROGRAMS: dict[str, tuple[Callable[[fx.Graph, fx.Node], Any], list[str]]] = {
    "nothing": (lambda g, x: [x], ["return [v_x]"]),
    "all items": (
        lambda g, x: sort(g, x, 1, 0)[1],
        ["[v_getitem_1, v_getitem] = sort_0(v_x)", "del v_x", "return [v_getitem, v_getitem_1]"],
    ),
    "one item": (
        lambda g, x: sort(g, x, 1)[1],
        ["[_, v_getitem] = sort_0(v_x)", "del _", "del v_x", "return [v_getitem]"],
    ),
    "one item twice": (
        lambda g, x: sort(g, x, 0, 0)[1],
        [
            SORTED,
            "del v_x",
            ITEM.format(0),
            ITEM.format(0).replace("m =", "m_1 ="),
            "del v_sort_default",
            "return [v_getitem, v_getitem_1]",
        ],
    ),
    "an item from the end": (
        lambda g, x: sort(g, x, -1)[1],
        [SORTED, "del v_x", ITEM.format(-1), GONE, "return [v_getitem]"],
    ),
    "an item that is not there": (
        lambda g, x: sort(g, x, 2)[1],
        [SORTED, "del v_x", ITEM.format(2), GONE, "return [v_getitem]"],
    ),
    "several items at once": (
        lambda g, x: sort(g, x, slice(0, 1))[1],
        [SORTED, "del v_x", ITEM.format("slice(0, 1, None)"), GONE, "return [v_getitem]"],
    ),
    "an item and the whole": (
        lambda g, x: (lambda found: [found[0], *found[1]])(sort(g, x, 0)),
        [SORTED, "del v_x", ITEM.format(0), "return [v_sort_default, v_getitem]"],
    ),
    "rows of one result": (
        lambda g, x: sort(g, x, 0, val=X)[1],
        [SORTED, "del v_x", ITEM.format(0), GONE, "return [v_getitem]"],
    ),
    "a draw that nothing uses": (
        lambda g, x: (g.call_function(aten.bernoulli.default, (x,)), [x])[1],
        ["v_bernoulli_default = bernoulli_0(v_x)", "del v_bernoulli_default", "return [v_x]"],
    ),
    "an argument of two calls": (
        lambda g, x: [
            g.call_function(operator.add, (g.call_function(operator.neg, (x,)), x)),
            None,
        ],
        [
            "v_neg = call_0(v_x)",
            "v_add = call_1(v_neg, v_x)",
            "del v_neg, v_x",
            "return [v_add, None]",
        ],
    ),
    "one function twice": (
        lambda g, x: [g.call_function(operator.neg, (g.call_function(operator.neg, (x,)),))],
        [
            "v_neg = call_0(v_x)",
            "del v_x",
            "v_neg_1 = call_0(v_neg)",
            "del v_neg",
            "return [v_neg_1]",
        ],
    ),
    "a constant": (
        lambda g, x: [g.call_function(operator.add, (x, g.create_node("get_attr", "inner.held")))],
        [
            "v_inner_held = c0(module)",
            "v_add = call_1(v_x, v_inner_held)",
            "del v_x, v_inner_held",
            "return [v_add]",
        ],
    ),
    "keywords": (
        lambda g, x: {"a": g.call_function(torch.add, (x, x), {"alpha": 2, "out": None})},
        ["v_add = call_0(v_x, v_x, alpha=2, out=None)", "del v_x", "return {'a': v_add}"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_is_a_line_and_each_value_is_freed_after_its_last_use(name: str) -> None:
    build, expected = PROGRAMS[name]
    assert lines(build) == expected


def test_a_graph_without_arguments_takes_an_empty_list() -> None:
    graph = fx.Graph()
    graph.output([3])
    assert text_of(fx.GraphModule({}, graph)) == [
        "[] = args",
        "args.clear()",
        "with below_autograd():",
        "    return [3]",
    ]


def code_of(program: Callable[..., Any]) -> Any:
    """The code for a program of two matrices that writes to them."""
    modules: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        modules.append(module)
        return aot.nop(module, inputs)

    jit(program, compiler=keep)(X.clone(), X.clone())
    return aot.nop(modules[0], [])


def test_a_replay_tells_in_which_line_it_first_writes_to_an_argument() -> None:
    def program(x: Any, y: Any) -> None:
        x.sin_().mul_(y)
        y.exp_()

    found = code_of(program)
    shown = source_of(found.__globals__)
    assert found.placed == {0: 0, 1: 0} and found._boxed_call is True
    assert "sin_" in shown[found.writes[0] - 1] and "exp_" in shown[found.writes[1] - 1]
    x, y = X.clone(), X.clone()
    found([x, y])
    assert torch.equal(x, X.sin() * X) and torch.equal(y, X.exp())


def test_a_write_to_one_of_several_tensors_of_a_call_is_told_too() -> None:
    def program(x: Any, y: Any) -> None:
        x.sin_()
        y.sin_()

    found = code_of(program)
    assert set(found.writes) == {0, 1} and len(set(found.writes.values())) == 1


def test_a_graph_that_itself_writes_has_placed_nothing() -> None:
    graph = fx.Graph()
    x = node_of(X, graph)
    written = graph.call_function(aten.mul_.Tensor, (x, 2))
    written.meta["val"] = X
    graph.output([written])
    found: Any = aot.nop(fx.GraphModule({}, graph), [])
    assert (found.placed, found.writes) == ({}, {})


def test_a_line_shows_the_line_of_the_program_that_it_is_from() -> None:
    modules: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        modules.append(module)
        return module.forward

    aot.aot_function(lambda x: x.sin().sum(), keep)(X)
    shown = source_of(frame_of(modules[0], X).f_globals)
    assert [line.split(" = ")[1][:4] for line in shown if "  # " in line] == ["sin_", "sum_"]
    assert all(
        "test_replay_text.py" in line and "x.sin().sum()" in line
        for line in shown
        if "  # " in line
    )
