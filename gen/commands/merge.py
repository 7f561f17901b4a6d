"""Run `gen merge`: write the results of all shards of a run as one file.

It refuses gaps, cells that stand twice and mixtures of runs, and names them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gen.checks.tables import Cell
from gen.run.inventory import find, imported, matrix_fingerprint, tables
from gen.run.results import OF_A_RUN, CellResult, ResultsError, Writer, records, trait
from gen.run.selection.shard import parse_shard

__all__ = ["add_arguments", "merge", "run"]

_NAMED = 5  # of the cells without a result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen merge`."""
    parser.add_argument(
        "results", type=Path, nargs="+", metavar="RESULTS", help="the results file of each shard"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the results file of the whole run"
    )
    parser.add_argument(
        "--modules",
        default="generated_tests",
        metavar="FOLDER",
        help="where missing cells are looked up (default %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Merge the results files, or say why they are not one run. Return the exit code."""
    try:
        counted = merge(args.results, args.out, args.modules)
    except ResultsError as error:
        print(f"gen merge: {error}\n{args.out} was not written", file=sys.stderr)
        return 2
    print(f"{args.out}: {counted:,} cells of {len(args.results)} shards")
    return 0


def merge(paths: Sequence[Path], out: Path, modules: str = "generated_tests") -> int:
    """Write the cells of all shards to `out`, and return how many there are.

    Raises ResultsError if they are not one whole run.
    """
    headers = {path: _header(path) for path in paths}
    _refuse_mixture(headers)
    _refuse_missing_shards(headers)
    # Another name, so that a reader never sees a part of the results.
    unfinished = out.with_name(out.name + ".tmp")
    # The headers of one run say the same of it, but for the shard.
    first = dict(next(iter(headers.values())))
    first.pop("event", None)  # which the writer sets itself
    writer = Writer(unfinished, {**first, "shard": "1/1"})
    try:
        counted = _copy(paths, headers, writer, modules)
    except BaseException:
        writer.abandon()
        raise
    os.replace(unfinished, out)
    return counted


def _copy(
    paths: Sequence[Path],
    headers: Mapping[Path, Mapping[str, object]],
    writer: Writer,
    modules: str,
) -> int:
    """Copy the cells of all shards to the writer, and close it. Return how many there are."""
    copier = _Copier(paths, writer)
    wall, active = 0.0, dict[str, str]()
    for place, path in enumerate(paths):
        end = copier.add_shard(place)
        if not end.get("complete"):
            raise ResultsError(
                f"{path}: shard {headers[path]['shard']} was cut short; run it again"
            )
        wall += end.get("wall_seconds", 0.0)
        active.update(end.get("active", {}))
    expected = next(iter(headers.values()))
    # Whether an entry never happened is known only now, of all shards together.
    never = []
    if expected["narrowed"] == "no":
        copier.require_cells(expected, modules)
        unmet = active.keys() - copier.entries
        never = [f"{name}: {active[name]}" for name in sorted(unmet)]
    writer.close({"complete": True, "wall_seconds": round(wall, 2), "never_happened": never})
    return writer.cells


class _Copier:
    """Write the cells of all shards to one file, each cell once."""

    def __init__(self, paths: Sequence[Path], writer: Writer) -> None:
        self.entries: set[str] = set()  # names of the known entries that happened
        self._paths = paths
        self._writer = writer
        # digest of a cell's id -> place of its file: ids themselves would take several times the
        # memory
        self._places: dict[bytes, int] = {}

    def add_shard(self, place: int) -> Mapping[str, Any]:
        """Copy the cells of one shard. Returns its last line, empty if the run was cut short."""
        end: Mapping[str, Any] = {}
        for record in records(self._paths[place]):
            if isinstance(record, CellResult):
                self._add_cell(record, place)
            elif record["event"] == "end":
                end = record
        return end

    def _add_cell(self, cell: CellResult, place: int) -> None:
        """Write one cell. Raises ResultsError if a shard had it already."""
        first = self._places.setdefault(digest(cell.node), place)
        if len(self._places) == self._writer.cells:  # as many as before: the cell is in it
            where = f"twice in {self._paths[place]}"
            if first != place:
                where = f"in {self._paths[first]} and {self._paths[place]}"
            raise ResultsError(f"{cell.node} is {where}; give each shard once")
        self._writer.cell(cell)
        self.entries.update(cell.entries)

    def require_cells(self, header: Mapping[str, Any], modules: str) -> None:
        """Refuse shards that together lack a cell of the whole run."""
        count = header["cells"]
        if self._writer.cells != count:
            missing = _missing(self._places.keys(), header, modules)
            raise ResultsError(
                f"{count - self._writer.cells} of {count} cells have no result{missing}"
            )


def digest(node: str) -> bytes:
    """Return 16 bytes that stand for a cell's pytest id."""
    return hashlib.blake2b(node.encode(), digest_size=16).digest()


def _header(path: Path) -> dict[str, Any]:
    """Return the header of a shard's results. Raises ResultsError for any other file."""
    first = next(records(path), None)
    if not isinstance(first, dict) or first["event"] != "run":
        raise ResultsError(f"{path}: no header line; is it a results file?")
    if "partition" not in first:
        raise ResultsError(f"{path}: not of a shard; `pytest --shard I/N` writes one")
    return first


def _refuse_mixture(headers: Mapping[Path, Mapping[str, object]]) -> None:
    """Raise ResultsError if headers are of different runs."""
    (first, expected), *others = headers.items()
    for path, header in others:
        differences = []
        for key in OF_A_RUN:
            one, other = trait(expected, key), trait(header, key)
            if one != other:
                differences.append(f"{key} {one} and {other}")
        if differences:
            raise ResultsError(
                f"{first} and {path} are of different runs: {'; '.join(differences)}"
            )


def _refuse_missing_shards(headers: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise ResultsError if a shard is missing or stands twice."""
    path_of_shard: dict[int, Path] = {}
    count = 1
    for path, header in headers.items():
        number, count = parse_shard(header["shard"])
        if number in path_of_shard:
            raise ResultsError(
                f"shard {header['shard']} is in {path_of_shard[number]} and {path}; "
                "give each shard once"
            )
        path_of_shard[number] = path
    missing = [f"{shard}/{count}" for shard in range(1, count + 1) if shard not in path_of_shard]
    if missing:
        raise ResultsError(f"no results of shard{'s' * (len(missing) > 1)} {', '.join(missing)}")


def _missing(seen: Collection[bytes], header: Mapping[str, Any], modules: str) -> str:
    """Return the first cells without a result, if the matrix is at hand."""
    all_modules = find([modules], Path.cwd())
    if matrix_fingerprint(all_modules) != header["matrix"]:
        return f"; {modules} is another matrix, so they cannot be named"
    names: list[str] = []
    for module in all_modules:
        for node in _nodes(module.name, tables(imported(module.path), header["tier"])):
            if digest(node) not in seen:
                names.append(node)
            if len(names) == _NAMED:
                # the other modules need not be imported
                return f": {', '.join(names)}, …"
    return f": {', '.join(names)}, …"


def _nodes(name: str, cells: Mapping[str, Sequence[Cell]]) -> Iterator[str]:
    for function, of_check in cells.items():
        yield from (f"{name}::{function}[{cell.id}]" for cell in of_check)
