"""Define the vocabulary of a generated module: `op` rows, the `cases` decorator, `family` and
`known` tables.

A row lists in one line which dtypes of an op run at which tier, as in ``op("torch.sin",
smoke="float64", default="float32 bfloat16")``. The import of a module only validates its rows: a
mistake raises `TableError`, because a table that is silently misread tests nothing.
`Cells.at(tier)` expands the cells of a tier when pytest asks.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gen.checks.entries import Known, TableError, known
from gen.dtypes import DTYPES
from gen.language.axes import Axes, complete

__all__ = [
    "TIERS",
    "Cell",
    "Cells",
    "Family",
    "Known",
    "Row",
    "TableError",
    "cases",
    "cells_of",
    "family",
    "known",
    "op",
]

TIERS = ("smoke", "default", "full", "all")
_NAME = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?")
_ENTRY = re.compile(r"(?P<name>\w+)(@(?P<where>[\w:.*-]+))?")
_Test = TypeVar("_Test", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Cell:
    """An op × dtype × axes under one check."""

    op: str
    dtype: str
    axes: Axes
    tier: str
    known: tuple[str, ...]

    @property
    def alone(self) -> bool:
        """Return whether the cell runs in a process of its own: it may spoil the memory of
        others.
        """
        return self.axes.reach is not None or self.axes.refusal is not None

    @property
    def id(self) -> str:
        return "-".join((self.op, self.dtype, *self.axes.spoken))


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a check: an op, the words (`dtype[:axisvalue…]`) of each tier, and the known
    entries that apply.
    """

    name: str
    words: tuple[tuple[str, str], ...]  # (word, tier)
    # (entry, the dtype and axis values to which it is narrowed)
    known: tuple[tuple[str, tuple[str, ...]], ...]


def op(
    name: str, smoke: str = "", default: str = "", full: str = "", all: str = "", known: str = ""
) -> Row:
    """Return one op of a check. Each tier runs its own words and those of the tiers before it.

    `all`: the cells that reduction drops. Raises TableError for a name, a dtype or a word that
    cannot be.
    """
    if not _NAME.fullmatch(name):
        raise TableError(
            f"op({name!r}): an op is named by a dotted name, as torch.nn.functional.conv2d"
        )
    words = []
    for tier, text in zip(TIERS, (smoke, default, full, all), strict=True):
        words += [(word, tier) for word in text.split()]
    if not words:
        raise TableError(
            f"op({name!r}): no dtype at any tier; write one under smoke=, default=, full= or all="
        )
    # A word of two tiers would run twice, or hide at which tier it runs.
    seen: set[str] = set()
    for word, tier in words:
        dtype = word.split(":", 1)[0]
        if dtype not in DTYPES:
            raise TableError(
                f"op({name!r}, {tier}=…): {dtype!r} is not a dtype; a word is dtype[:axisvalue…]"
            )
        if word in seen:
            raise TableError(
                f"op({name!r}): {word!r} stands twice; "
                "a case belongs to the first tier that takes it"
            )
        seen.add(word)
    return Row(name, tuple(words), tuple(_narrowings(name, known)))


def _narrowings(name: str, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the entries of a line, each with the words to which it is narrowed."""
    for item in text.split():
        match = _ENTRY.fullmatch(item)
        if match is None:
            raise TableError(
                f"op({name!r}, known=…): {item!r} is not entry or entry@dtype[:axisvalue…]"
            )
        yield match["name"], tuple(match["where"].split(":")) if match["where"] else ()


@dataclass(frozen=True, slots=True)
class Cells:
    """All rows of one check, with its axes. `cases` attaches it to the test function."""

    rows: tuple[Row, ...]
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    timeout: float | None = None

    def at(self, tier: str) -> Iterator[Cell]:
        """Yield the cells of `tier` and of the smaller tiers.

        Rows are in the order of the table, words are sorted.
        """
        highest = TIERS.index(tier)
        names = [name for name, _ in self.axes]
        for row in self.rows:
            for word, tier_of_word in sorted(row.words):
                if TIERS.index(tier_of_word) <= highest:
                    dtype, *spoken = word.split(":")
                    words = dict(zip(names, complete(spoken, names), strict=True))
                    yield _cell(row.name, dtype, words, tier_of_word, row.known)

    def named(self, case: str) -> Cell | None:
        """Return the cell with the id `case`, whether a tier has it or not; None if no cell of the
        check can have that id."""
        name, _, word = case.partition("-")
        dtype, *spoken = word.split("-")
        names = [name for name, _ in self.axes]
        values = complete(spoken, names)
        if dtype not in DTYPES or len(values) != len(names):
            return None
        if any(value not in allowed for value, (_, allowed) in zip(values, self.axes, strict=True)):
            return None
        known_entries = next((row.known for row in self.rows if row.name == name), ())
        return _cell(name, dtype, dict(zip(names, values, strict=True)), TIERS[-1], known_entries)


def _cell(
    name: str,
    dtype: str,
    words: Mapping[str, str],
    tier: str,
    known: tuple[tuple[str, tuple[str, ...]], ...],
) -> Cell:
    """Return the cell with these words of its axes, and those of the `known` entries that apply."""
    entries = tuple(
        dict.fromkeys(entry for entry, where in known if set(where) <= {dtype, *words.values()})
    )
    return Cell(name, dtype, Axes.varying(words), tier, entries)


def cases(
    *rows: Row, axes: Mapping[str, Sequence[str]] | None = None, timeout: float | None = None
) -> Callable[[_Test], _Test]:
    """Run the decorated check once for each cell of `rows`, for at most `timeout` seconds each. The
    check takes one argument, `case`."""
    table = tuple((name, tuple(values)) for name, values in (axes or {}).items())
    _validate_axes(table)
    names = [row.name for row in rows]
    if not rows:
        raise TableError("cases(): no ops; a check without ops should not be generated")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TableError(f"cases(): op {twice!r} stands on two lines; write its dtypes on one")
    for row in rows:
        _validate_row(row, table)

    def decorate(test: _Test) -> _Test:
        if list(inspect.signature(test).parameters) != ["case"]:
            raise TableError(f"{test.__qualname__}: a check takes exactly one argument, case")
        test.__dict__["matrix_cells"] = Cells(rows, table, timeout)
        return test

    return decorate


def cells_of(test: object) -> Cells | None:
    """Return the table that `cases` attached to `test`, or None for a test outside of the
    matrix."""
    table = getattr(test, "matrix_cells", None)
    return table if isinstance(table, Cells) else None


def _validate_axes(axes: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Raise TableError unless values of axes exist, and differ from one another and from dtypes."""
    pairs = [(name, value) for name, words in axes for value in words]
    for name, value in pairs:
        try:
            Axes.varying({name: value})
        except ValueError as error:
            raise TableError(f"cases(axes=…): {error}") from None
    values = [value for _, value in pairs]
    if len(set(values)) < len(values) or set(values).intersection(DTYPES):
        raise TableError(
            "cases(axes=…): axis values must be unique within a check and differ from "
            f"dtypes: {' '.join(values)}"
        )


def _validate_row(row: Row, axes: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Raise TableError for a word of a row, or a known entry, that fits nothing."""
    words = [_validate_word(row, word, axes) for word, _ in row.words]
    for entry, where in row.known:
        if not any(set(where) <= word for word in words):
            raise TableError(
                f"op({row.name!r}): "
                f"known entry {entry}@{':'.join(where)} matches no word of the line"
            )


def _validate_word(row: Row, word: str, axes: Sequence[tuple[str, tuple[str, ...]]]) -> set[str]:
    """Return the dtype and the axis values of a word, such as `float32:vmap`."""
    names = [name for name, _ in axes]
    dtype, *short = word.split(":")
    values = complete(short, names)
    if len(values) != len(axes):
        wanted = "".join(f":{name}" for name in names) or " alone"
        raise TableError(
            f"op({row.name!r}): {word!r} has {len(values)} axis values; "
            f"this check takes dtype{wanted}"
        )
    for value, (name, allowed) in zip(values, axes, strict=True):
        if value not in allowed:
            raise TableError(
                f"op({row.name!r}): {value!r} in {word!r} is not a value of axis {name!r} "
                f"({', '.join(allowed)})"
            )
    return {dtype, *values}


@dataclass(frozen=True)
class Family:
    """The tables that a module's cases share: rows that need more than OpInfo, and the
    known deviations."""

    name: str
    ops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    timeout: float | None = None

    def limit(self, op: str, cells: Cells) -> float | None:
        """Return the seconds that a cell of `op` may take, by its row, its check or its family, in
        this order."""
        of_op: float | None = self.ops.get(op, {}).get("timeout")
        return next(
            (seconds for seconds in (of_op, cells.timeout, self.timeout) if seconds is not None),
            None,
        )

    def entries(self, cell: Cell) -> dict[str, Known]:
        """Return the known entries written on the line of `cell`, by name."""
        missing = [name for name in cell.known if name not in self.known]
        if missing:
            raise TableError(
                f"{cell.id}: the known table of family {self.name!r} has no "
                f"entry {', '.join(missing)}"
            )
        return {name: self.known[name] for name in cell.known}


def family(
    name: str,
    ops: Mapping[str, Mapping[str, Any]] | None = None,
    known: Mapping[str, Known] | None = None,
    timeout: float | None = None,
) -> Family:
    """Return the module-wide table. A generated module calls this once, as `FAMILY`."""
    for op_name, row in (ops or {}).items():
        if not isinstance(row, Mapping):
            raise TableError(f"family({name!r}): ops[{op_name!r}] is not a mapping")
    for entry_name, entry in (known or {}).items():
        if not re.fullmatch(r"\w+", entry_name):
            raise TableError(f"family({name!r}): known entry {entry_name!r} is not a word")
        if not isinstance(entry, Known):
            raise TableError(f"family({name!r}): known[{entry_name!r}] is not made by known(…)")
    return Family(name, dict(ops or {}), dict(known or {}), timeout)
