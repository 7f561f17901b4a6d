"""Numbers among the arguments. One that changes from call to call becomes an input of the graph.

    f(x, 0.1); f(x, 0.2); f(x, 0.3)     # two programs: for 0.1, and for any float

A program whose code asks for the value, as ``if k == 2`` does or ``x.sum(k)``, stays
one for each value.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..capture.joint import Joint
from .arguments import Kind

_LIMIT = 256  # kinds of calls that are remembered


@dataclass
class _Seen:
    """Of the numbers in calls of one kind, by position: the first value, which are inputs of
    graphs, which never are."""

    first: dict[int, Kind] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)


class Numbers:
    """Which numbers are inputs of graphs, for each kind of call of one compiled function.
    ``leading``: how many of the first arguments come before the user's. They are known to change
    from call to call, so those that are numbers are inputs at once."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Kind, _Seen] = OrderedDict()

    def opened(
        self, around: Kind, kinds: Sequence[Kind], leading: int = 0
    ) -> tuple[list[Kind], frozenset[int]]:
        """``kinds`` without the values of the numbers that are inputs, and the
        positions of these."""
        if not any(map(_is_number, kinds)):
            return list(kinds), frozenset()
        seen = self._of(around, kinds, leading)
        for index, kind in enumerate(kinds[leading:], leading):
            position = index - leading
            if not _is_number(kind) or position in seen.fixed:
                continue
            if kind != seen.first.setdefault(position, kind):
                seen.open.add(position)
        found = {i + leading for i in seen.open}
        found |= {i for i, kind in enumerate(kinds[:leading]) if _is_number(kind)}
        return [kind[:2] if i in found else kind for i, kind in enumerate(kinds)], frozenset(found)

    def fix(
        self, around: Kind, kinds: Sequence[Kind], positions: Collection[int], leading: int = 0
    ) -> None:
        """From now on the numbers at ``positions`` are constants of the graphs."""
        seen = self._of(around, kinds, leading)
        found = {i - leading for i in positions if i >= leading}
        seen.fixed |= found
        seen.open -= found

    def _of(self, around: Kind, kinds: Sequence[Kind], leading: int) -> _Seen:
        of_user = (kind[:2] if _is_number(kind) else kind for kind in kinds[leading:])
        # not the structure of all arguments, which changes with the leading ones
        key = (*around[1:], *of_user)
        found = self._seen.setdefault(key, _Seen())
        self._seen.move_to_end(key)
        if len(self._seen) > _LIMIT:
            self._seen.popitem(last=False)
        return found


class Pinned(Exception):
    """The program asks for the values of the numbers at ``positions``."""

    def __init__(self, positions: Collection[int]) -> None:
        super().__init__(positions)
        self.positions = positions


def refuse_pinned(joint: Joint, unknown: Collection[int]) -> None:
    """Raise :class:`Pinned` if the graph is for one value of a number at ``unknown``."""
    abstraction = joint.abstraction
    assert abstraction is not None, "a number is a symbol of it"
    pinned = [
        i
        for i, n in zip(sorted(unknown), abstraction.numbers, strict=True)
        if abstraction.pinned(n)
    ]
    if pinned:
        raise Pinned(pinned)


def _is_number(kind: Kind) -> bool:
    """Return whether it is the kind of an ``int`` of 64 bits or of a finite ``float``. Arithmetic
    on symbols is not right for others."""
    if kind[1] is float:
        return math.isfinite(float(str(kind[2])))
    return kind[1] is int and in_range(kind[2])


def in_range(n: object) -> bool:
    return isinstance(n, int) and -(1 << 62) < n < 1 << 62
