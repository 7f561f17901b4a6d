"""Read and write results files, in JSON lines: a header, a line per cell, and a last line if the
run ended.

``{"event":"run",…}``, ``{"event":"cell","id":"torch.sin-float64",…}``, ``{"event":"end",…}``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import IO, Any

from gen.severity import Severity

__all__ = [
    "LAST",
    "OF_A_RUN",
    "OUTCOMES",
    "CellResult",
    "Results",
    "ResultsError",
    "Writer",
    "default_path",
    "line_of",
    "parse_cell",
    "read",
    "records",
    "trait",
]

LAST = Path(".cache/matrix/last")
"""A file with the path of the results of the last run, whole or narrowed."""
OF_A_RUN = (
    "matrix",
    "partition",
    "target",
    "device",
    "tier",
    "torch",
    "sample",
    "narrowed",
    "rules",
)
"""The keys of a header in which the shards of one run agree."""
# The best outcome comes first, so the worst of several cells is the one with the last outcome.
OUTCOMES = (
    "passed",
    "skipped",
    "lacking",
    "not covered",
    "xfailed",
    "vacuous",
    "xpassed",
    "failed",
    "error",
    "timed out",
    "crashed",
)


class ResultsError(ValueError):
    """A results file cannot be read. The message names the line."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of one cell. A field is a key of its line in the file.

    The fields with a default may lack in a file of an older version.
    """

    id: str  # torch.sin-float64
    family: str
    op: str
    dtype: str
    check: str
    axes: Mapping[str, str]
    outcome: str  # one of `OUTCOMES`
    why: str  # the reason of the outcome: a message, or that of a known entry
    seconds: float
    samples: int  # how many the cell ran
    node: str  # the pytest id
    entries: tuple[str, ...] = ()  # names of the known entries that happened
    loops: Mapping[str, int] = field(default_factory=dict)  # by op: runs one element at a time
    failing: int | None = None  # the number of the first sample that failed
    rules: tuple[str, ...] = ()  # of the target, that ran: noted with `--rules` only
    # a digest of all values that the target returned: "" without a value, None in an older file
    values: str | None = None
    refusal: str = ""  # the first error that the target raised in place of values, where it may
    # of a cell that failed by an error that was caught
    severity: str = ""  # a word of :class:`gen.severity.Severity`
    cause: str = ""  # the error without its numbers, by which failures are grouped
    frame: str = ""  # the line of user code that raised it
    expected: str = ""  # the value that was due, in short
    actual: str = ""  # what the target gave in its place
    program: str = ""  # a stand-alone program that shows the failure, if a short one does


@dataclass(frozen=True, slots=True)
class Results:
    """The content of a results file. `end` is empty if the run was cut short."""

    header: Mapping[str, Any]
    cells: tuple[CellResult, ...]
    end: Mapping[str, Any] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """Count the cells by outcome."""
        return Counter(cell.outcome for cell in self.cells)

    @property
    def cut(self) -> bool:
        """Return whether the run stopped early, so that cells may lack a result."""
        return not self.end.get("complete")


def trait(header: Mapping[str, object], key: str) -> object:
    """Return what a header says of a key of :data:`OF_A_RUN`, in short.

    Of the rules it says only whether they were noted.
    """
    value = header.get(key)
    return "noted" if key == "rules" and value is not None else value


def default_path(target: str, device: str, part: str = "") -> Path:
    """Return the results file of a run.

    A narrowed run (`part`) has another file, so that it does not replace the file of a whole run.
    """
    suffix = f"-{part}" if part else ""
    return (
        Path(".cache/matrix") / f"results-{_file_word(target)}-{_file_word(device)}{suffix}.jsonl"
    )


def _file_word(text: str) -> str:
    """Return a text as a part of the name of a file: ``cuda:0`` as ``cuda_0``."""
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in text)


class Writer:
    """Write each cell when it is done, so a run that is killed leaves the results of the cells
    before.
    """

    def __init__(self, path: Path, header: Mapping[str, object] | None) -> None:
        """Begin a file with `header`. Without one, go on with the file after its last
        whole line of a cell."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.cells = 0
        if header is None:
            with path.open("rb+") as file:
                file.truncate(_end_of_cells(file))
        self._file = path.open("w" if header is not None else "a", encoding="utf-8")
        if header is not None:
            self._line({"event": "run", **header})

    def cell(self, result: CellResult) -> None:
        """Write the line of a cell."""
        self.lines([line_of(result)])

    def lines(self, lines: Sequence[str]) -> None:
        """Write the lines of cells, each from :func:`line_of`."""
        self._write("".join(f"{line}\n" for line in lines))
        self.cells += len(lines)

    def close(self, end: Mapping[str, object]) -> None:
        """Write the last line, which says that the run ended, and close the file."""
        self._line({"event": "end", **end})
        self._file.close()

    def abandon(self) -> None:
        """Remove the file, which is not to be read."""
        self._file.close()
        self.path.unlink()

    def _line(self, data: Mapping[str, object]) -> None:
        """Write a line that is not one of a cell."""
        self._write(_json(data) + "\n")

    def _write(self, text: str) -> None:
        """Write text at once. If the disk takes no more, close the file and raise."""
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:
            # An open file would write its buffer again when it is collected, and fail again.
            with suppress(OSError):
                self._file.close()
            raise


def _end_of_cells(file: IO[bytes]) -> int:
    """Return the place where the header and the cells of a results file end.

    What follows is the line of the end, or a line that is cut.
    """
    end = 0
    for line in file:
        if not line.endswith(b"\n") or line.startswith(b'{"event":"end"'):
            break
        end += len(line)
    return end


def line_of(result: CellResult) -> str:
    """Return the line of a cell, without its end."""
    return _json({"event": "cell", **asdict(result)})


def _json(data: Mapping[str, object]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def read(path: Path) -> Results:
    """Read a results file.

    Unknown keys are ignored, so that files of a newer version can be read.
    """
    header: dict[str, Any] | None = None
    end: dict[str, Any] = {}
    cells: list[CellResult] = []
    for record in records(path):
        match record:
            case CellResult():
                cells.append(record)
            case {"event": "run"}:
                header = record
            case _:
                end = record
    if header is None:
        raise ResultsError(f"{path}: no header line; is it a results file?")
    return Results(header, tuple(cells), end)


def records(path: Path) -> Iterator[dict[str, Any] | CellResult]:
    """Yield the lines of a results file, one at a time.

    A line is a cell, or the dictionary of a header or of an end. A last line that is cut is left
    out. Raises ResultsError for a file that is no results file.
    """
    _refuse_special_file(path)
    try:
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                try:
                    record = _record(line)
                except UnicodeDecodeError as error:
                    raise ResultsError(
                        f"{path}: byte {offset + error.start} is not UTF-8; is it a results file?"
                    ) from error
                except ResultsError as error:
                    raise ResultsError(f"{path}:{number}: {error}") from None
                # Only the last line may be cut. A mistake in any other one is an error.
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    # Nothing follows a line that the run was writing when it died.
                    if not file.read(1):
                        return
                    raise ResultsError(
                        f"{path}:{number}: not a line of a results file ({error})"
                    ) from error
                offset += len(line)
                if record is not None:
                    yield record
    except OSError as error:
        raise ResultsError(
            f"{path}: {error.strerror}; run `pytest generated_tests` first"
        ) from error


def _refuse_special_file(path: Path) -> None:
    """Refuse a pipe or a device, whose lines may never come."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ResultsError(f"{path}: it is no regular file")


_FIELD_NAMES = frozenset(each.name for each in fields(CellResult))
_TEXT_FIELDS = (
    *("id", "family", "op", "dtype", "check", "outcome", "why", "node", "refusal"),
    *("severity", "cause", "frame", "expected", "actual", "program"),
)
# The types of values are checked, so that no reader of a cell meets a number in place of a text.
_FIELD_TYPES: dict[str, type | UnionType] = {
    **dict.fromkeys(_TEXT_FIELDS, str), "seconds": int | float, "samples": int, "axes": dict,
    "loops": dict, "values": str | None,
}  # fmt: skip


def parse_cell(line: str) -> CellResult:
    """Return the cell of a line of a results file, as :func:`line_of` writes it."""
    return _cell(json.loads(line))


def _record(line: bytes) -> dict[str, object] | CellResult | None:
    """Parse a line. None for a line of another kind, which a newer version may write."""
    data = json.loads(line.decode("utf-8"))
    match data["event"]:
        case "run":
            _require_settings(data)
            return dict(data)
        case "end":
            return dict(data)
        case "cell":
            return _cell(data)
    return None


def _require_settings(header: Mapping[str, object]) -> None:
    """Raise ResultsError unless the header says which target, device and tier the run had."""
    settings = ("target", "device", "tier")
    absent = [key for key in settings if not isinstance(header.get(key), str)]
    if absent:
        raise ResultsError(f"the header lacks {', '.join(absent)}")


def _cell(data: Mapping[str, Any]) -> CellResult:
    """Return the cell of a line. Raises ValueError or TypeError for values that no cell has."""
    values = {key: value for key, value in data.items() if key in _FIELD_NAMES}
    for key in ("entries", "rules"):
        values[key] = tuple(values.get(key, ()))
    cell = CellResult(**values)
    if cell.outcome not in OUTCOMES:
        raise ValueError(f"{cell.outcome!r} is not an outcome")
    if cell.severity:
        Severity.of_word(cell.severity)
    for key, kind in _FIELD_TYPES.items():
        value = getattr(cell, key)
        if not isinstance(value, kind):
            raise ValueError(f"{key} is {value!r:.60}")
    return cell
