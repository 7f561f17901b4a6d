"""Match globs with the names of one kind of thing: ops, checks, families, dtypes, axis values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate

_ALL = ("*", "all")


class Names:
    """Names, each with a set as the bits of an integer.

    A glob stands for the union of the sets of the names that it matches. Each glob is resolved
    once. `all` is the same as `*`.
    """

    def __init__(self, sets: Mapping[str, int], what: str) -> None:
        self.sets = sets
        self.what = what
        self._answers: dict[str, int | None] = {}

    def match(self, glob: str) -> int | None:
        """Return the union of the sets of the names that `glob` matches, or None if it matches
        none.
        """
        if glob not in self._answers:
            named = self.named(glob)
            # "All of nothing" is the empty set, and no mistake as another glob would be.
            has_meaning = bool(named) or glob in _ALL
            self._answers[glob] = None
            if has_meaning:
                self._answers[glob] = _union(self.sets[name] for name in named)
        return self._answers[glob]

    def match_any(self, globs: Sequence[str]) -> int:
        """Return the union for all of `globs`."""
        return _union(self.match(glob) or 0 for glob in globs)

    def named(self, glob: str) -> list[str]:
        """Return the names that `glob` matches, in order."""
        if glob in self.sets:
            return [glob]
        if glob in _ALL:
            return list(self.sets)
        if not is_glob(glob):
            return []
        matches = re.compile(translate(glob)).match
        return list(filter(matches, self.sets))


def is_glob(text: str) -> bool:
    """Return whether `text` can match more than one name."""
    return any(character in text for character in "*?[")


def _union(sets: Iterable[int]) -> int:
    union = 0
    for one in sets:
        union |= one
    return union
