"""What tests of nested tensors share: some of torch's and of ours, and their numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime import wrap
from runtime.errors import NestedTensor

REFUSED = pytest.raises(NestedTensor, match=r"torch\.stack")


def parts() -> list[torch.Tensor]:
    return [torch.arange(1.0, 7).view(2, 3), torch.arange(7.0, 10).view(1, 3)]


def plain(layout: torch.layout = torch.strided, requires_grad: bool = False) -> torch.Tensor:
    """A nested tensor of torch's own."""
    return torch.nested.nested_tensor(parts(), layout=layout, requires_grad=requires_grad)


def nested() -> Any:
    return wrap(plain(), requires_grad=True)


def leaf(*shape: int) -> Any:
    return wrap(torch.ones(shape), requires_grad=True)


def backward(n: Any) -> None:
    n.backward(torch.ones_like(n))


def numbers(n: Any) -> list[float]:
    return [x for part in n.unbind() for x in part.reshape(-1).tolist()]
