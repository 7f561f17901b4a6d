"""Modes that a program runs inside of, and that change nothing about its results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class _Dispatching(TorchDispatchMode):
    """Sees each ATen call, and each branch and loop as a whole, and passes it on."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class _Overriding(TorchFunctionMode):
    """Sees each call of a function of torch and passes it on."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


_MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "dispatch_mode": _Dispatching,
    "function_mode": _Overriding,
    "inference_mode": torch.inference_mode,
}


def entered(name: str) -> AbstractContextManager[Any]:
    """The mode of a value of axis ``under``; none for an empty name."""
    return _MODES[name]()
