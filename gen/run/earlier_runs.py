"""Keep the results of earlier runs, from which the report draws the history of a cell.

A run writes to ``.cache/matrix/results-torch-cpu.jsonl``. What stood there moves to
``.cache/matrix/earlier/results-torch-cpu@2026-11-30T08-15-28-250000.jsonl``.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gen.run.results import Results, ResultsError, read

__all__ = ["earlier_than", "keep"]

_RESULTS = Path(".cache/matrix")
_EARLIER = _RESULTS / "earlier"
_KEPT = 8  # runs of each results file


def keep(path: Path) -> None:
    """Move the results that a new run would write over, and forget the oldest of these.

    Only files of the project's cache move. One that ``--results`` names is written over.
    """
    with suppress(OSError):  # the history is a convenience: a run does without it
        in_cache = path.absolute().parent.parts[-2:] == _RESULTS.parts
        if not in_cache or not path.is_file():
            return
        folder = path.parent / _EARLIER.name
        folder.mkdir(exist_ok=True)
        ended = datetime.datetime.fromtimestamp(path.stat().st_mtime)
        path.rename(folder / f"{path.stem}@{ended:%Y-%m-%dT%H-%M-%S-%f}.jsonl")
        # The names sort by time.
        for old in sorted(folder.glob(f"{path.stem}@*.jsonl"))[:-_KEPT]:
            old.unlink()


def earlier_than(run: Results) -> list[Results]:
    """Return the kept runs of the same target and device that began before `run`, oldest first.

    A file that cannot be read is named on stderr and left out.
    """
    alike = [other for other in _readable() if _is_before(other, run)]
    return sorted(alike, key=_began)[-_KEPT:]


def _readable() -> Iterator[Results]:
    """Yield the runs of the cache that can be read."""
    for path in [*_RESULTS.glob("results-*.jsonl"), *_EARLIER.glob("results-*.jsonl")]:
        try:
            yield read(path)
        except ResultsError as error:
            print(f"left out of the history: {error}", file=sys.stderr)


def _is_before(other: Results, run: Results) -> bool:
    """Return whether a run is an earlier one of the same target and device."""
    is_alike = all(other.header.get(key) == run.header.get(key) for key in ("target", "device"))
    # A header without the time says nothing of the order.
    return is_alike and "" != _began(other) < _began(run)


def _began(run: Results) -> str:
    """Return when a run began, as a text that sorts by time; empty if its file does not say."""
    return str(run.header.get("began", ""))
