"""The levels in scope: those in whose function the present code runs.

    vmap(grad(f))     while f runs, SCOPE.levels is (level of vmap, level of grad)

The levels themselves are in :mod:`.levels`. Here they are as far as the scope needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from .ambient import Ambient


class RunningLevel(Protocol):
    """A :class:`.levels.Level`, as far as it matters here."""

    number: int
    # Whether its values have a history, as those of a tape.
    keeps_history: bool
    # The number of leading dimensions that its function does not see, as those of a batch.
    hidden: int

    def wrap(self, inner: torch.Tensor, history: Any = None, /) -> Any:
        """Return a value of this level with the inner tensor ``inner``."""
        ...

    def on_close(self, finalize: Callable[[], None]) -> None:
        """Call ``finalize`` when the transform returns."""
        ...


class Scope(Ambient):
    """The levels in whose function the present code runs, outermost first. Those with a history are
    listed, by :meth:`.levels.Level.run_inside`.

    Example: ``b = c.clone(); b[0] = x[0]`` in a differentiated function of ``x``. ``c`` comes from
    outside and is no value of the level. But a value is written into ``b``. So the fresh result of
    an ATen call is *lifted*: it becomes a value of every level in whose scope the call was made, as
    in torch. The rules of a level are not code of its function. While a rule runs, only outer
    levels are listed.
    """

    levels: tuple[RunningLevel, ...] = ()


SCOPE = Scope()


def levels_outside(level: RunningLevel) -> tuple[RunningLevel, ...]:
    """Return the levels in scope that are outer levels of ``level``."""
    levels = SCOPE.levels
    # ordered by number: `level` and what is inside of it come last
    while levels and levels[-1].number >= level.number:
        levels = levels[:-1]
    return levels


@contextmanager
def scope_outside(level: RunningLevel) -> Iterator[None]:
    """Run the body of a ``with`` block as a rule of ``level``: only outer levels are in scope."""
    around = SCOPE.levels
    SCOPE.levels = levels_outside(level)
    try:
        yield
    finally:
        SCOPE.levels = around


def is_floating(tensor: torch.Tensor) -> bool:
    """Return whether the numbers in ``tensor`` are floating-point ones, real or complex. Others
    have no derivative."""
    return tensor.is_floating_point() or tensor.is_complex()


def lifted(result: Any, number: int, given: Sequence[object] = ()) -> Any:
    """Return a fresh result of the level with that number, or a list of them, as a value of each
    inner level in whose scope the call is.

    ``given``: the arguments of the call. In inference mode a composite op such as ``atleast_2d``
    arrives whole, and may return one of them.
    """
    if isinstance(result, torch.Tensor):
        # integers have no derivative, and levels in scope are those with a history
        if is_floating(result) and not _is_among(result, given):
            # outermost first, so that the value of an inner level has that of an outer one inside
            for level in SCOPE.levels:
                if level.number > number:
                    result = level.wrap(result)
        return result
    if type(result) is tuple or type(result) is list:
        return type(result)(lifted(item, number, given) for item in result)
    return result


def _is_among(tensor: torch.Tensor, arguments: Iterable[Any]) -> bool:
    """Return whether ``tensor`` is one of ``arguments``, or in a list among them."""
    for argument in arguments:
        if argument is tensor:
            return True
        if type(argument) in (list, tuple) and _is_among(tensor, argument):
            return True
    return False
