"""Texts of ``jit.explain`` and ``jit.source`` that few programs lead to.

Inside: ``runtime.jit.report`` and ``programs``. No program of a user has all of these calls in its
graph, and what a tensor says of itself is told only beside other changes."""

from __future__ import annotations

import torch

from runtime.aot.python_state.reads import facts
from runtime.jit.programs import described
from runtime.jit.report import _text


def test_what_a_tensor_says_of_itself_is_told_in_a_few_words() -> None:
    assert described(facts(torch.ones(2, requires_grad=True))) == "float32[2] that requires grad"


def test_calls_of_any_kind_are_spelled_as_in_python() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    held = graph.get_attr("held")
    call = graph.call_function(torch.cat, (([x, held],)), {"dim": 0})
    graph.output(((call,), [None, (call, 2.0)]))
    assert _text("f", graph).splitlines() == [
        "def f(x):",
        "    held = self.held",
        "    cat = cat([x, held], dim=0)",
        "    return ((cat,), [None, (cat, 2.0)])",
    ]
