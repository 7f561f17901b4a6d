"""Describe a run for its workers, with the versions that they must share with its coordinator."""

from __future__ import annotations

import datetime
import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gen.checks.entries import Settings
from gen.checks.tables import Cell
from gen.run.inventory import Module

__all__ = ["Answer", "Group", "Job", "WrongVersion", "differences", "resource_of", "versions"]

_CODE = ("gen", "runtime")


class WrongVersion(Exception):
    """A worker has another matrix, code, torch or Python than the coordinator. The message says
    which, and of which worker.
    """


@dataclass(frozen=True)
class Job:
    """A run, as the coordinator describes it to its workers."""

    name: str
    target: str
    device: str
    date: str
    # pytest's ini lines of `filterwarnings`
    filters: tuple[str, ...]
    # the digests of its modules, by name
    digests: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    # seconds that a cell may take
    limit: float | None = None
    # bytes that a cell may take
    memory: int | None = None
    # whether workers note the target's rules that each cell runs
    rules: bool = False

    def settings(self) -> Settings:
        """Return the settings of the run, which are the same on every worker."""
        return Settings(
            self.target,
            self.device,
            dict(self.versions)["torch"],
            datetime.date.fromisoformat(self.date),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Cells of one module, which one worker runs one after another: (function, cell)."""

    module: str
    cells: tuple[tuple[str, Cell], ...]

    def nodes(self) -> list[str]:
        """Return the pytest ids of the cells."""
        return [f"{self.module}::{function}[{cell.id}]" for function, cell in self.cells]

    def split(self, parts: int) -> list[Group]:
        """Return at most `parts` groups, about equal, with the same cells."""
        # rounded up, so that there are not more parts
        size = -(-len(self.cells) // parts)
        begins = range(0, len(self.cells), size)
        return [Group(self.module, self.cells[begin : begin + size]) for begin in begins]


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a group."""

    # for each cell its outcome and its line of the results file
    cells: tuple[tuple[str, str], ...]
    # the entries that happened
    met: frozenset[str]
    # the entries that a cell could have met, each with its place in the matrix
    active: Mapping[str, str]
    seconds: float


def versions() -> dict[str, str]:
    """Return what must be the same on every machine of a run, in addition to its modules."""
    return {
        "code": _digest_of_code(),
        "torch": version("torch"),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def _digest_of_code() -> str:
    """Return a digest of the sources of this project."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def differences(job: Job, modules: Sequence[Module], own: Mapping[str, str]) -> list[str]:
    """Return how a worker with these modules and versions differs from the coordinator, in
    words.
    """
    digests = {module.name: module.digest for module in modules}
    lines = [
        f"{name} {own.get(name)}, not {wanted}"
        for name, wanted in job.versions
        if own.get(name) != wanted
    ]
    other = [name for name, wanted in job.digests if digests.get(name) != wanted]
    if other:
        more = f" and {len(other) - 2} more modules" if len(other) > 2 else ""
        lines.append(
            f"another matrix: {', '.join(other[:2])}{more} differ{'s' * (len(other) == 1)}"
        )
    return lines


def resource_of(device: str) -> str:
    """Return the resource that a Dask worker declares to get cells of a device."""
    return "CPU" if device in ("cpu", "meta") else "GPU"
