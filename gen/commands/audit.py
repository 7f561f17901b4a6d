"""Run `gen audit`: plant faults in a target, one at a time, and count those that the matrix
catches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import yaml

from gen.audit import reach
from gen.audit.campaign import AnyFault, Campaign, Fault, Finding, Survivors
from gen.audit.generated_modules import Check, eligible, load_modules
from gen.audit.rule_faults import RuleFault, Rules
from gen.audit.workers import Workers
from gen.checks.tables import TIERS, TableError
from gen.plan.matrix_plan import above
from gen.targets import load
from gen.targets.faults import Auditable, Rule
from gen.targets.protocol import Target

CACHE = Path(".cache/audit")
WIDE = ("float64", "complex128")  # in which a fault of one part in a thousand shows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen audit`."""
    parser.add_argument(
        "--target", default="torch", help="the target that gets the faults (default torch)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--rules",
        action="store_true",
        help="plant faults in the target's own rules, such as the runtime's records",
    )
    parser.add_argument(
        "--faults",
        type=above(0, kind=int),
        default=200,
        metavar="N",
        help="how many faults that change a value (default 200)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="with --rules: every kind of fault that fits in every rule",
    )
    parser.add_argument(
        "--only",
        metavar="GLOB",
        help='with --rules: all faults that match this, such as "sin vjp *"',
    )
    parser.add_argument(
        "--cells",
        type=above(0, kind=int),
        metavar="N",
        help="with --rules: run about N cells to learn which rules they run, first some of each "
        "check, then more of those that show many faults; for targets that take long, such as "
        "torch.compile",
    )
    parser.add_argument("--seed", type=int, default=0, help="which faults are drawn (default 0)")
    parser.add_argument(
        "--tier", choices=TIERS, default="full", help="which cells may catch them (default full)"
    )
    parser.add_argument(
        "--at-least",
        type=above(0, or_equal=True),
        default=95.0,
        metavar="PERCENT",
        help="exit 1 when fewer are caught (default 95)",
    )
    parser.add_argument(
        "--workers", type=above(0, kind=int), default=2, help="processes, with --rules (default 2)"
    )
    parser.add_argument(
        "--modules", type=Path, default=Path("generated_tests"), help="folder of generated modules"
    )
    parser.add_argument(
        "--survivors",
        type=Path,
        default=Path("tests/audit/survivors.yaml"),
        help="reasons of survivors",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PATH",
        help="write every fault and its result to this file, as JSON",
    )
    parser.epilog = (
        "Exit codes: 0 enough faults were caught and every survivor has its reason "
        "in the survivors file; 1 not so; 2 the input is wrong. With --rules the cells "
        "of the default tier are run once to learn which rules they run, and those of the full "
        f"tier that may catch what survives these; that is kept in {CACHE} until a source changes."
    )


def run(args: argparse.Namespace) -> int:
    """Plant the faults and print which were caught. Return the exit code."""
    try:
        target = load(args.target)
        checks = load_modules(args.modules)
        survivors = Survivors.read(args.survivors)
        _require_fitting_options(args, target)
    except (LookupError, FileNotFoundError, TableError, yaml.YAMLError, ValueError) as error:
        print(f"gen audit: {error}", file=sys.stderr)
        return 2
    findings = _findings(args, target, checks)
    applied = [finding for finding in findings if finding.applied]
    caught = sum(finding.caught is not None for finding in applied)
    share = 100 * caught / max(len(applied), 1)
    unexplained = _summarise(findings, survivors)
    print(
        f"{caught} of {len(applied)} faults caught ({share:.1f}%), seed {args.seed}, "
        f"tier {args.tier}, target {args.target}"
    )
    if unexplained:
        print(f"{unexplained} survivors have no reason in {args.survivors}")
    if args.report:
        _write_report(args, findings, survivors)
    # A survivor without a reason fails the audit, however many faults were caught.
    if not applied or unexplained:
        return 1
    return int(share < args.at_least)


def _findings(
    args: argparse.Namespace, target: Target, checks: Sequence[Check]
) -> Sequence[Finding[Fault]] | Sequence[Finding[RuleFault]]:
    """Plant the faults of transforms, or of rules if these are asked for."""
    if isinstance(target, Auditable) and args.rules:
        return _of_rules(args, target, checks)
    return _of_transforms(args, target, checks)


def _require_fitting_options(args: argparse.Namespace, target: Target) -> None:
    """Raise ValueError for options that do not go with the target, or with one another."""
    if args.rules and not isinstance(target, Auditable):
        raise ValueError(
            f"target {args.target} does not show its rules; "
            "--rules needs the methods of gen.targets.faults.Auditable"
        )
    if not args.rules and any((args.all, args.only, args.cells)):
        raise ValueError("--all, --only and --cells go with --rules")


def _write_report(
    args: argparse.Namespace, findings: Sequence[Finding[AnyFault]], survivors: Survivors
) -> None:
    """Write every fault and its result to the file that was asked for."""
    summary = {
        "target": args.target,
        "tier": args.tier,
        "seed": args.seed,
        "applied": sum(finding.applied for finding in findings),
        "caught": sum(finding.applied and finding.caught is not None for finding in findings),
    }
    rows = [asdict(finding) | {"reason": survivors.reason(finding)} for finding in findings]
    text = json.dumps(summary | {"faults": rows}, indent=1, ensure_ascii=False) + "\n"
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(text, "utf-8")


def _of_transforms(
    args: argparse.Namespace, target: Target, checks: Sequence[Check]
) -> list[Finding[Fault]]:
    """Plant faults of transforms until as many as asked for could be applied."""
    campaign = Campaign(target, list(checks), args.device, args.tier, args.seed)
    findings: list[Finding[Fault]] = []
    for finding in campaign.findings(args.faults):
        findings.append(finding)
        # A fault that changed no value is drawn anew, and does not count.
        counted = sum(earlier.applied for earlier in findings)
        print(f"[{counted:4d}/{args.faults}] {finding.line()}", flush=True)
    counted = sum(finding.applied for finding in findings)
    if counted < args.faults:
        print(f"only {counted} faults could be planted: the cells of the tier offer no more")
    return findings


def _of_rules(
    args: argparse.Namespace, target: Auditable, checks: Sequence[Check]
) -> list[Finding[RuleFault]]:
    """Plant faults in rules, and run on each the cells that run the rule."""
    cells = eligible(checks, args.tier, target.in_stages)
    workers = Workers(args.workers, args.target, args.device, args.modules)
    # First learn which cells run which rules, so that a fault is tried on those alone.
    reach_map = reach.Map(
        CACHE / f"reach-{args.target}-{args.device}.json",
        reach.content(target.fingerprint(), args.modules),
    )
    telling = list(reach.telling(cells))
    if args.cells:
        # some of each check, then more of those whose cells show many kinds
        first = reach.spread(telling, args.cells // 3, args.seed)
        reach_map.learn(first, workers, _progress)
        rest = args.cells - len(first)
        telling = list(reach.promising(telling, reach_map.reached(), rest, args.seed))
    reach_map.learn(telling, workers, _progress)
    rules = Rules(target.rules(), reach_map.reached(), args.seed)

    def further(some: set[Rule]) -> None:
        """Run cells that may run some of the rules, and note which rules they run."""
        ops = {cell.op for _, cell in cells.values()}
        asked: set[str] = set()
        for rule in some:
            asked |= rules.related(rule, ops)
        keys = []
        for key, (_, cell) in cells.items():
            if cell.op in asked and cell.dtype in WIDE:
                keys.append(key)
        reach_map.learn(keys, workers, _progress)
        rules.learn(reach_map.reached())

    # before the draw: which faults would show is unknown for a rule that no cell runs
    further(set(rules.unrun))
    if rules.inert:
        print(
            f"{len(rules.inert)} of {len(rules.rules)} rules run, "
            "but no kind of fault changes what they give: not counted"
        )
    drawn = rules.drawn()
    # With --only, a limit would leave out faults that match.
    if not (args.all or args.only):
        drawn = islice(drawn, args.faults)
    faults = list(drawn)
    if args.only:
        faults = [fault for fault in faults if fnmatchcase(str(fault), args.only)]
    findings: list[Finding[RuleFault]] = []
    for finding in rules.findings(faults, workers, further):
        findings.append(finding)
        print(f"[{len(findings):4d}/{len(faults)}] {finding.line()}", flush=True)
    return sorted(findings, key=lambda finding: str(finding.fault))


def _progress(done: int, count: int) -> None:
    print(f"which cells run which rules: {done} of {count}", flush=True)


def _summarise(findings: Sequence[Finding[AnyFault]], survivors: Survivors) -> int:
    """Print the tables and the survivors. Return how many survivors have no reason yet."""
    _print_tables(findings)
    alive = [finding for finding in findings if finding.applied and finding.caught is None]
    for finding in alive:
        reason = survivors.reason(finding) or "no reason given yet in the survivors file"
        print(f"  survived: {finding.fault}: {reason}")
    print()
    return list(map(survivors.reason, alive)).count(None)


def _print_tables(findings: Sequence[Finding[AnyFault]]) -> None:
    """Print how many faults of each group were caught, and why others were drawn again."""
    planted: Counter[tuple[str, str]] = Counter()
    caught: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        for group in _groups(finding.fault):
            planted[group] += finding.applied
            caught[group] += finding.caught is not None
    print()
    for (axis, word), count in sorted(planted.items()):
        print(f"  {axis:4} {word:16} {caught[axis, word]:5d} of {count:5d} caught")
    redrawn = Counter(finding.why for finding in findings if not finding.applied)
    for why, count in redrawn.most_common():
        print(f"  {count} redrawn: {why}")


def _groups(fault: AnyFault) -> list[tuple[str, str]]:
    """Return the rows of the tables in which a fault counts."""
    groups = [("in", fault.where), ("kind", fault.kind)]
    if hasattr(fault, "family"):
        groups.append(("of", fault.family))
    return groups
