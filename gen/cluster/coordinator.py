"""Hand out groups of cells until each cell has one outcome.

A group whose worker died is split, and its parts are handed out again. A cell that is left alone in
its group waits until nothing else is left, and then runs with no other at the same time. So a death
in this time is its own. After two of them the cell has crashed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gen.cluster.job import Answer, Group
from gen.cluster.work import died

__all__ = ["Coordinator", "Lost", "Pool", "Sink"]

_PARTS = 8  # of a group whose worker died
_DEATHS = 2  # of workers that ran a cell alone


@dataclass(frozen=True)
class Lost:
    """What came of a group whose worker died."""

    why: str


class Pool(Protocol):
    """Workers, however many there are at the moment."""

    def room(self) -> int:
        """Return how many groups to have out at a time."""

    def submit(self, key: int, group: Group) -> None:
        """Hand out a group. Something comes of each key once."""

    def finished(self, seconds: float) -> Sequence[tuple[int, Answer | Lost]]:
        """Return what came of groups. Waits for the first for at most `seconds`."""


class Sink(Protocol):
    """Where outcomes go."""

    def take(self, nodes: Sequence[str], answer: Answer) -> None:
        """Keep what came of a group, whose cells have these pytest ids."""


class Coordinator:
    """Keep a pool busy.

    It knows only the groups that are out, the parts of split ones, and the suspects.
    """

    def __init__(
        self, groups: Iterator[Group], pool: Pool, sink: Sink, tick: Callable[[Coordinator], None]
    ) -> None:
        self.lost = 0  # groups whose worker died
        self._groups = groups
        self._pool = pool
        self._sink = sink
        self._tick = tick  # called after each round
        self._parts: deque[Group] = deque()  # of split groups, to be handed out first
        # groups of one cell whose worker died, with how often it died while the cell ran alone
        self._suspects: deque[tuple[Group, int]] = deque()
        self._out: dict[int, Group] = {}  # by key
        self._key = 0  # of the group that was handed out last

    def run(self) -> None:
        """Run until every group has an outcome."""
        while self._fill():
            for key, came in self._pool.finished(0.5):
                self._receive(self._out.pop(key), came)
            self._tick(self)
        while self._suspects:
            self._try(*self._suspects.popleft())

    @property
    def out(self) -> int:
        """Return how many groups are out."""
        return len(self._out)

    def _fill(self) -> bool:
        """Hand out groups while there is room. Returns whether any are out."""
        while len(self._out) < self._pool.room():
            group = self._parts.popleft() if self._parts else next(self._groups, None)
            if group is None:
                break
            self._submit(group)
        return bool(self._out)

    def _submit(self, group: Group) -> None:
        self._key += 1
        self._out[self._key] = group
        self._pool.submit(self._key, group)

    def _receive(self, group: Group, came: Answer | Lost) -> None:
        """Pass an answer on. Split a group whose worker died, or suspect its only cell."""
        if isinstance(came, Answer):
            self._sink.take(group.nodes(), came)
            return
        self.lost += 1
        if len(group.cells) > 1:
            self._parts.extend(group.split(_PARTS))
        else:
            self._suspects.append((group, 0))

    def _try(self, group: Group, deaths: int) -> None:
        """Run one suspect alone."""
        # Nothing else is out now, so a death is this cell's.
        self._submit(group)
        while self._out:
            for key, came in self._pool.finished(0.5):
                del self._out[key]
                if isinstance(came, Answer):
                    self._sink.take(group.nodes(), came)
                elif deaths + 1 < _DEATHS:
                    self._suspects.appendleft((group, deaths + 1))
                else:
                    self._sink.take(group.nodes(), _crashed(group, came.why))
            self._tick(self)


def _crashed(group: Group, cause: str) -> Answer:
    """Return the answer for the only cell of a group, whose worker died each time."""
    function, cell = group.cells[0]
    why = f"its worker died, each of the {_DEATHS} times that it ran alone: {cause}"
    line = died(group.module, function, cell, why)
    return Answer((("crashed", line),), frozenset(), {}, 0.0)
