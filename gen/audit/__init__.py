"""`gen audit`: plant faults in a target, one at a time, and count those that the matrix catches.

A matrix that passes says little until it is known to fail. `kinds` says what is done to a tuple of tensors, `planted` where
in a target it is done, `campaign` which faults are drawn and what became of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import yaml

from gen.audit.campaign import Campaign, Finding, Survivors
from gen.audit.modules import load_modules
from gen.checks.cases import TIERS, TableError
from gen.targets import load

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="torch", help="what the faults are planted in (default torch)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--faults", type=int, default=200, metavar="N", help="how many faults that change a value (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="which faults are drawn (default 0)")
    parser.add_argument("--tier", choices=TIERS, default="full", help="which cells may catch them (default full)")
    parser.add_argument("--at-least", type=float, default=95.0, metavar="PERCENT", help="exit 1 when fewer are caught (default 95)")
    parser.add_argument("--modules", type=Path, default=Path("generated_tests"), help="folder of generated modules")
    parser.add_argument("--survivors", type=Path, default=Path("tests/audit/survivors.yaml"), help="reasons of survivors")
    parser.add_argument("--report", type=Path, metavar="PATH", help="write every fault and its fate there, as JSON")


def run(args: argparse.Namespace) -> int:
    try:
        target = load(args.target)
        checks = load_modules(args.modules)
        survivors = Survivors.read(args.survivors)
    except (LookupError, FileNotFoundError, TableError, yaml.YAMLError, ValueError) as error:
        print(f"gen audit: {error}", file=sys.stderr)
        return 2
    campaign = Campaign(target, checks, args.device, args.tier, args.seed)
    found: list[Finding] = []
    for finding in campaign.findings(args.faults):
        found.append(finding)
        counted = sum(one.applied for one in found)
        print(f"[{counted:4d}/{args.faults}] {finding.line()}", flush=True)
    applied = [finding for finding in found if finding.applied]
    caught = sum(finding.caught is not None for finding in applied)
    share = 100 * caught / len(applied) if applied else 0.0
    _summarise(found, survivors)
    print(f"{caught} of {len(applied)} faults caught ({share:.1f}%), seed {args.seed}, tier {args.tier}, target {args.target}")
    if len(applied) < args.faults:
        print(f"only {len(applied)} faults could be planted: the cells of the tier offer no more")
    if args.report:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        summary = {"target": args.target, "tier": args.tier, "seed": args.seed, "applied": len(applied), "caught": caught}
        rows = [asdict(finding) | {"reason": survivors.reason(finding)} for finding in found]
        args.report.write_text(json.dumps(summary | {"faults": rows}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0 if applied and share >= args.at_least else 1


def _summarise(found: list[Finding], survivors: Survivors) -> None:
    planted: Counter[tuple[str, str]] = Counter()
    caught: Counter[tuple[str, str]] = Counter()
    for finding in found:
        for group in (("in", finding.fault.where), ("kind", finding.fault.kind)):
            planted[group] += finding.applied
            caught[group] += finding.caught is not None
    print()
    for (axis, word), count in sorted(planted.items()):
        print(f"  {axis:4} {word:12} {caught[axis, word]:4d} of {count:4d} caught")
    redrawn = Counter(finding.why for finding in found if not finding.applied)
    for why, count in redrawn.most_common():
        print(f"  {count} redrawn: {why}")
    for finding in found:
        if finding.applied and finding.caught is None:
            print(f"  survived: {finding.fault}: {survivors.reason(finding) or 'no reason given yet in the survivors file'}")
    print()
