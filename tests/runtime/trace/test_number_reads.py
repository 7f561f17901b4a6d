"""Numbers that a program reads of tensors are calls of its graph, and arithmetic with
them is Python's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import jit
from runtime.aot import aot_function, make_fx, nop


class Seen:
    """A compiler that runs graphs as they are. ``graphs``: those that it got."""

    def __init__(self) -> None:
        self.graphs: list[fx.Graph] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs.append(module.graph)
        return nop(module, inputs)


def computed(function: Callable[[Any], Any]) -> Callable[[Tensor], Any]:
    """The program that returns a function of the number in a tensor."""

    def program(x: Tensor) -> Any:
        return function(x.item())

    return program


def in_tensor(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_arithmetic_is_recorded_call_by_call_and_not_simplified() -> None:
    def correction(n: Any) -> Any:
        return (1 - 0.9**n) * 0.1 * 3 / n

    compiler = Seen()
    f = jit(computed(correction), compiler=compiler)
    for value in (3.0, 1.0, 7.0, 0.3):
        assert f(in_tensor(value)) == correction(value)
    (graph,) = compiler.graphs
    calls = [n.target.__name__ for n in graph.nodes if not isinstance(n.target, (str, OVERLOAD))]
    assert calls == ["pow", "sub", "mul", "mul", "truediv"]


OVERLOAD = torch._ops.OpOverload
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a power of it": lambda n: n**2,
    "it as a power": lambda n: 0.9**n,
    "the larger": lambda n: torch.sym_max(n, 2),
    "the smaller": lambda n: torch.sym_min(2.5, n),
    "negative": lambda n: -n,
    "absolute": lambda n: abs(1 - n),
    "rest": lambda n: n % 2,
    "equal": lambda n: n == 3,
    "not equal": lambda n: n != 3.0,
    "less": lambda n: n < 3,
    "at most": lambda n: n <= 3,
    "greater": lambda n: n > 2.5,
    "at least": lambda n: n >= 7.25,
    "root": torch._sym_sqrt,  # type: ignore[attr-defined]
    "itself": torch.sym_float,
    "with itself": lambda n: n - n * 2,
    "a truth": lambda n: (n > 4) == True,  # noqa: E712
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_of_a_number_has_its_value_and_is_computed_anew_by_the_graph(
    function: Callable[[Any], Any],
) -> None:
    compiler = Seen()
    f = jit(computed(function), compiler=compiler)
    for value in (3.0, 1.0, 7.25):
        found, wanted = f(in_tensor(value)), function(value)
        assert found == wanted and type(found) is type(wanted)
    (graph,) = compiler.graphs
    (result,) = graph.output_node().all_input_nodes
    symbol = torch.SymBool if type(function(3.0)) is bool else torch.SymFloat
    assert isinstance(result.meta["val"], symbol)


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
    with pytest.raises(RuntimeError, match=message):
        jit(computed(ask))(in_tensor(3.0))


SIDES: dict[str, Callable[[Any], Any]] = {
    "its truth": lambda n: 1 if n else 2,
    "a comparison": lambda n: 1 if n > 1 else 2,
    "the larger of two": lambda n: max(n, 2),
}


@pytest.mark.parametrize("choose", SIDES.values(), ids=SIDES)
def test_a_condition_is_a_call_of_the_graph_that_asks_for_the_side(
    choose: Callable[[Any], Any],
) -> None:
    compiler = Seen()

    def program(x: Tensor) -> Any:
        return x * choose(x.item())

    f = jit(program, compiler=compiler)
    assert f(in_tensor(3.0)) == 3.0 * choose(3.0)
    (graph,) = compiler.graphs
    (asked,) = [n for n in graph.nodes if "on_side" in str(n.target)]
    assert isinstance(asked.args[1], bool)


@pytest.mark.parametrize("choose", SIDES.values(), ids=SIDES)
def test_a_graph_serves_the_side_that_it_was_captured_for(choose: Callable[[Any], Any]) -> None:
    compiler = Seen()

    def program(x: Tensor) -> Any:
        return x * choose(x.item())

    f = jit(program, compiler=compiler)
    graphs = []
    for value in (3.0, 4.0, 0.0, 0.0, 3.0):
        assert f(in_tensor(value)) == value * choose(value)
        graphs.append(len(compiler.graphs))
    assert graphs == [1, 1, 2, 2, 2]


def test_a_number_is_no_size() -> None:
    with pytest.raises(TypeError):
        jit(computed(torch.zeros))(in_tensor(3.0))


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
