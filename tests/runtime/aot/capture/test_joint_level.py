"""How a joint graph says that its calls are differentiated, and what the tape of a program
follows that is no op."""

from __future__ import annotations

from typing import Any

import torch

import runtime
from tests.runtime.aot.capture.boundary_helpers import compiled


def test_a_value_that_was_written_is_computed_with_as_it_is() -> None:
    def f(x: Any, y: Any) -> Any:
        v = y[0]
        y.mul_(3)
        return v + 1, y + v, x * 1

    first, second, _ = compiled(f)(runtime.tensor([1.0], requires_grad=True), torch.ones(2))
    assert first.item() == 4.0 and second.tolist() == [6.0, 6.0]
