"""Choose the functions of a package: by name, all, or from a list on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gen.errors import nearest
from gen.packages.scan import KINDS, Entry, Scan

__all__ = ["ChoiceError", "choose"]


class ChoiceError(Exception):
    """Nothing can be chosen."""


def choose(scan: Scan, pick: str | None, *, every: bool) -> list[Entry]:
    """Return the entries of a package to test.

    ``pick``: names or ends of names, with commas between them. ``every``: all entries. Without
    both, a list with numbers asks on the terminal.
    """
    for each in scan.failed_imports:
        print(f"  {each.module} does not import: {each.error}", file=sys.stderr)
    if not scan.entries:
        kinds = ", ".join(KINDS.values())
        raise ChoiceError(f"it has nothing to test; looked for {kinds}")
    if pick is not None:
        return _named(scan.entries, pick.split(","))
    if every:
        return list(scan.entries)
    if not sys.stdin.isatty():
        raise ChoiceError(
            f"it has {len(scan.entries)} functions; choose some by --pick A,B or all by --yes"
        )
    return _asked(scan.entries)


def _named(entries: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries whose name is, or ends with, one of the names."""
    chosen: dict[str, Entry] = {}
    for name in map(str.strip, names):
        fit = [entry for entry in entries if f".{entry.name}".endswith(f".{name}")]
        if not fit:
            near = nearest(name, [entry.name.rpartition(".")[2] for entry in entries])
            hint = f" (nearest: {near})" if near else ""
            raise ChoiceError(f"--pick: it has no {name!r}{hint}")
        chosen.update((entry.name, entry) for entry in fit)
    return list(chosen.values())


def _asked(entries: Sequence[Entry]) -> list[Entry]:
    """Show the entries with numbers, and return those that are chosen."""
    for number, entry in enumerate(entries, 1):
        print(f"{number:4}  {entry.name}  ({KINDS[entry.kind]})")
    answer = input("Numbers to test, such as 1 3 4 (all: empty): ").replace(",", " ").split()
    known = {str(number): entry for number, entry in enumerate(entries, 1)}
    for word in answer:
        if word not in known:
            raise ChoiceError(f"there is no number {word}")
    return [known[word] for word in answer] or list(entries)
