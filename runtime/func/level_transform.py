"""Make a function transform from a level class: ``transform``, for :mod:`runtime.extend`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..functionalize.functional_value import FunctionalValue
from ..seam.escapes import living
from ..seam.level_mode import entered
from ..seam.levels import Level, Value
from .trees import map_tensors

Function = Callable[..., Any]


def transform(make_level: Callable[[], Level]) -> Callable[[Function], Function]:
    """Return the transform that runs a function on values of a level. Each call makes a new level.

    Example::

        counting = transform(CountingLevel)
        counting(torch.sin)(x)  # CountingLevel.call sees the call of aten::sin

    All tensors among the arguments, in any pytree, become values of the level (:meth:`Level.wrap`).
    The results are the tensors that its values hold. The level is closed at the end. A value that
    the function has stored raises ``EscapedValue`` when it is used later."""

    def of(function: Function) -> Function:
        """Return ``function``, transformed."""

        @wraps(function)
        def transformed(*args: object, **kwargs: object) -> object:
            """Run ``function`` on values of a new level, and return the tensors that they hold."""
            level = make_level()
            try:
                # tensors of an outer capture become its values first
                values, named_values = map_tensors(
                    lambda tensor: level.wrap(entered(tensor)), (args, kwargs)
                )
                return map_tensors(
                    level.lowered, living(level.run_inside(function, values, named_values))
                )
            finally:
                level.close()

        return transformed

    return of


def debug_unwrap(tensor: torch.Tensor, *, recurse: bool = True) -> torch.Tensor:
    """Return the tensor that a value of a running transform holds, as ``torch.func.debug_unwrap``.

    ``recurse=True`` removes the values of all transforms, ``recurse=False`` only the innermost one.
    A tensor of the eager session belongs to no transform and is returned as it is. Use this for
    debugging only: the transforms do not see what a function computes from the result.
    """
    while isinstance(tensor, Value) and tensor._home is None:
        if isinstance(tensor, FunctionalValue):
            tensor = tensor._level.read(tensor)
        else:
            tensor = tensor._inner
        if not recurse:
            break
    return tensor
