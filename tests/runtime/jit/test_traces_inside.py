"""Traces that a jitted program makes itself."""

from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, make_fx


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_trace_on_abstract_values_does_not_ask_for_gradients(mode: str) -> None:
    """Torch reads ``.grad`` of what it makes an abstract value of. A program that reads the
    gradient of a tensor is captured once more, and here each capture has other tensors."""

    def program(x: torch.Tensor) -> Any:
        graph = make_fx(torch.sin, tracing_mode=mode)(torch.ones(2, 3))
        return graph(x)

    x = torch.linspace(0, 1, 6).reshape(2, 3)
    torch.testing.assert_close(runtime.jit(program)(x), x.sin())


def _itself(graph: Any, _: Any) -> Any:
    return graph


@pytest.mark.parametrize("earlier", [0, 2])
@pytest.mark.parametrize("around", [lambda f: aot_function(f, _itself), runtime.jit])
@pytest.mark.parametrize("direct", [True, False])
def test_a_jitted_function_is_part_of_a_program_that_is_captured(
    around: Any, direct: bool, earlier: int
) -> None:
    """The program takes it as the function that it is made of, with what it changes."""
    counts, w = {"calls": 0}, torch.ones(3)

    @runtime.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        w.add_(1)
        return (x * w).sum() * counts["calls"]

    x = torch.ones(3, requires_grad=True)
    for _ in range(earlier):
        f(x)
    program = around(f if direct else lambda x: f(x))
    for call in range(earlier + 1, earlier + 4):
        assert program(x).item() == 3 * (call + 1) * call
        assert counts == {"calls": call}
        assert w.tolist() == [call + 1.0] * 3
