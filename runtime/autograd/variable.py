"""Provides ``Variable``, the name of tensors before torch 0.4, which old programs still use."""

from __future__ import annotations

from typing import Any

import torch

from ..session.tensor import wrap
from ..tape import engine


class _VariableMeta(type(torch.Tensor)):  # type: ignore[misc]
    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, torch.Tensor)


class Variable(torch.Tensor, metaclass=_VariableMeta):
    """The class of which any tensor is an instance. ``Variable(t, requires_grad)`` is a leaf with
    the storage of ``t``, as in torch."""

    _execution_engine = engine  # programs call its `queue_callback`

    def __new__(
        cls, data: torch.Tensor | None = None, requires_grad: bool = False, volatile: object = None
    ) -> Any:
        if data is None:
            data = torch.empty(0)
        return wrap(data.detach(), requires_grad)
