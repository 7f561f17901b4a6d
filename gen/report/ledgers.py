"""List the results files of a project, and join those of one run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from gen.run.results import LAST, OF_A_RUN, Results, ResultsError, read, trait

__all__ = ["files_in", "in_folder", "joined", "last", "newest", "newest_whole", "recorded"]


def recorded() -> list[Path]:
    """Return the results files of runs that were not narrowed, oldest first."""
    every = Path(".cache/matrix").glob("results-*.jsonl")
    paths = [path for path in every if not path.stem.endswith("-part")]
    return sorted(paths, key=lambda path: path.stat().st_mtime)


def newest() -> Path:
    """Return the results file of the newest whole run.

    If none is whole, that of the newest run: its page says that it was cut.
    """
    paths = recorded()
    if not paths:
        raise ResultsError(
            "no results in .cache/matrix; run `pytest generated_tests` first, "
            "or name a file with --results"
        )
    return next(filter(_is_whole, reversed(paths)), paths[-1])


def last() -> Path:
    """Return the results file of the last run, whole or narrowed."""
    try:
        return Path(LAST.read_text("utf-8"))
    except OSError as error:
        raise ResultsError(
            f"{LAST}: {error.strerror}; run `pytest generated_tests` first"
        ) from error
    except ValueError as error:
        raise ResultsError(
            f"{LAST}: it names no file; run `pytest generated_tests` again"
        ) from error


def newest_whole(apart: Sequence[Path]) -> Path:
    """Return the results file of the newest run that came to its end and is no shard, which is not
    one of `apart`.
    """
    others = set(map(Path.resolve, apart))
    for path in reversed(recorded()):
        if path.resolve() not in others and _is_whole(path):
            return path
    raise ResultsError(
        "no other whole run in .cache/matrix to compare with; run `pytest generated_tests` first, "
        "or name a second run"
    )


def _is_whole(path: Path) -> bool:
    try:
        result = read(path)
    except ResultsError:
        return False
    return not (result.cut or _is_sharded(result))


def files_in(folder: Path) -> list[Path]:
    """Return the results files of a folder."""
    return sorted(folder.glob("*.jsonl"))


def in_folder(folder: Path) -> list[Results]:
    """Return every results file of a folder, oldest first: by the time in its header, else by the
    file's.
    """
    paths = files_in(folder)
    if not paths:
        raise ResultsError(f"{folder}: it has no results file (*.jsonl)")
    results = [(path, read(path)) for path in paths]
    results.sort(key=lambda pair: (_began(pair[1]), pair[0].stat().st_mtime))
    return [result for _, result in results]


def _began(result: Results) -> str:
    """Return when a run began. Files of older versions have the day alone."""
    return str(result.header.get("began", result.header.get("date", "")))


def joined(results: Sequence[Results]) -> list[Results]:
    """Join shards of one run, and return the runs.

    They are those whose headers agree in what :data:`OF_A_RUN` names and in the number of shards. A
    shard that a run has already begins another run. Every other file is a run.
    """
    groups: list[list[Results]] = []
    # A shard goes to the first run that lacks it.
    for result in results:
        group = next((some for some in groups if _is_one_of(result, some)), None)
        if group is None:
            groups.append([result])
        else:
            group.append(result)
    return list(map(_join, groups))


def _is_one_of(result: Results, group: Sequence[Results]) -> bool:
    """Return whether a shard is one that a run lacks.

    Raises :class:`ResultsError` if it is one that the run has.
    """
    if not (_is_sharded(result) and _run_of(result) == _run_of(group[0])):
        return False
    same = [other for other in group if other.header["shard"] == result.header["shard"]]
    # The same shard of two runs differs in when it began. With the same time it is one file twice.
    if any(_began(other) == _began(result) for other in same):
        header = result.header
        which = f"shard {header['shard']} of {header['target']} on {header['device']}"
        raise ResultsError(f"{which} stands in two files; give each shard once")
    return not same


def _is_sharded(result: Results) -> bool:
    return bool(result.header.get("shard", "1/1") != "1/1")


def _run_of(result: Results) -> tuple[object, ...]:
    """Return what the shards of one run have in common."""
    total = str(result.header.get("shard", "1/1")).partition("/")[2]
    return (total, *(trait(result.header, name) for name in OF_A_RUN))


def _join(group: Sequence[Results]) -> Results:
    """Return the run of shards. One shard stays as it is."""
    if len(group) == 1:
        return group[0]
    ordered = sorted(group, key=lambda shard: int(shard.header["shard"].partition("/")[0]))
    parts = {shard.header["shard"]: _began(shard) for shard in ordered}
    header = {**ordered[0].header, "shard": ", ".join(parts), "parts": parts}
    if began := min(filter(None, parts.values()), default=""):
        header["began"] = began
    end = {
        "complete": all(shard.end.get("complete") for shard in ordered),
        "wall_seconds": sum(shard.end.get("wall_seconds", 0) for shard in ordered),
        # an entry that did not happen in one shard may have happened in another
        "never_happened": [],
    }
    cells = tuple(chain.from_iterable(shard.cells for shard in ordered))
    return Results(header, cells, end)
