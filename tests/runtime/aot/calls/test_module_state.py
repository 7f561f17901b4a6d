"""What a capture leaves of the Python state that the program changes: once, or as
before if it fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from runtime.aot import aot_function, nop


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.seen: list[int] = []

    def forward(self, x: Any, fail: bool = False) -> Any:
        self.steps += 1
        self.seen.append(1)
        self.train(not self.training)
        if fail:
            raise ValueError("mine")
        return x * 2


def test_a_capture_that_fails_puts_back_what_it_has_changed() -> None:
    net = Net()
    with pytest.raises(ValueError, match="mine"):
        aot_function(lambda x: net(x, True), nop)(torch.ones(1))
    assert (net.steps, net.seen, net.training) == (0, [], True)


class Writes(Net):
    def forward(self, x: Any, y: Any) -> Any:  # type: ignore[override]
        self.steps += 1
        self.seen.append(1)
        x.unsqueeze_(0)
        return y * 1 if y.dim() == 2 else y[:, :, :]


class AddsOne(Net):
    def forward(self, x: Any, y: Any) -> Any:  # type: ignore[override]
        self.steps += 1
        self.seen.append(1)
        x.add_(1)
        return y * 1


@pytest.mark.parametrize("kind", [Writes, AddsOne])
def test_a_capture_that_is_repeated_changes_python_once(kind: Any) -> None:
    net, x = kind(), torch.ones(2)
    aot_function(net, nop)(x, x)
    assert (net.steps, net.seen) == (1, [1])


def test_an_assigned_tensor_stays_as_it_was_and_a_warning_tells() -> None:
    class Keeps(nn.Module):
        last: Any = None

        def forward(self, x: Any) -> Any:
            self.last = x * 2
            return x

    module = Keeps()
    with pytest.warns(UserWarning, match="assigns a tensor that it computes to 'last' of Keeps"):
        aot_function(module, nop)(torch.ones(1))
    assert module.last is None
