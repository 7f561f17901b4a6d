"""Looking at a value from a debugger."""

from __future__ import annotations

import torch

from ..seam.levels import Value
from .functionalize import FunctionalValue


def debug_unwrap(tensor: torch.Tensor, *, recurse: bool = True) -> torch.Tensor:
    """As ``torch.func.debug_unwrap``: what a value of a running transform holds; all transforms' values off it, or (``recurse=False``) one.

    A tensor of the eager session is no transform's value and stays as it is. For debugging: what a transformed function computes from the
    result passes the transform by.
    """
    while isinstance(tensor, Value) and tensor._level.number:
        tensor = tensor._level.read(tensor) if isinstance(tensor, FunctionalValue) else tensor._inner
        if not recurse:
            break
    return tensor
