"""Attributes that users give to tensors which a program finds: compared by each call, and changed
by it, whatever kind of tensor it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import runtime.dropin
from runtime import jit
from runtime.jit import explain


@contextmanager
def _in_the_session() -> Iterator[None]:
    with runtime.dropin.installed():
        yield


KINDS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "torch": (nullcontext, lambda: torch.ones(1)),
    "parameter of torch": (nullcontext, lambda: nn.Parameter(torch.ones(1))),
    "wrapped": (nullcontext, lambda: runtime.wrap(torch.ones(1))),
    "wrapped leaf": (nullcontext, lambda: runtime.wrap(torch.ones(1), requires_grad=True)),
    "computed": (nullcontext, lambda: runtime.wrap(torch.ones(1), requires_grad=True) * 1),
    "drop-in": (_in_the_session, lambda: torch.ones(1)),
    "parameter of the drop-in": (_in_the_session, lambda: nn.Parameter(torch.ones(1))),
}


class Holder:
    """Holds a tensor with an attribute."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        tensor.scale = 2.0

    def reads(self, x: Tensor) -> Any:
        return x * self.tensor.scale

    def asks(self, x: Tensor) -> Tensor:
        return x * getattr(self.tensor, "further", 7.0)

    def counts(self, x: Tensor) -> Any:
        self.tensor.scale = self.tensor.scale + 1
        return x * self.tensor.scale

    def adds(self, x: Tensor) -> Tensor:
        self.tensor.further = "new"
        return x * len(vars(self.tensor).get("further", ""))

    def deletes(self, x: Tensor) -> Tensor:
        if hasattr(self.tensor, "scale"):
            del self.tensor.scale
            return x * 2
        return x * 3


def _steps(tensor: Any, name: str, compile_: Callable[[Any], Any]) -> list[object]:
    holder = Holder(tensor)
    program = compile_(getattr(holder, name))
    found: list[object] = []
    for i in range(6):
        found.append(program(torch.ones(1)).tolist())
        found.append((getattr(tensor, "scale", None), getattr(tensor, "further", None)))
        tensor.scale = float(i)
        if i == 2:
            tensor.further = 4.0
        if i == 4:
            del tensor.further
    return found


@pytest.mark.parametrize("name", ["reads", "asks", "counts", "adds", "deletes"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_attribute_of_a_found_tensor_is_state(kind: str, name: str) -> None:
    around, make = KINDS[kind]
    with around():
        assert _steps(make(), name, jit) == _steps(make(), name, lambda f: f)


def test_what_the_package_notes_in_a_tensor_is_no_state() -> None:
    with runtime.dropin.installed():
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @jit
        def step(x: Tensor) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = [step(torch.ones(3, 2)).item() for _ in range(8)]
        assert losses == sorted(losses, reverse=True)
        assert len(explain(step).programs) <= 2

        call = jit(model)
        for _ in range(6):
            call(torch.ones(3, 2)).sum().backward()
        assert len(explain(call).programs) == 1
