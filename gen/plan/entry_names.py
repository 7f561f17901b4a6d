"""Name entries, for generated modules, `gen list` and `gen explain`.

An entry with the reason «the op has no formula for a tangent» is named `op_no_formula_tangent`. A
second entry with these words is `op_no_formula_tangent_2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

WORDS = 6  # of a name, at most
WIDTH = 48  # letters of a name, at most
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        """a an and are as at be been but by for from had has have if in is it its of on one or so
        such than that the their them then there these they this those to was were where which while
        whose with""",
    )
)
_REFERENCE = re.compile(r"\([^)]*docs/[^)]*\)")
_POSSESSIVE = re.compile(r"['’]s\b")
_WORD = re.compile(r"[a-z0-9]+(?:-[a-z]+)*")


def words_of(text: str, kind: str) -> str:
    """Return an identifier from the first significant words of `text`.

    `kind` comes first if no word can start an identifier.
    """
    text = _POSSESSIVE.sub("", _REFERENCE.sub("", text.lower()))
    chosen: list[str] = []
    for word in _WORD.findall(text):
        if word in _FILLERS or chosen[-1:] == [word]:
            continue
        if len(chosen) == WORDS or len("_".join([*chosen, word])) > WIDTH:
            break
        chosen.append(word.replace("-", "_"))
    name = "_".join(chosen)
    return name if name[:1].isalpha() else f"{kind}_{name}".rstrip("_")


class UniqueNames:
    """Give each name once.

    The first of equal names is unchanged. The others are numbered from 2, in the order of the
    calls. An entry that is added after them changes no name. One that is added between them shifts
    the numbers after it. `name:` on an entry fixes its name.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def give(self, wanted: str) -> str:
        """Return `wanted`, or `wanted_2`, `wanted_3`, … if it is taken."""
        name, number = wanted, self._last.get(wanted, 1)
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._last[wanted] = number
        self._taken.add(name)
        return name
