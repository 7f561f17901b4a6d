"""Regions of a traced program: which calls belong to one, and what is marked in the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime.aot import make_fx
from runtime.func import grad
from runtime.trace.regions import region, region_of, running_traces, traced

X = torch.tensor([1.0, 2.0])


def _calls(module: fx.GraphModule) -> dict[str, fx.Node]:
    return {n.name: n for n in module.graph.nodes if n.op == "call_function"}


def _marked(module: fx.GraphModule) -> dict[str, Any]:
    return {name: n.meta.get("recompute") for name, n in _calls(module).items()}


def test_the_calls_between_two_moments_are_marked_in_the_order_of_the_program() -> None:
    marked: list[str] = []

    def mark(n: fx.Node) -> str:
        marked.append(n.name)
        return n.name.upper()

    def program(x: Tensor) -> Tensor:
        y = x.sin()
        with region(mark):
            y = y.cos() * torch.ones(2)
        return y.exp()

    module = make_fx(program)(X)
    assert marked == ["cos", "ones", "mul"]
    assert _marked(module) == {"sin": None, "cos": "COS", "ones": "ONES", "mul": "MUL", "exp": None}
    numbers = {name: region_of(n) for name, n in _calls(module).items()}
    assert (
        numbers["cos"] == numbers["ones"] == numbers["mul"] is not None
        and numbers["sin"] is numbers["exp"] is None
    )


def test_constants_are_no_calls_of_a_region() -> None:
    closed = torch.ones(2)

    def program(x: Tensor) -> Tensor:
        with region(lambda n: True):
            return x * closed

    nodes = {n.name: n for n in make_fx(program)(X).graph.nodes}
    assert [name for name, n in nodes.items() if "recompute" in n.meta] == ["mul"]


def test_a_region_may_be_all_of_a_program() -> None:
    def program() -> Tensor:
        with region(lambda n: True):
            return torch.ones(2).sin()

    assert _marked(make_fx(program)()) == {"ones": True, "sin": True}


def test_each_region_has_a_number_and_one_inside_another_belongs_to_it() -> None:
    def program(x: Tensor) -> Tensor:
        with region(lambda n: "first"):
            x = x.sin()
        with region(lambda n: "outer"):
            x = x.cos()
            with region(lambda n: "inner"):
                x = x.exp()
        return x

    module = make_fx(program)(X)
    assert _marked(module) == {"sin": "first", "cos": "outer", "exp": "outer"}
    sin, cos, exp = (region_of(n) for n in _calls(module).values())
    assert cos == exp != sin


def test_a_region_is_marked_in_the_graphs_of_all_traces_around_it() -> None:
    inner: list[fx.GraphModule] = []
    marked: list[fx.Node] = []

    def program(x: Tensor) -> Tensor:
        def within(y: Tensor) -> Tensor:
            assert (
                len(running_traces()) == 2
                and running_traces()[0].number < running_traces()[1].number
            )
            with region(marked.append):
                return y.sin()

        inner.append(make_fx(within)(x))
        assert len(running_traces()) == 1
        result: Tensor = inner[0](x).cos()
        return result

    make_fx(program)(X)
    outer_call, inner_call = marked
    assert outer_call.name == inner_call.name == "sin" and outer_call.graph is not inner_call.graph
    assert region_of(outer_call) == region_of(inner_call) is not None
    assert running_traces() == []


def test_what_fails_in_a_region_marks_nothing() -> None:
    marked: list[str] = []

    def program(x: Tensor) -> Tensor:
        with region(lambda n: marked.append(n.name)):
            x.sin()
            raise KeyError

    with pytest.raises(KeyError):
        make_fx(program)(X)
    assert marked == []


def test_a_mark_sees_the_value_of_each_call() -> None:
    seen: list[Any] = []

    def program(x: Tensor) -> Tensor:
        with region(lambda n: seen.append(n.meta["val"].shape)):
            return torch.cat([x, x])

    make_fx(program)(X)
    assert seen == [(4,)]


def test_a_trace_sees_a_call_while_it_runs_or_if_a_value_of_it_is_given() -> None:
    found: list[bool] = []

    def program(x: Tensor) -> Tensor:
        found.append(traced((), {}))

        def inner(y: Tensor) -> Tensor:
            with torch.utils._python_dispatch._disable_current_modes():
                found.extend(
                    (
                        traced((), {}),
                        traced((1, x), {}),
                        traced((), {"a": x}),
                        traced((y,), {}),
                        traced((X,), {"b": X}),
                    )
                )
            return y.sum()

        result: Tensor = grad(inner)(x)
        return result

    make_fx(program)(X)
    assert found == [True, False, True, True, True, False]
    assert not traced((X,), {"a": 1})
