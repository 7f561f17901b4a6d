"""Numbers that a program reads of tensors are calls of its graph, and arithmetic with them is Python's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot import aot_function, nop
from runtime.func.make_fx import make_fx
from runtime.func.traced_numbers import AskedForNumber, OtherSide, TracedNumber, number_of, on_side


def number(value: float) -> tuple[fx.Graph, Any]:
    graph = fx.Graph()
    return graph, TracedNumber.read(graph.placeholder("number"), value)


def test_arithmetic_is_recorded_call_by_call_and_not_simplified() -> None:
    graph, n = number(3.0)
    result = (1 - 0.9**n) * 0.1 * 3 / n
    known = number_of(result)
    assert known is not None and known.value == (1 - 0.9**3.0) * 0.1 * 3 / 3.0
    graph.output(known.node)
    module = fx.GraphModule({}, graph)
    for value in (1.0, 7.0, 0.3):
        assert module(value) == (1 - 0.9**value) * 0.1 * 3 / value
    assert [n.target.__name__ for n in graph.nodes if n.op == "call_function"] == ["pow", "sub", "mul", "mul", "truediv"]


def test_a_number_knows_the_tensors_that_it_was_read_of() -> None:
    graph = fx.Graph()
    a: Any
    b: Any
    a, b = (TracedNumber.read(graph.placeholder(name), 2.0) for name in "ab")
    known, sources = number_of(a * 2 - b), [number_of(x) for x in (a, b)]
    assert known is not None and known.sources == {x.node for x in sources if x is not None}


@pytest.mark.parametrize("ask", [bool, float, int, math.floor, math.sin, lambda n: n > 1 and None])
def test_asking_for_the_value_is_an_error(ask: Callable[[Any], Any]) -> None:
    _, n = number(3.0)
    with pytest.raises(AskedForNumber):
        ask(n)


def test_a_number_is_no_size() -> None:
    _, n = number(3.0)
    with pytest.raises(TypeError):
        torch.zeros(n)


def test_a_side_is_asked_for_when_the_graph_runs() -> None:
    on_side(2.0, True)
    on_side(0.0, False)
    with pytest.raises(OtherSide):
        on_side(0.0, True)


def test_tensors_in_a_list_among_several_results_are_calls_of_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y, found, scale = x * 1, torch.zeros(()), torch.full((), 0.5)
        torch._amp_foreach_non_finite_check_and_unscale_([y], found, scale)
        return y + found

    compiled = aot_function(f, nop)
    compiled(torch.ones(3))
    graph = make_fx(f)(torch.ones(3))
    for x in (torch.arange(3.0), torch.tensor([1.0, torch.inf, 2.0])):
        expected = f(x)
        assert torch.equal(compiled(x), expected)
        assert torch.equal(graph(x), expected)
