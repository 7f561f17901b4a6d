"""Numbers that a trace has read: what they know beside their value, and numbers among the arguments
of a call.

Inside: ``runtime.trace.number_reads.TracedNumber``. A graph shows the calls, but not the tensors
behind a number, nor what a kernel gets in place of it while the program is traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from runtime.trace.number_reads import AskedForNumber, TracedNumber, number_of, with_values
from runtime.trace.symbol_values import running


def number(value: float) -> tuple[fx.Graph, Any]:
    graph = fx.Graph()
    return graph, symbol(graph, "number", value)


def symbol(graph: fx.Graph, name: str, value: float | None) -> Any:
    """Return the number that the graph reads in an input of this name."""
    return TracedNumber.read(graph.placeholder(name), float, value).as_symbol()


def test_a_number_knows_the_tensors_that_it_was_read_of() -> None:
    graph = fx.Graph()
    a, b = (symbol(graph, name, 2.0) for name in "ab")
    known, sources = number_of(a * 2 - b), [number_of(x) for x in (a, b)]
    assert known is not None and known.sources == {x.node for x in sources if x is not None}


def test_a_condition_on_an_abstract_value_is_an_error() -> None:
    n = symbol(fx.Graph(), "number", None)
    with running(None), pytest.raises(AskedForNumber, match="a condition asks"):
        bool(n)


def test_of_abstract_values_a_number_has_no_value() -> None:
    graph = fx.Graph()
    n = symbol(graph, "number", None)
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
