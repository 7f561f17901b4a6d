"""Which cells of the matrix run which rules of a target, found by running each once; kept under a digest of all that decides it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import gen.checks
from gen.audit.modules import Check
from gen.audit.workers import Job, Workers
from gen.checks.cases import Cell

__all__ = ["Reach", "content", "eligible", "read", "recorded"]

WIDE = ("float64", "complex128")  # in which a fault of one part in a thousand shows


@dataclass(frozen=True)
class Reach:
    """A cell that passes: what it costs, and by name the rules that it runs with the kinds of fault that would change what they give."""

    key: str
    seconds: float
    rules: dict[str, frozenset[str]]


def eligible(checks: Iterable[Check], tier: str) -> dict[str, tuple[Check, Cell]]:
    """The cells of a tier that can run a rule and show a small fault: of a pipeline with a stage, in double precision."""
    return {
        f"{check.file}::{check.name}[{cell.id}]": (check, cell)
        for check in checks
        if check.stages
        for cell in check.cells.at(tier)
        if cell.dtype in WIDE
    }


def content(fingerprint: str, modules: Path, tier: str) -> str:
    """A digest of the target, the generated modules, what runs them, and torch."""
    digest = hashlib.sha256(f"{fingerprint} {version('torch')} {tier}".encode())
    package = Path(gen.checks.__file__).parents[1]
    for folder in (modules, package / "checks", package / "reference", package / "targets"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def recorded(keys: Sequence[str], workers: Workers, progress: Callable[[int, int], None]) -> list[Reach]:
    """Run every cell once and note what it runs; cells that do not pass can catch nothing and are left out."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        groups.setdefault((key.split("::")[0], key.split("[")[1].split("-")[0]), []).append(key)
    jobs = [Job("record", tuple(group)) for group in groups.values()]
    found: list[Reach] = []
    done = 0
    for job, result in workers.each(jobs):
        done += len(job.arguments)
        found.extend(Reach(key, seconds, rules) for key, seconds, rules in result or ())
        progress(done, len(keys))
    return sorted(found, key=lambda reach: reach.key)


def write(path: Path, digest: str, reached: Sequence[Reach]) -> None:
    names = sorted({name for reach in reached for name in reach.rules})
    kinds = sorted({kind for reach in reached for some in reach.rules.values() for kind in some})
    place = {name: number for number, name in enumerate(names)}
    bit = {kind: 1 << number for number, kind in enumerate(kinds)}
    cells = [
        [reach.key, round(reach.seconds, 4), [[place[name], sum(map(bit.__getitem__, some))] for name, some in sorted(reach.rules.items())]]
        for reach in reached
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"content": digest, "rules": names, "kinds": kinds, "cells": cells}, separators=(",", ":")), "utf-8")


def read(path: Path, digest: str) -> list[Reach] | None:
    """What :func:`write` wrote, or None where it was of something else."""
    if not path.exists():
        return None
    data = json.loads(path.read_text("utf-8"))
    if data["content"] != digest:
        return None
    sets: dict[int, frozenset[str]] = {}

    def kinds(mask: int) -> frozenset[str]:
        if mask not in sets:
            sets[mask] = frozenset(kind for number, kind in enumerate(data["kinds"]) if mask >> number & 1)
        return sets[mask]

    return [Reach(key, seconds, {data["rules"][rule]: kinds(mask) for rule, mask in rules}) for key, seconds, rules in data["cells"]]


def stopwatch() -> Callable[[], float]:
    start = time.perf_counter()
    return lambda: time.perf_counter() - start
