"""What programs share that call a target's own functions: the stage ``aot.parts`` gives them by :func:`gen.targets.parts.offered`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Results = tuple[Any, ...]


def refused(*calls: Callable[[], object], kinds: tuple[type[Exception], ...] = (Exception,)) -> list[bool]:
    """For each call, whether it raises one of `kinds`."""
    return [_raises(call, kinds) for call in calls]


def _raises(call: Callable[[], object], kinds: tuple[type[Exception], ...]) -> bool:
    try:
        call()
    except kinds:
        return True
    return False


def beside(x: Tensor, *found: Any) -> Results:
    """`found`, and x so that there is something to differentiate."""
    return x * 2, *found
