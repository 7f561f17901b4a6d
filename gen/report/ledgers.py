"""The results files of a project: which there are, and which of them are one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gen.run.results import OF_A_RUN, Results, ResultsError, read, trait

__all__ = ["in_folder", "joined", "newest", "recorded"]


def recorded() -> list[Path]:
    """The results files of runs that were not narrowed, oldest first."""
    found = [
        path
        for path in Path(".cache/matrix").glob("results-*.jsonl")
        if not path.stem.endswith("-part")
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def newest() -> Path:
    found = recorded()
    if not found:
        raise ResultsError(
            "no results in .cache/matrix; run `pytest generated_tests` first, "
            "or name a file with --results"
        )
    return found[-1]


def in_folder(folder: Path) -> list[Results]:
    """Every results file of a folder, oldest first: by the time in its header, else by the
    file's."""
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise ResultsError(f"{folder}: it has no results file (*.jsonl)")
    results = [(path, read(path)) for path in found]
    results.sort(key=lambda pair: (_began(pair[1]), pair[0].stat().st_mtime))
    return [result for _, result in results]


def _began(result: Results) -> str:
    return str(result.header.get("began", result.header.get("date", "")))


def joined(results: Sequence[Results]) -> list[Results]:
    """Join shards of one run: those whose headers agree in what :data:`OF_A_RUN` names. Every
    other file is a run."""
    found: dict[tuple[Any, ...], Results] = {}
    for number, result in enumerate(results):
        header = result.header
        sharded = header.get("shard", "1/1") != "1/1"
        key = (
            ("shards", *(trait(header, name) for name in OF_A_RUN)) if sharded else ("file", number)
        )
        before = found.get(key)
        if before is None:
            found[key] = result
            continue
        if header["shard"] in before.header["shard"].split(", "):
            which = f"shard {header['shard']} of {header['target']} on {header['device']}"
            raise ResultsError(f"{which} stands in two files; give each shard once")
        end = {
            "complete": bool(before.end.get("complete") and result.end.get("complete")),
            "wall_seconds": before.end.get("wall_seconds", 0) + result.end.get("wall_seconds", 0),
            "never_happened": [],
        }
        header = {**before.header, "shard": f"{before.header['shard']}, {header['shard']}"}
        found[key] = Results(header, before.cells + result.cells, end)
    return list(found.values())
