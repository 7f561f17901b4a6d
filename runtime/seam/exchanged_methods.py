"""Exchanges a method of a class of torch's while a thread captures a program.

    exchange = ExchangedMethod(nn.TransformerEncoder, "forward", make, captures)
    exchange.enter()        # nn.TransformerEncoder.forward is make(torch's method, captures)
    exchange.exit()         # it is torch's once more, if no other capture runs

Some methods of torch's ask for the elements of a tensor to choose what they do. A capture has
none, so a method of this package does the same by a condition in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .locks import lock_of

Captures = Callable[[], bool]
"""Tells whether this thread captures a program. For any other thread the method is torch's."""
Method = Callable[..., Any]


class ExchangedMethod:
    """A method ``name`` of the class ``owner``.

    ``make``: gives the method that stands in, from torch's and ``captures``.
    """

    def __init__(
        self, owner: type, name: str, make: Callable[[Method, Captures], Method], captures: Captures
    ) -> None:
        self._owner, self._name = owner, name
        self._make, self._captures = make, captures
        self._lock = lock_of(self, "_lock")
        self._running = 0  # captures, in all threads
        self._torchs: Method = getattr(owner, name)

    def enter(self) -> None:
        """Exchange the method, if no other capture has done so."""
        with self._lock:
            if not self._running:
                self._torchs = getattr(self._owner, self._name)
                setattr(self._owner, self._name, self._make(self._torchs, self._captures))
            self._running += 1

    def exit(self) -> None:
        """Put torch's method back, if no other capture runs."""
        with self._lock:
            self._running -= 1
            if not self._running:
                setattr(self._owner, self._name, self._torchs)
