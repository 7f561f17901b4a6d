"""``debug_unwrap``: the tensor that a value of a transform holds."""

from __future__ import annotations

import torch

from ..functionalize.functional_level import FunctionalValue
from ..seam.levels import Value


def debug_unwrap(tensor: torch.Tensor, *, recurse: bool = True) -> torch.Tensor:
    """The tensor that a value of a running transform holds, as ``torch.func.debug_unwrap``.

    ``recurse=True`` removes the values of all transforms, ``recurse=False`` only the innermost one.
    A tensor of the eager session belongs to no transform and is returned as it is. Use this for
    debugging only: the transforms do not see what a function computes from the result.
    """
    while isinstance(tensor, Value) and tensor._home is None:
        tensor = (
            tensor._level.read(tensor) if isinstance(tensor, FunctionalValue) else tensor._inner
        )
        if not recurse:
            break
    return tensor
