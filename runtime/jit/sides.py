"""Branches on numbers that a program computes: a program for each side.

    if grad_norm.item() > 1.0:          # the first call takes a side, and the graph is for it
        rate = 0.1

The graph asks at the branch whether the number is on its side, and raises :class:`OtherSide` if
not. It has changed nothing by then. So the call tries the programs for other sides, and captures
one more if there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..seam.ambient import Ambient
from ..seam.generator_states import GeneratorStates
from ..trace.number_reads import OtherSide

LIMIT = 16
"""Ways through its branches for which one function has programs."""
_CAPTURES = 64
"""How often one call may capture a program until one is for its way."""


class Side:
    """An argument of the program, by which it is captured once for each way through its
    branches. ``way``: the sides that a capture is to take first, see
    :func:`..trace.number_reads.going`."""

    def __init__(self, way: str = "") -> None:
        self.way = way


class _Draws(Ambient):
    """``before``: the states of the generators before this thread's last graph that draws."""

    before: GeneratorStates | None = None


DRAWS = _Draws()


class Sides:
    """The ways through the branches of one function. ``known``: in the order in which calls try
    them; None is the first one's."""

    def __init__(self) -> None:
        self.known: list[Side | None] = [None]

    def by_another(self, run: Callable[[Side | None], object], other: OtherSide) -> Any:
        """Return the result ``run(side)`` by another program than the first one, which has raised
        ``other``. If all are for other sides, one more is captured."""
        undraw()
        for side in self.known[1:]:
            try:
                result = run(side)
            except OtherSide as error:
                undraw()
                # the one that has come furthest says most of the way of this call
                other = max(other, error, key=_length)
                continue
            self._put_first(side)
            return result
        return self._captured(run, other)

    def _captured(self, run: Callable[[Side | None], object], other: OtherSide) -> Any:
        """Return the result by a new program. Its capture draws other random numbers than the call,
        and may leave the way that is known of this call at a later branch. So the next one goes
        further, while there is more to know."""
        tried: set[str] = set()
        while other.way not in tried and len(tried) < _CAPTURES:
            tried.add(other.way)
            if len(self.known) >= LIMIT:
                raise RuntimeError(
                    f"the program has taken {LIMIT} ways through branches on numbers that it "
                    "computes, and this call takes one more. Use torch.where for a choice, or "
                    f"leave the loop or branch out of what is jitted.{other.where}"
                )
            side = Side(other.way)
            try:
                result = run(side)
            except OtherSide as error:
                undraw()
                other = error
                continue
            self._put_first(side)
            return result
        raise RuntimeError(
            f"a branch on a number takes another side whenever it is run.{other.where}"
        )

    def _put_first(self, side: Side | None) -> None:
        """Let the next call try the program for ``side`` first."""
        self.known = [side, *(known for known in self.known if known is not side)]


def _length(other: OtherSide) -> int:
    return len(other.way)


def undraw() -> None:
    """Put back the generators from which the graph of a call has drawn that is on another side."""
    if DRAWS.before is not None:
        DRAWS.before.restore()
        DRAWS.before = None
