"""What a checkpointed function reads, which eager mode reads once more in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import runtime.dropin
from runtime import jit


@pytest.fixture(autouse=True)
def _recorded_by_the_runtime() -> Iterator[None]:
    with runtime.dropin.installed():
        yield


class Block(nn.Module):
    """Multiplies by what it finds at several places."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {"factor": 2.0}
        self.items = [1.0]
        self.scale = torch.ones(1)
        self.linear = nn.Linear(1, 1, bias=False)
        self.dropout = nn.Dropout(0.0)
        nn.init.ones_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.linear(x)) * self.table["factor"] * self.items[0]
        return (y * self.scale).sin()  # type: ignore[no-any-return]


CHANGES: dict[str, Callable[[Block], object]] = {
    "a value of a dictionary": lambda block: block.table.update(factor=3.0),
    "an item of a list": lambda block: block.items.append(block.items.pop() + 1),
    "a tensor": lambda block: setattr(block, "scale", torch.full((1,), 3.0)),
    "a parameter": lambda block: setattr(block.linear, "weight", nn.Parameter(torch.zeros(1, 1))),
    "a layer": lambda block: setattr(block, "linear", nn.Linear(1, 1, bias=False)),
    "a number of a layer": lambda block: setattr(block.dropout, "p", 1.0),
    "the mode of a layer": lambda block: block.dropout.eval(),
    "a hook of a layer": lambda block: block.linear.register_forward_hook(lambda *_: None),
    "another forward": lambda block: setattr(block, "forward", lambda x: x),
}


def _program(block: Any, use_reentrant: bool) -> Callable[[Any], Any]:
    return jit(lambda x: checkpoint(block, x * 1, use_reentrant=use_reentrant).sum())


def _leaf() -> Tensor:
    return torch.ones(1, 1, requires_grad=True)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_pass_is_refused_if_what_the_function_reads_has_changed(
    name: str, use_reentrant: bool
) -> None:
    block = Block()
    program = _program(block, use_reentrant)
    for _ in range(2):
        program(_leaf()).backward()
    x = _leaf()
    y = program(x)
    CHANGES[name](block)
    with pytest.raises(RuntimeError, match="in a checkpointed function, and that has changed"):
        y.backward()
    assert x.grad is None


def test_what_changes_between_two_calls_is_read_by_the_second() -> None:
    block = Block()
    program = _program(block, False)
    for factor in (1.0, 2.0, 3.0, 2.0, 5.0):
        block.table["factor"] = factor
        x, z = _leaf(), _leaf()
        program(x).backward()
        block(z).sum().backward()
        assert x.grad == z.grad


def test_the_mode_of_a_layer_that_does_not_ask_for_it_may_change() -> None:
    program = _program(block := nn.Sequential(nn.Linear(1, 1), nn.Tanh()), False)
    x = _leaf()
    y = program(x)
    block.eval()
    y.backward()
    assert x.grad is not None


def test_a_step_that_runs_its_own_pass_may_find_other_values_each_time() -> None:
    block = Block()

    @jit
    def step(x: Any) -> Any:
        (gradient,) = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).sum(), x)
        return gradient

    for factor in (1.0, 2.0, 3.0, 4.0):
        block.table["factor"] = factor
        x = _leaf()
        block(x).sum().backward()
        assert step(_leaf()) == x.grad


def test_what_a_second_run_changes_is_refused_with_what_to_do() -> None:
    class Counted(nn.Module):
        count = 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x.sin()

    with pytest.raises(RuntimeError, match="a checkpointed function, which runs once more"):
        _program(Counted(), False)(_leaf())
    norm = nn.Sequential(nn.BatchNorm1d(1), nn.Tanh())
    with pytest.raises(RuntimeError, match=r"let the program run backward\(\) itself"):
        _program(norm, False)(torch.ones(2, 1, requires_grad=True))
