"""Decide which numbers among the arguments are inputs of the graph: those that change.

    f(x, 0.1); f(x, 0.2); f(x, 0.3)     # two programs: for 0.1, and for any float

A program whose code asks for the value, as ``if k == 2`` or ``x.sum(k)`` does, serves one value.
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
    """Hold the facts of the numbers in calls of one kind, by position."""

    # The kind with the first value.
    first: dict[int, Kind] = field(default_factory=dict)
    # The numbers that are inputs of graphs.
    open: set[int] = field(default_factory=set)
    # The numbers that never are inputs.
    fixed: set[int] = field(default_factory=set)

    def note(self, kinds: Sequence[Kind]) -> None:
        """Open each number of a call, of arguments of these ``kinds``, whose value is not the first
        one."""
        for position, kind in enumerate(kinds):
            if not _is_number(kind) or position in self.fixed:
                continue
            if kind != self.first.setdefault(position, kind):
                self.open.add(position)


class Numbers:
    """Decide which numbers are inputs of graphs, for each kind of call of one compiled function.

    ``leading``: how many of the first arguments come before the user's. They are known to change
    from call to call, so those that are numbers are inputs at once.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[Kind, _Seen] = OrderedDict()

    def opened(
        self, around: Kind, kinds: Sequence[Kind], leading: int = 0
    ) -> tuple[list[Kind], frozenset[int]]:
        """Return ``kinds`` without the values of the numbers that are inputs, and the positions of
        these numbers."""
        if not any(map(_is_number, kinds)):
            return list(kinds), frozenset()
        seen = self._seen_for(around, kinds, leading)
        seen.note(kinds[leading:])
        # an entry counts the user's arguments alone
        inputs = {position + leading for position in seen.open}
        inputs |= {index for index, kind in enumerate(kinds[:leading]) if _is_number(kind)}
        # the value is the last item of the kind of a number
        without_values = list(kinds)
        for position in inputs:
            without_values[position] = kinds[position][:2]
        return without_values, frozenset(inputs)

    def fix(
        self, around: Kind, kinds: Sequence[Kind], positions: Collection[int], leading: int = 0
    ) -> None:
        """Let the numbers at ``positions`` be constants of the graphs from now on."""
        seen = self._seen_for(around, kinds, leading)
        of_user = {position - leading for position in positions if position >= leading}
        seen.fixed |= of_user
        seen.open -= of_user

    def _seen_for(self, around: Kind, kinds: Sequence[Kind], leading: int) -> _Seen:
        """Return the entry for calls of this kind, a new one for a new kind."""
        of_user = (kind[:2] if _is_number(kind) else kind for kind in kinds[leading:])
        # not the structure of all arguments, which changes with the leading ones
        key = (*around[1:], *of_user)
        seen = self._seen.setdefault(key, _Seen())
        self._seen.move_to_end(key)
        if len(self._seen) > _LIMIT:
            self._seen.popitem(last=False)
        return seen


class Pinned(Exception):
    """Say that the program asks for the values of the numbers at ``positions``."""

    def __init__(self, positions: Collection[int]) -> None:
        super().__init__(positions)
        self.positions = positions


def pinned_numbers(joint: Joint, unknown: Collection[int]) -> list[int]:
    """Return the positions in ``unknown`` of the numbers for whose value alone the graph is."""
    if not unknown:
        return []
    abstraction = joint.abstraction
    assert abstraction is not None, "a number is a symbol of it"
    numbers = zip(sorted(unknown), abstraction.numbers, strict=True)
    return [position for position, number in numbers if abstraction.pinned(number)]


def _is_number(kind: Kind) -> bool:
    """Return whether it is the kind of an ``int`` of 64 bits or of a finite ``float``. Arithmetic
    on symbols is not right for others."""
    if kind[1] is float:  # of which a kind has the text: 0.0 and -0.0 are equal, and not the same
        return math.isfinite(float(str(kind[2])))
    return kind[1] is int and in_range(kind[2])


def in_range(n: object) -> bool:
    """Return whether ``n`` is an integer that symbols can represent, with some room for sums."""
    return isinstance(n, int) and -(1 << 62) < n < 1 << 62
