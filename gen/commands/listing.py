"""Run `gen list`: print the cases without running anything."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gen.errors import Mark, MatrixError, Problem, nearest, one_of
from gen.language.axes import AXES
from gen.language.backend_levels import LevelError, chosen_levels, levels_of
from gen.language.globs import Names
from gen.language.selection_specs import TIERS
from gen.plan.cell_sets import Entry, Plan
from gen.plan.level_cells import cells_of
from gen.plan.matrix_plan import add_matrix_arguments, coverage, load_plan, node_id
from gen.plan.reduce import bits
from gen.report.ledgers import last
from gen.run.failure_groups import by_severity
from gen.run.results import ResultsError, read
from gen.severity import severity_of_row

FILTERS = ("op", "family", "check", "dtype")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add filters on every axis, and options for the output."""
    add_matrix_arguments(parser)
    for name in FILTERS:
        parser.add_argument(
            f"--{name}", action="append", metavar="GLOB", help=f"only this {name}; repeat for more"
        )
    parser.add_argument(
        "--axis",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only this value, e.g. layout=expanded",
    )
    parser.add_argument(
        "--tier",
        choices=TIERS,
        default="full",
        help="cases that this tier runs (default: %(default)s)",
    )
    parser.add_argument(
        "--level",
        metavar="N",
        help="cases of this level, or of several such as 1-3, in the order in which to bring up a "
        "backend; they are of the full tier",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="all valid cases, including those that reduction dropped from every tier",
    )
    parser.add_argument(
        "--known",
        action="store_true",
        help="only cases with an entry of skip, xfail, vanishes or tolerance",
    )
    parser.add_argument(
        "--failed",
        nargs="?",
        const="",
        metavar="RESULTS",
        help="only cases that failed in the last run, or in this results file, the most severe "
        "first",
    )
    parser.add_argument("--counts", action="store_true", help="only the counts per axis")
    parser.add_argument(
        "--coverage", action="store_true", help="only the coverage proof of each tier"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the cases that pass the filters."""
    plan = load_plan(args.matrix)
    if args.coverage:
        _print_coverage(plan, args.json)
        return 0
    cases = list(_cases(plan, args))
    if args.failed is not None:
        try:
            cases = _failed(cases, Path(args.failed) if args.failed else last())
        except ResultsError as error:
            print(f"gen list: {error}", file=sys.stderr)
            return 2
    counts = _counts(cases)
    if args.json:
        rows = [] if args.counts else cases
        print(
            json.dumps({"total": len(cases), "counts": counts, "cases": rows}, ensure_ascii=False)
        )
        return 0
    if not args.counts:
        print(*map(_line, cases), sep="\n", end="\n" * bool(cases))
    _print_counts(len(cases), counts)
    return 0


def _line(case: Mapping[str, Any]) -> str:
    """Return what a case is on the terminal."""
    words = [case["id"], case["tier"] or "dropped", *case["known"]]
    if "severity" in case:
        words.append(f"{case['severity']}: {case['why']}")
    return "  ".join(words)


def _cases(plan: Plan, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the cases that pass the filters, as JSON has them."""
    wanted = {name: _names_matching(plan, name, getattr(args, name)) for name in FILTERS}
    columns = _columns(plan, wanted, set(map(_axis, args.axis)))
    for index, cells in _cells_by_op(plan, args):
        op = plan.ops[index]
        if op.name not in wanted["op"] or op.family not in wanted["family"]:
            continue
        entries = list(plan.entries_of(index))
        for position in bits(cells & columns):
            known = _entries_of_column(entries, position)
            if known or not args.known:
                yield _case(plan, index, position, known)


def _cells_by_op(plan: Plan, args: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield each op with its columns as bits: of a tier, of all, or of levels in their order."""
    if args.level is None:
        yield from enumerate(plan.valid if args.all else plan.tiers[args.tier].chosen)
        return
    try:
        chosen = chosen_levels(levels_of(plan.loaded.matrix.levels), args.level)
    except LevelError as error:
        raise MatrixError([Problem(Mark("--level"), "", str(error))]) from None
    for level in chosen:
        yield from cells_of(plan, level)


def _failed(cases: Sequence[dict[str, Any]], results: Path) -> list[dict[str, Any]]:
    """Return the cases that failed in a run, the most severe first, with severity and reason."""
    by_id = {case["id"]: case for case in cases}
    failed = []
    for cell in by_severity(read(results).cells):
        severity = severity_of_row(cell.outcome, cell.severity)
        # a cell of the run may have gone from the matrix, or be left out by a filter
        if severity is not None and cell.node in by_id:
            failed.append(by_id[cell.node] | {"severity": severity.word, "why": cell.why})
    return failed


def _entries_of_column(entries: Sequence[Entry], position: int) -> list[str]:
    """Return the names of the entries that concern a column."""
    return [f"{entry.kind}:{entry.name}" for entry in entries if (entry.columns >> position) & 1]


def _columns(plan: Plan, wanted: Mapping[str, set[str]], axes: set[tuple[str, str]]) -> int:
    """Return the columns that pass the filters, as bits. `axes`: the values that they must have."""
    mask = 0
    for position, column in enumerate(plan.columns):
        is_wanted = column.check in wanted["check"] and column.dtype in wanted["dtype"]
        if is_wanted and axes <= column.axes.by_name().items():
            mask |= 1 << position
    return mask


def _case(plan: Plan, index: int, position: int, known: list[str]) -> dict[str, object]:
    """Describe the cell of an op and a column, as JSON has it."""
    op, column = plan.ops[index], plan.columns[position]
    return {
        "id": node_id(plan, index, column),
        "op": op.name,
        "family": op.family,
        "check": column.check,
        "dtype": column.dtype,
        "axes": column.axes.by_name(),
        "tier": plan.tier_of(index, position),
        "known": known,
    }


def _names_matching(plan: Plan, kind: str, globs: list[str] | None) -> set[str]:
    """Return the names that a filter matches.

    A filter without a match is a mistake, reported with the nearest name.
    """
    # what there is of this kind, for the mistake
    everything = {
        "op": [op.name for op in plan.ops],
        "family": list(plan.loaded.matrix.families),
        "check": list(plan.loaded.matrix.checks),
        "dtype": list(dict.fromkeys(column.dtype for column in plan.columns)),
    }[kind]
    names = Names(dict.fromkeys(everything, 0), kind)
    accepted: set[str] = set()
    for glob in globs or ["*"]:
        matched = names.named(glob)
        if not matched and globs:
            what = f'no {kind} matches "{glob}"'
            raise MatrixError(
                [
                    Problem(
                        Mark(f"--{kind}"), "", what, one_of(everything), nearest(glob, everything)
                    )
                ]
            )
        accepted.update(matched)
    return accepted


def _axis(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`. Raises MatrixError for unknown ones."""
    axis, _, value = text.partition("=")
    if value not in AXES.get(axis, ()):
        pairs: list[str] = []
        for name, words in AXES.items():
            pairs += [f"{name}={word}" for word in words]
        raise MatrixError(
            [
                Problem(
                    Mark("--axis"),
                    "",
                    f'unknown axis value "{text}"',
                    one_of(pairs),
                    nearest(text, pairs),
                )
            ]
        )
    return axis, value


def _counts(cases: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the cases by tier, family, check, dtype and each axis."""
    common = ("tier", "family", "check", "dtype")
    counters: dict[str, Counter[str]] = {name: Counter() for name in common}
    for case in cases:
        for name in common:
            # only the tier may be none
            counters[name][case[name] or "dropped"] += 1
        for axis, value in case["axes"].items():
            counters.setdefault(axis, Counter())[value] += 1
    return {name: dict(counter.most_common()) for name, counter in counters.items() if counter}


def _print_counts(total: int, counts: dict[str, dict[str, int]]) -> None:
    """Print a line for each kind of counts, and the number of all cases."""
    for name, counter in counts.items():
        print(f"{name}: {', '.join(f'{value} {count:,}' for value, count in counter.items())}")
    print(f"{total:,} cases")


def _print_coverage(plan: Plan, as_json: bool) -> None:
    """Print how many tuples each tier covers."""
    proof = coverage(plan)
    if as_json:
        print(json.dumps(proof))
        return
    for name, tier in proof.items():
        tuples = f"{tier['covered']:,} of {tier['tuples']:,} valid {tier['t']}-tuples"
        limits = ""
        for limit in tier["limits"]:
            limits += f"; at most {limit['cells']} of {', '.join(limit['checks'])}"
        print(
            f"{name}: {tier['cases']:,} cases of {tier['valid_cells']:,} valid cells; "
            f"{tuples} covered{limits}"
        )
