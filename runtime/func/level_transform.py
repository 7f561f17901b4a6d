"""``transform``: makes a function transform from a level class, for :mod:`runtime.extend`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..seam.level_mode import entered
from ..seam.levels import Level
from .trees import map_tensors

Function = Callable[..., Any]


def transform(make_level: Callable[[], Level]) -> Callable[[Function], Function]:
    """The transform that runs a function on values of a level. Each call makes a new level.

    Example::

        counting = transform(CountingLevel)
        counting(torch.sin)(x)  # CountingLevel.call sees the call of aten::sin

    All tensors among the arguments, in any pytree, become values of the level (:meth:`Level.wrap`).
    The results are the tensors that its values hold. The level is closed at the end. A value that
    the function has stored raises ``EscapedValue`` when it is used later."""

    def of(f: Function) -> Function:
        @wraps(f)
        def transformed(*args: Any, **kwargs: Any) -> Any:
            level = make_level()
            try:
                given, named = map_tensors(lambda t: level.wrap(entered(t)), (args, kwargs))
                return map_tensors(level.lowered, level.run_inside(f, given, named))
            finally:
                level.close()

        return transformed

    return of
