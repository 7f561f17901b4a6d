"""Attributes that a user has given to tensors, asked of the values that stand for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from .ambient import Ambient


class _Asking(Ambient):
    """``ask``: gives what the tensor has for which a value of this thread's capture stands; raises
    ``AttributeError`` if there is nothing."""

    ask: Callable[[Any, str], Any] | None = None


ASKING = _Asking()


def attribute(v: Any, name: str) -> Any:
    """What ``v.name`` is, which Python has not found."""
    kind: Any = type(v)
    if ASKING.ask is None or name.startswith("__") or _is_own(kind, name):
        return object.__getattribute__(v, name)  # the same error once more
    return ASKING.ask(v, name)


def given(v: Any) -> list[str]:
    """The names of the attributes that a program has given to the value ``v``."""
    kind: Any = type(v)
    return [name for name in vars(v) if not (name.startswith("__") or _is_own(kind, name))]


@cache
def _is_own(kind: Any, name: str) -> bool:
    """Whether ``name`` is one of the class, and not of the user's."""
    return hasattr(kind, name) or any(name in inspect.get_annotations(c) for c in kind.__mro__)
