"""Which planted faults the matrix names, and how often it is wrong about a device that is right.

    python -m tests.devices.campaign               # each fault: cells of its rows, until one fails
    python -m tests.devices.campaign --cells 500   # and 500 cells on the device without a fault
    python -m tests.devices.campaign --write       # keep the cells that fail in named.yaml
    python -m tests.devices.campaign --levels      # the level that each fault makes red

A fault is named if a cell of a row that calls the faulty op fails with it, and passes without it. A
false alarm is a cell that fails on the right device and passes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path

import torch
import yaml

from gen.audit.generated_modules import Check, eligible, load_modules, run_cell
from gen.checks.tables import Cell
from gen.devices.device import Device, declare
from gen.devices.place import place_of
from gen.run.verdict import Verdict
from gen.targets import load
from gen.targets.protocol import Target
from tests.devices.red_levels import RedLevels

__all__ = ["NAMED", "Campaign", "Finding"]

ROOT = Path(__file__).parents[2]
DEVICE = "shelf"
NAMED = Path(__file__).with_name("named.yaml")
"""Fault -> the cell that names it, as the last wide run found them."""


@dataclass(frozen=True)
class Finding:
    """What came of one fault: the cell that names it, and how many were tried."""

    fault: str
    key: str = ""
    why: str = ""
    tried: int = 0

    def line(self) -> str:
        found = f"{self.key}: {self.why}" if self.key else "not named"
        return f"{self.fault} ({self.tried} cells): {found}"


class Campaign:
    """Cells of the matrix on the device, with and without faults."""

    def __init__(self, tier: str, target: str = "torch") -> None:
        declare({DEVICE: Device(DEVICE, backend="tests.devices.shelf")})
        place_of(DEVICE)
        self.root = ROOT
        self._tier = tier
        self._target: Target = load(target)
        self._right: dict[str, Verdict] = {}

    @cached_property
    def cells(self) -> Mapping[str, tuple[Check, Cell]]:
        """Return the cells by key. Those that a target captures say nothing more of a device."""
        cells = eligible(load_modules(ROOT / "generated_tests"), self._tier, False)
        return {
            key.removeprefix(f"{ROOT}/"): (check, cell)
            for key, (check, cell) in cells.items()
            if not (cell.alone or cell.axes.jitted)
        }

    def verdict(self, key: str, device: str = DEVICE) -> Verdict:
        """Run a cell."""
        check, cell = self.cells[key]
        return run_cell(self._target, check, cell, device)

    def passes_without(self, key: str) -> bool:
        """Return whether a cell passes on the right device."""
        from tests.devices.shelf import faults

        faults.plant("")
        if key not in self._right:
            self._right[key] = self.verdict(key)
        return self._right[key].outcome == "passed"

    def try_fault(self, name: str, keys: Sequence[str]) -> Finding:
        """Run cells with a fault, until one fails that passes without it."""
        from tests.devices.shelf import faults

        for tried, key in enumerate(keys, 1):
            with faults.planted(name):
                verdict = self.verdict(key)
            if verdict.failed and self.passes_without(key):
                return Finding(name, key, verdict.why, tried)
        return Finding(name, tried=len(keys))

    def keys_of(self, rows: Sequence[str], most: int) -> list[str]:
        """Return cells of rows, of each check one before the next ones, and of plain checks
        first."""
        by_check: dict[str, list[str]] = {}
        simplest_first = sorted(self.cells.items(), key=lambda item: len(item[1][0].stages))
        for key, (check, cell) in simplest_first:
            if cell.op in rows:
                by_check.setdefault(check.name, []).append(key)
        turns = chain.from_iterable(zip_longest(*by_check.values()))
        return [key for key in turns if key is not None][:most]

    def drawn(self, count: int, seed: int) -> list[str]:
        """Return some cells, without those of programs that copy tensors."""
        keys = [key for key, (_, cell) in sorted(self.cells.items()) if not _copies(cell.op)]
        random.Random(seed).shuffle(keys)
        return keys[:count]

    def false_alarms(self, keys: Sequence[str]) -> Iterator[tuple[str, Verdict]]:
        """Yield the cells that fail on the right device, and pass on the CPU."""
        for key in keys:
            if self.passes_without(key) or not self._right[key].failed:
                continue
            if not self.verdict(key, "cpu").failed:
                yield key, self._right[key]

    def outcomes(self) -> dict[str, int]:
        """Count the outcomes on the right device so far."""
        words = [verdict.outcome for verdict in self._right.values()]
        return {word: words.count(word) for word in dict.fromkeys(words)}


def _copies(op: str) -> bool:
    """Return whether a program may copy a tensor of the device by ``copy.deepcopy``, which ends the
    process: torch has no deep copy of a tensor that only Python knows."""
    return op.startswith(("programs.families.schedules.", "programs.families.copies."))


def main() -> int:
    """Run the campaign. Return 1 if a fault is not named."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.campaign", description=__doc__)
    parser.add_argument("--tier", default="full")
    parser.add_argument("--most", type=int, default=80, help="cells tried for a fault")
    parser.add_argument("--cells", type=int, default=0, help="cells on the device without a fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", nargs="+", help="these faults alone")
    parser.add_argument("--write", action="store_true", help=f"write {NAMED.name}")
    parser.add_argument("--named", action="store_true", help=f"try the cells of {NAMED.name} alone")
    parser.add_argument("--levels", action="store_true", help="say which level a fault makes red")
    parser.add_argument("--json", type=Path, help="write what came of it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    campaign = Campaign(args.tier)
    from tests.devices.shelf.faults import FAULTS

    findings = []
    known = yaml.safe_load(NAMED.read_text("utf-8")) if args.named else {}
    for name in args.faults or FAULTS:
        keys = [known[name]] if args.named else campaign.keys_of(FAULTS[name].rows, args.most)
        findings.append(campaign.try_fault(name, keys))
        print(findings[-1].line(), flush=True)
    named = {finding.fault: finding.key for finding in findings if finding.key}
    if args.write:
        NAMED.write_text(yaml.safe_dump(named, sort_keys=False, width=200), "utf-8")
    alarms = list(campaign.false_alarms(campaign.drawn(args.cells, args.seed)))
    for key, verdict in alarms:
        print(f"false alarm: {key}: {verdict.outcome}: {verdict.why}", flush=True)
    levels = dict(_red_levels(campaign, args.faults or list(FAULTS))) if args.levels else {}
    seconds = time.perf_counter() - begin
    if args.json:
        found = {
            "faults": list(FAULTS),
            "named": named,
            "alarms": {key: verdict.why for key, verdict in alarms},
            "right": campaign.outcomes(),
            "levels": levels,
        }
        args.json.write_text(json.dumps(found), "utf-8")
    print(
        f"{len(named)} of {len(findings)} faults named; {len(alarms)} false alarms in {args.cells} "
        f"cells; on the right device {campaign.outcomes()}; {seconds:.0f} s"
    )
    return 0 if len(named) == len(findings) else 1


def _red_levels(campaign: Campaign, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each fault with the level that it makes red, and print it with the op to write."""
    from tests.devices.shelf.faults import FAULTS

    levels = RedLevels.of_matrix(campaign)
    for name in names:
        level, op = levels.of(name, FAULTS[name].rows)
        print(f"{name}: red is {level or 'no level'} {op}".rstrip(), flush=True)
        yield name, level


if __name__ == "__main__":
    raise SystemExit(main())
