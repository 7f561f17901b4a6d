"""What programs share that call a target's own functions: the stage ``aot.parts`` gives them by :func:`gen.targets.parts.offered`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gen.targets.parts import offered

Results = tuple[Any, ...]
Calls = Callable[[], object]


def refused(*calls: Calls, kinds: tuple[type[Exception], ...] = (Exception,)) -> list[bool]:
    """For each call, whether it raises one of `kinds`."""
    return [_raises(call, kinds) for call in calls]


def own_refused(*calls: Calls, kinds: tuple[type[Exception], ...] = (Exception,)) -> list[bool]:
    """The same of functions that only the target has. Each call is to be refused."""
    return refused(*calls, kinds=kinds) if own("unwrap") is not None else [True for _ in calls]


def _raises(call: Calls, kinds: tuple[type[Exception], ...]) -> bool:
    try:
        call()
    except kinds:
        return True
    return False


def own(name: str) -> Any:
    """What the target has by this name. None, where plain torch is the reference."""
    return offered(name, None)


def plain(x: Tensor) -> Any:
    """`x` without a history, as a tensor of torch's own class."""
    return offered("unwrap", lambda t: t)(x.detach())


def beside(x: Tensor, *found: Any) -> Results:
    """`found`, and x so that there is something to differentiate."""
    return x * 2, *found
