"""Traces that a jitted program makes itself."""

from typing import Any

import pytest
import torch

import runtime
from runtime.aot import make_fx


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_trace_on_abstract_values_does_not_ask_for_gradients(mode: str) -> None:
    """Torch reads ``.grad`` of what it makes an abstract value of. A program that reads the
    gradient of a tensor is captured once more, and here each capture has other tensors."""

    def program(x: torch.Tensor) -> Any:
        graph = make_fx(torch.sin, tracing_mode=mode)(torch.ones(2, 3))
        return graph(x)

    x = torch.linspace(0, 1, 6).reshape(2, 3)
    torch.testing.assert_close(runtime.jit(program)(x), x.sin())
