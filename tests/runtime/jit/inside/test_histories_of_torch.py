"""A tensor at a place in Python's state that torch has recorded.

Inside: ``runtime.jit.outcome``. That every other object is passed on as it is, without a copy, no
result of a call shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from runtime.jit.outcome import _without_history_of_torch


def recorded() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


KEPT: dict[str, Callable[[], Any]] = {
    "a number": lambda: 3,
    "nothing": lambda: None,
    "a tensor": lambda: torch.ones(2),
    "a leaf": lambda: torch.ones(2, requires_grad=True),
    "a tensor of the session": lambda: runtime.tensor([1.0], requires_grad=True) * 2,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_torch_has_not_recorded_is_what_is_at_a_place(name: str) -> None:
    x = KEPT[name]()
    assert _without_history_of_torch(x) is x


def test_a_gradient_does_not_cross_to_what_torch_has_recorded() -> None:
    x: Any = recorded()
    with torch.no_grad():
        assert _without_history_of_torch(x) is x
    found = _without_history_of_torch(x)
    assert (
        isinstance(found, runtime.Tensor)
        and found.requires_grad
        and found.tolist() == [2.0, 2.0]
        and found.output_nr == 0
    )
    with pytest.raises(RuntimeError, match="recorded by torch's own autograd"):
        (found * 2).sum().backward()
