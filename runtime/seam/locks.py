"""Makes locks that nobody holds in a forked process.

    self._lock = lock_of(self, "_lock")                     # of an object
    _TURN = lock_of(sys.modules[__name__], "_TURN", RLock)  # of a module

The child of a fork has the thread that forks, and no other one. A lock that another thread held
would stay closed there for ever. So each owner gets a new lock in the child. The thread that forks
may hold the old one. Its ``with`` statement refers to the old lock, and releases that one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
Lock = AbstractContextManager[bool]
# for each owner, the functions that the child of a fork calls with it
_RENEWALS: WeakKeyDictionary[Any, list[Callable[[Any], None]]] = WeakKeyDictionary()


def in_child(owner: T, renew: Callable[[T], None]) -> None:
    """Let the child of a fork call ``renew(owner)`` before its first statement, while the owner
    lives.

    ``renew`` must have no reference to the owner of its own, which would keep the owner alive.
    """
    _RENEWALS.setdefault(owner, []).append(renew)


def lock_of(owner: object, name: str, kind: Callable[[], Lock] = threading.Lock) -> Lock:
    """Return a lock for the attribute ``name`` of ``owner``, which a child of a fork assigns anew.

    ``kind``: ``threading.Lock`` or ``threading.RLock``.
    """
    in_child(owner, partial(_assign_lock, name, kind))
    return kind()


def _assign_lock(name: str, kind: Callable[[], Lock], owner: object) -> None:
    """Give ``owner`` a new lock. A function of the module: a closure would keep the owner alive."""
    setattr(owner, name, kind())


def _renew_all() -> None:
    """Call what owners have asked for, in the child of a fork."""
    for owner, renewals in list(_RENEWALS.items()):
        for renew in renewals:
            renew(owner)


if hasattr(os, "register_at_fork"):  # Windows has none, and never forks
    os.register_at_fork(after_in_child=_renew_all)
