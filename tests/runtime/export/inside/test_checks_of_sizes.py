"""Where the checks of sizes stand in an exported graph.

Inside: ``runtime.export.dims``. Exports of programs have no graph with all of these calls."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from runtime.export.dims import _move_checks


def test_checks_of_sizes_come_before_the_calls_of_the_program() -> None:
    aten: Any = torch.ops.aten
    graph = fx.Graph()
    x = graph.placeholder("x")
    layout = graph.call_function(aten._assert_tensor_metadata.default, (x,))
    sine = graph.call_function(aten.sin.default, (x,))
    other = graph.call_function(aten.sym_size.int, (x, 1))  # which no check needs
    size = graph.call_function(aten.sym_size.int, (x, 0))
    holds = graph.call_function(operator.gt, (size, 3))
    check = graph.call_function(aten._assert_scalar.default, (holds, "of the argument"))
    computed = graph.call_function(aten.sym_size.int, (sine, 0))
    late = graph.call_function(aten._assert_scalar.default, (computed, "of what is computed"))
    output = graph.output((sine, other))
    _move_checks(graph)
    assert list(graph.nodes) == [x, layout, size, holds, check, sine, other, computed, late, output]
