"""A capture gives back the states of the default generators, of an accelerator's, too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runtime.aot import aot_function, nop


class Cuda:
    """Stands in for the generator of CUDA's device 3, whose state is a number."""

    def __init__(self, patch: pytest.MonkeyPatch, started: bool) -> None:
        self.state = torch.tensor([7], dtype=torch.uint8)
        self.asked = 0
        patch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        patch.setattr(torch.cuda, "is_initialized", lambda: started)
        patch.setattr(torch.cuda, "current_device", lambda: 3)
        patch.setattr(torch.cuda, "get_rng_state", self.get)
        patch.setattr(torch.cuda, "set_rng_state", self.set)

    def get(self, device: int) -> Tensor:
        assert device == 3
        self.asked += 1
        return self.state.clone()

    def set(self, state: Tensor, device: int) -> None:
        assert device == 3
        self.state = state

    def draw(self) -> None:
        self.state = self.state + 1


def test_draws_of_a_capture_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch, started=True)

    def f(x: Tensor) -> Tensor:
        cuda.draw()  # at the capture alone: a graph has no such call
        return x * torch.rand(3)

    graph = aot_function(f, nop, ignore=[cuda])
    torch.manual_seed(1)
    first, later = graph(torch.ones(3)), torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(first, torch.rand(3))
    assert torch.equal(later, torch.rand(3))
    assert cuda.state.item() == 7


def test_an_accelerator_that_has_not_started_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch, started=False)
    aot_function(torch.sin, nop)(torch.ones(2))
    assert cuda.asked == 0


def test_a_compiled_function_is_captured_without_using_up_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Cuda(monkeypatch, started=True)

    def f(x: Tensor) -> Tensor:
        cuda.draw()  # at the capture alone: a graph has no such call
        return x * 2

    x = torch.ones(2, requires_grad=True)
    graph = aot_function(f, nop, ignore=[cuda])  # which stands for torch's own state
    assert graph(x).tolist() == [2.0, 2.0]
    assert cuda.asked > 0
    assert cuda.state.item() == 7
