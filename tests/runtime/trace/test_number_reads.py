"""Numbers that a program reads of tensors are calls of its graph, and arithmetic with
them is Python's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot import aot_function, make_fx, nop
from runtime.trace.number_reads import (
    AskedForNumber,
    OtherSide,
    TracedNumber,
    number_of,
    on_side,
    with_values,
)
from runtime.trace.symbol_values import running


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
    assert [n.target.__name__ for n in graph.nodes if n.op == "call_function"] == [
        "pow",
        "sub",
        "mul",
        "mul",
        "truediv",
    ]


def test_a_number_knows_the_tensors_that_it_was_read_of() -> None:
    graph = fx.Graph()
    a: Any
    b: Any
    a, b = (TracedNumber.read(graph.placeholder(name), 2.0) for name in "ab")
    known, sources = number_of(a * 2 - b), [number_of(x) for x in (a, b)]
    assert known is not None and known.sources == {x.node for x in sources if x is not None}


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a power of it": lambda n: n**2, "it as a power": lambda n: 0.9**n,
    "the larger": lambda n: torch.sym_max(n, 2), "the smaller": lambda n: torch.sym_min(2.5, n),
    "negative": lambda n: -n, "absolute": lambda n: abs(1 - n), "rest": lambda n: n % 2,
    "equal": lambda n: n == 3, "not equal": lambda n: n != 3.0, "less": lambda n: n < 3,
    "at most": lambda n: n <= 3, "greater": lambda n: n > 2.5, "at least": lambda n: n >= 7.25,
    "root": torch._sym_sqrt, "itself": torch.sym_float,  # type: ignore[attr-defined]
    "with itself": lambda n: n - n * 2, "a truth": lambda n: (n > 4) == True,  # noqa: E712
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_of_a_number_has_its_value_and_is_computed_anew_by_the_graph(
    function: Callable[[Any], Any],
) -> None:
    graph, n = number(3.0)
    result = function(n)
    known = number_of(result)
    wanted = function(3.0)
    assert known is not None and known.value == wanted and known.kind is type(wanted)
    assert isinstance(known.node, fx.Node) and isinstance(
        known.node.meta["val"], torch.SymBool if known.kind is bool else torch.SymFloat
    )
    assert known.sources == {node for node in graph.nodes if node.op == "placeholder"}
    graph.output(known.node)
    module = fx.GraphModule({}, graph)
    for value in (1.0, 3.0, 7.25):
        assert module(value) == function(value)


ASKED: dict[str, list[Callable[[Any], Any]]] = {
    r"float\(\), or a function of numbers, asks": [float, math.sin],
    r"int\(\), or a size, asks": [
        int,
        math.floor,
        math.ceil,
        math.trunc,
        round,
        lambda n: n // 2,
        lambda n: n.is_integer(),
    ],
    r"str\(\), or print\(\), asks": [str, repr, lambda n: f"{n}"],
}


@pytest.mark.parametrize(
    ("message", "ask"), [(message, ask) for message, asks in ASKED.items() for ask in asks]
)
def test_asking_for_the_value_is_an_error(message: str, ask: Callable[[Any], Any]) -> None:
    _, n = number(3.0)
    with running(None), pytest.raises(AskedForNumber, match=message) as error:
        ask(n)
    assert error.value.number.sources


@pytest.mark.parametrize("ask", [bool, lambda n: n > 1 and None, lambda n: max(n, 2)])
def test_a_condition_is_a_call_of_the_graph_that_asks_for_the_side(
    ask: Callable[[Any], Any],
) -> None:
    graph, n = number(3.0)
    with running(None):
        ask(n)
    (asked,) = [x for x in graph.nodes if x.target is on_side]
    assert isinstance(asked.args[1], bool)


def test_a_condition_on_an_abstract_value_is_an_error() -> None:
    n: Any = TracedNumber.read(fx.Graph().placeholder("number"), None)
    with running(None), pytest.raises(AskedForNumber, match="a condition asks"):
        bool(n)


def test_of_abstract_values_a_number_has_no_value() -> None:
    graph = fx.Graph()
    n: Any = TracedNumber.read(graph.placeholder("number"), None)
    known = number_of(2 * n + 1)
    assert known is not None and known.value is None and with_values(n * 1) == 0.5


def test_arguments_of_a_call_get_the_values_of_numbers_wherever_they_are() -> None:
    _, n = number(3.0)
    shape = torch.Size([2])
    found = with_values({"a": [n, 2.0], "b": (n * 2, "x"), "c": shape, "d": n > 1})
    assert (
        found == {"a": [3.0, 2.0], "b": (6.0, "x"), "c": shape, "d": True}
        and type(found["b"]) is tuple
        and found["c"] is shape
    )


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
