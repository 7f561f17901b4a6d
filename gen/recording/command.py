"""Run a command, and return the calls of torch that its Python processes made.

record("python train.py").calls[0]
# Recorded("op", "torch.ops.aten.addmm.default", count=12, samples=[{"args": [...]}], ...)
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gen.recording.hook import FOLDER, FUNCTION, Sample

__all__ = ["RecordError", "Recorded", "record"]

_START = Path(__file__).with_name("start")
_LAST_LINES = 12


class RecordError(Exception):
    """A command that gave no record."""


@dataclass
class Recorded:
    """The calls of one op or function."""

    kind: str  # op, function, or named: the one that was asked for
    name: str  # torch.ops.aten.addmm.default
    count: int = 0
    samples: list[Sample] = field(default_factory=list)  # the most frequent first
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> calls
    writes: bool = False  # whether it writes to an argument


def record(command: str, function: str = "") -> list[Recorded]:
    """Run `command`, and return its calls, the most frequent first.

    ``function``: record this function alone. What the command prints goes to standard error.
    Raises RecordError if it fails, or if it runs no Python that imports torch.
    """
    with tempfile.TemporaryDirectory(prefix="matrix-gen-record-") as folder:
        _run(command, _environment(folder, function))
        records = sorted(Path(folder).glob("*.json"))
        if not records and any(Path(folder).glob("*.started")):
            raise RecordError(f"`{command}` did not import torch, or ended before Python could")
        if not records:
            raise RecordError(
                f"`{command}` started no Python that reads PYTHONPATH (-I, -E and -S ignore it)"
            )
        return _merge(record for path in records for record in json.loads(path.read_text()))


def _environment(folder: str, function: str) -> dict[str, str]:
    """Return the environment of the command, in which each Python starts the recorder."""
    # First, as Python imports one `sitecustomize` alone: ours, which imports the other one itself.
    path = os.pathsep.join(filter(None, (str(_START), os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"PYTHONPATH": path, FOLDER: folder, "PYTHONUNBUFFERED": "1"}
    if function:
        environment[FUNCTION] = function
    return environment


def _run(command: str, environment: Mapping[str, str]) -> None:
    """Run a command to its end. Raises RecordError if it cannot start or fails."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RecordError(f"`{command}` is no command: {error}") from None
    if not words:
        raise RecordError("the command is empty")
    try:
        process = subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise RecordError(f"`{command}` does not start: {error.strerror}") from None
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                last.append(f"  | {line.rstrip()}")
                print(last[-1], file=sys.stderr, flush=True)
    # Also of a KeyboardInterrupt: the command would run on without its reader.
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        lines = "\n".join(last)
        raise RecordError(f"`{command}` ended with status {process.returncode}:\n{lines}")


def _merge(records: Iterator[Sample]) -> list[Recorded]:
    """Return the calls of all processes, the most frequent first."""
    merged: dict[tuple[str, str], Recorded] = {}
    samples: dict[tuple[str, str], Counter[str]] = {}
    for each in records:
        key = each["kind"], each["name"]
        one = merged.setdefault(key, Recorded(*key))
        one.count += each["count"]
        one.left_out.update(each["left_out"])
        one.writes |= each["writes"]
        counts = samples.setdefault(key, Counter())
        for sample in each["samples"]:
            # Samples are the same if all but their counts are equal.
            counts[json.dumps(sample | {"count": 0})] += sample["count"]
    for key, counts in samples.items():
        for text, _ in counts.most_common():
            sample = json.loads(text)
            del sample["count"]
            merged[key].samples.append(sample)
    return sorted(merged.values(), key=lambda each: -each.count)
