"""Calls that look like constants and are none.

Inside: ``runtime.aot.compilers.constants``. Captures write dtypes and sizes into such calls, so
only a graph that is made by hand has one that differs from what the graph says of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot.compilers.constants import fold
from tests.runtime.aot.compilers.by_hand import aten, node_of, symbolic

X = torch.randn(4, 3)


def _graph_of(
    func: Any, args: tuple[Any, ...], value: torch.Tensor
) -> tuple[fx.Graph, fx.Node, fx.Node]:
    """A graph with a call of ``func``, which is said to give ``value``, and a user of it. A string
    stands for an input."""
    inputs = {"x": X, "number": 2.5, "symbolic": symbolic(0)}
    graph = fx.Graph()
    made = graph.call_function(
        func, tuple(node_of(inputs[a], graph) if isinstance(a, str) else a for a in args)
    )
    user = graph.call_function(aten.sin.default, (made,))
    made.meta["val"] = user.meta["val"] = value
    graph.output([user])
    return graph, made, user


@pytest.mark.parametrize(
    "func, args",
    [
        pytest.param(aten.full_like.default, ("x", "number"), id="a number of the graph"),
        pytest.param(aten.new_ones.default, ("symbolic", [4, 3]), id="an argument of any size"),
        pytest.param(
            aten.full.default, ([4, 3], "number"), id="a number of the graph, without a tensor"
        ),
    ],
)
def test_what_depends_on_the_arguments_is_no_constant(func: Any, args: tuple[Any, ...]) -> None:
    graph, made, user = _graph_of(func, args, X)
    fold(graph)
    assert user.args == (made,)


@pytest.mark.parametrize(
    "value, folded",
    [
        (torch.empty(4, 3), True),
        (torch.empty(4, 3).double(), False),
        (torch.empty(3, 4), False),
        (torch.empty(3, 4).t(), False),
    ],
)
def test_a_constant_that_is_not_as_the_graph_says_is_left_to_each_call(
    value: torch.Tensor, folded: bool
) -> None:
    """As where the default dtype is another one than at the trace."""
    graph, made, user = _graph_of(aten.ones.default, ([4, 3],), value)
    fold(graph)
    assert (user.args != (made,)) is folded
