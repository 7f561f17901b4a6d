"""Map which cells of the matrix run which rules of a target. Each cell runs once; the result is
stored under a digest of its sources.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from gen.audit.generated_modules import Check
from gen.audit.workers import Job, Workers
from gen.checks.tables import Cell
from gen.language.pipeline import CAPTURES, PARTS
from gen.targets.faults import KINDS, REFUSED

__all__ = ["Map", "Reach", "content", "op_of", "promising", "spread", "take_turns", "telling"]

T = TypeVar("T")

SAVE_EVERY = 15.0  # seconds; progress is reported and saved then, so a stopped run loses little
# a program that compiles parts of itself runs rules that no op's cell does
_GRAPHS = CAPTURES - {PARTS}
WIDEST = ("float64", "complex128", "float32", "complex64", "bfloat16", "float16")


@dataclass(frozen=True)
class Reach:
    """The rules that a cell runs, and the seconds that it takes."""

    key: str
    seconds: float
    # By name, the kinds of fault that would change the result of a rule. For a cell that does not
    # pass, these are only the rules that refused.
    rules: dict[str, frozenset[str]]


def telling(cells: Mapping[str, tuple[Check, Cell]]) -> Iterator[str]:
    """Yield the keys of the cells to run first: those that show most rules at least cost.

    They are in the tiers below full. Graphs of ops and jitted ops are left out, as they run the
    same rules as the ops. Of each op under each check, the widest real and the widest complex dtype
    count; if it has neither, one other dtype does.
    """
    widest_by_check: dict[tuple[str, str, str], dict[str, tuple[int, str]]] = {}
    for key, (check, cell) in cells.items():
        if cell.tier == "full" or check.stages & _GRAPHS or cell.axes.jitted:
            continue
        kind, width = _kind_and_width(cell.dtype)
        kinds = widest_by_check.setdefault((check.file, check.name, cell.op), {})
        # of one width, the cell of the first key: the choice is the same in each run
        kinds[kind] = min(kinds.get(kind, (width, key)), (width, key))
    for kinds in widest_by_check.values():
        yield from (key for kind, (_, key) in kinds.items() if kind != "other" or len(kinds) == 1)


def spread(keys: Iterable[str], count: int, seed: int) -> list[str]:
    """Draw ``count`` cells: one of each check, then a second of each, and so on."""
    pools = _by_check(keys, seed).values()
    return list(islice(take_turns(list(pools)), count))


def promising(
    keys: Iterable[str], reached: Sequence[Reach], count: int, seed: int
) -> Iterator[str]:
    """Draw about ``count`` further cells: more of the checks whose cells that are ``reached`` show
    faults which few other checks show."""
    known = {reach.key for reach in reached}
    weights = _weights_by_check(reached)
    total = sum(weights.values()) or 1.0
    further = (key for key in keys if key not in known)
    for check, pool in _by_check(further, seed).items():
        share = weights.get(check, 0.0) / total
        yield from pool[: round(count * share)]


def _weights_by_check(reached: Iterable[Reach]) -> dict[str, float]:
    """Return how much the cells of each check show: a fault that n checks show counts 1/n."""
    shown: dict[str, set[tuple[str, str]]] = {}
    for reach in reached:
        faults = shown.setdefault(check_of(reach.key), set())
        for rule, kinds in reach.rules.items():
            faults.update((rule, kind) for kind in kinds)
    counts = Counter(chain.from_iterable(shown.values()))
    return {check: sum(1 / counts[fault] for fault in faults) for check, faults in shown.items()}


def _by_check(keys: Iterable[str], seed: int) -> dict[str, list[str]]:
    """Return cells by check, in the order of a draw."""

    def lot(key: str) -> bytes:
        return hashlib.sha256(f"{seed} {key}".encode()).digest()

    pools: dict[str, list[str]] = {}
    for key in sorted(keys, key=lot):
        pools.setdefault(check_of(key), []).append(key)
    return pools


def check_of(key: str) -> str:
    """Return the module and the check of a cell's key."""
    return key.split("[")[0]


def take_turns(pools: Sequence[Sequence[T]]) -> Iterator[T]:
    """Yield the first of each pool, then the second of each, and so on.

    A pool without so many is passed over: "abc" and "d" give "a", "d", "b", "c".
    """
    for turn in range(max(map(len, pools), default=0)):
        for pool in pools:
            if turn < len(pool):
                yield pool[turn]


def _kind_and_width(dtype: str) -> tuple[str, int]:
    """Return complex, real or other, and the place of a dtype among the widest."""
    width = WIDEST.index(dtype) if dtype in WIDEST else len(WIDEST)
    if dtype.startswith("complex"):
        return "complex", width
    return "real" if dtype in WIDEST else "other", width


def content(fingerprint: str, modules: Path) -> str:
    """Return a digest of the target, the generated modules, the code that runs them, and torch's
    version.
    """
    digest = hashlib.sha256(f"{fingerprint} {version('torch')}".encode())
    package = Path(__file__).parents[1]
    # whatever a cell runs beside the target; commands and reports change no result
    rooms = ("checks", "reference", "run", "samples", "scripts", "targets")
    digest.update((package / "outcomes.py").read_bytes())
    for folder in (modules, *(package / room for room in rooms)):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Map:
    """What was learned of cells, in a file with a digest of everything that it depends on.

    A file with another digest counts as empty.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest = path, digest
        # None: the cell does not pass, so it can catch nothing
        self._cells: dict[str, Reach | None] = {}
        if path.exists():
            data = json.loads(path.read_text("utf-8"))
            if data["content"] == digest:
                self._cells = dict(_unpack(data))

    def reached(self) -> list[Reach]:
        return [reach for _, reach in sorted(self._cells.items()) if reach is not None]

    def learn(
        self, keys: Iterable[str], workers: Workers, progress: Callable[[int, int], None]
    ) -> None:
        """Run once every cell that is not known yet."""
        # Cells of one op and module share samples, so one process runs them.
        groups: dict[tuple[str, str], list[str]] = {}
        for key in keys:
            if key not in self._cells:
                groups.setdefault((key.split("::")[0], op_of(key)), []).append(key)
        count = sum(map(len, groups.values()))
        done, reported = 0, time.monotonic()
        jobs = [Job("record", tuple(group)) for group in groups.values()]
        for job, result in workers.each(jobs):
            # None for all cells of the job, and then what it tells of those that pass. It tells
            # nothing if it killed its process.
            self._cells.update(dict.fromkeys(job.arguments))
            for key, seconds, rules in result or ():
                self._cells[key] = Reach(key, seconds, rules)
            done += len(job.arguments)
            if done == count or time.monotonic() - reported >= SAVE_EVERY:
                reported = time.monotonic()
                progress(done, count)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.write_text(
                    json.dumps(_pack(self.digest, self._cells), separators=(",", ":")), "utf-8"
                )


def op_of(key: str) -> str:
    """Return the op of a cell's key."""
    return key.split("[")[1].split("-")[0]


def _pack(digest: str, cells: Mapping[str, Reach | None]) -> dict[str, Any]:
    """Return the file's content.

    Names of rules are numbers and sets of kinds are bits, because both repeat by the hundred
    thousand.
    """
    reached = [reach for reach in cells.values() if reach is not None]
    every_name = sorted(set[str]().union(*(reach.rules for reach in reached)))
    names = {name: number for number, name in enumerate(every_name)}
    every_kind = sorted({REFUSED}.union(*KINDS.values()))
    bits = {kind: 1 << number for number, kind in enumerate(every_kind)}

    def packed(reach: Reach | None) -> Any:
        if reach is None:
            return None
        rules = []
        for name, kinds in reach.rules.items():
            rules.append([names[name], sum(map(bits.__getitem__, kinds))])
        return [round(reach.seconds, 4), rules]

    return {
        "content": digest,
        "rules": list(names),
        "kinds": list(bits),
        "cells": {key: packed(cells[key]) for key in sorted(cells)},
    }


def _unpack(data: Mapping[str, Any]) -> Iterator[tuple[str, Reach | None]]:
    """Yield each cell of a file's content with its reach."""

    @cache
    def kinds(bits: int) -> frozenset[str]:
        return frozenset(kind for number, kind in enumerate(data["kinds"]) if (bits >> number) & 1)

    for key, cell in data["cells"].items():
        if cell is None:
            yield key, None
            continue
        seconds, rules = cell
        kinds_by_rule = {data["rules"][number]: kinds(bits) for number, bits in rules}
        yield key, Reach(key, seconds, kinds_by_rule)
