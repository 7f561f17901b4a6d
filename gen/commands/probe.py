"""Run `gen probe`: run an op over dtypes and checks, and print a proposal of YAML for matrix.yaml.

The proposal has the checks that pass, and an xfail with exception and message for each that fails.
It has no reasons. An entry without a reason does not validate, so a person must understand a
finding before it can be used. A function that neither the matrix nor torch's database knows gets a
row with samples: from `--sample`, from a run by `--record`, or by guesses.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gen.checks.case import Case
from gen.checks.tables import Cell, Family
from gen.commands.drafting import lines_of, plan_with_draft, target_name
from gen.devices.device import DeviceError, declare, load_device
from gen.errors import Mark, MatrixError, Problem, nearest, one_of
from gen.language import validate
from gen.language.globs import Names
from gen.language.spec import Matrix
from gen.outcomes import Mismatch, stable_part
from gen.packages.drafted_row import Draft, is_importable
from gen.plan import catalog
from gen.plan.cell_sets import Column, Plan
from gen.plan.expand import expand
from gen.plan.reduce import bits
from gen.recording.command import RecordError
from gen.run.project_defaults import declared, devices_of
from gen.run.verdict import attempt
from gen.targets import load
from gen.targets.protocol import Target

__all__ = ["Probe", "Seen", "add_arguments", "proposal", "run"]

_PLACE = re.compile(r"output \d+ of \d+, .*?largest error [^:]*")
"""What the message of a wrong value says of its place, without the values."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen probe`."""
    parser.add_argument(
        "op",
        help=(
            "a name of the OpInfo database, of a row in matrix.yaml, or of a function, Function "
            "or module of any package, as entmax.entmax15"
        ),
    )
    parser.add_argument(
        "--sample",
        action="append",
        default=[],
        metavar="'ARGUMENTS'",
        help="draft a row from a call, such as 'torch.randn(3, 4), dim=1'; repeat for more",
    )
    parser.add_argument(
        "--record",
        metavar="'COMMAND'",
        help="draft a row from the calls in a run, such as 'python my_script.py'",
    )
    parser.add_argument(
        "--target", help="implementation to run (default: the matrix's targets.default)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--backend", metavar="MODULE", help="what registers the device when it is imported"
    )
    parser.add_argument(
        "--checks",
        action="extend",
        nargs="+",
        metavar="GLOB",
        help="only these checks; repeat for more",
    )
    parser.add_argument(
        "--matrix",
        type=Path,
        default=Path("matrix.yaml"),
        help="where checks, dtype groups and rows are read",
    )


def run(args: argparse.Namespace) -> int:
    """Print the proposal. Return 0 if a check passed, 1 if none did, 2 if the input is wrong."""
    if args.sample and args.record:
        print("probe: --sample or --record, not both", file=sys.stderr)
        return 2
    try:
        plan, draft = _plan_and_draft(args)
        checks = _checks(plan, args.checks)
        _require_device(args)
        target = load(target_name(args, draft))
    except (MatrixError, LookupError) as error:
        print(error.args[0] if isinstance(error, LookupError) else error, file=sys.stderr)
        return 2
    except RecordError as error:
        print(f"probe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("probe: interrupted", file=sys.stderr)
        return 130
    probe = Probe(args.op, plan, target, args.device, checks, draft)
    seen = []
    # to stderr, so that the proposal alone can be piped into a file
    for result in probe.seen():
        print(f"  {result.outcome:8} {result.check} {result.word}", file=sys.stderr, flush=True)
        seen.append(result)
    print(proposal(probe, seen), end="")
    has_passed = any(result.outcome == "passed" for result in seen)
    return 0 if has_passed else 1


def _checks(plan: Plan, globs: Sequence[str] | None) -> frozenset[str] | None:
    """Return the checks that any of `globs` matches. None if there are no globs. Each glob matches
    one.
    """
    checks = Names(dict.fromkeys(plan.loaded.matrix.checks, 0), "check")
    if globs is None:
        return None
    wanted = one_of(checks.sets)
    problems: list[Problem] = []
    names: set[str] = set()
    for glob in globs:
        matched = checks.named(glob)
        names.update(matched)
        if not matched:
            what = f'no check matches "{glob}"'
            near = nearest(glob, checks.sets)
            problems.append(Problem(Mark("--checks"), "", what, wanted, near))
    if problems:
        raise MatrixError(problems)
    return frozenset(names)


def _require_device(args: argparse.Namespace) -> None:
    """Raise LookupError unless a tensor can be made on the device."""
    declare(devices_of(declared(args.matrix.parent), args.device, args.backend))
    try:
        load_device(args.device)
    except DeviceError as error:
        raise LookupError(f"--device {args.device}: {error}") from error


def _plan_and_draft(args: argparse.Namespace) -> tuple[Plan, Draft | None]:
    """Return the expanded matrix, with a row of its own for a function that it does not name."""
    is_given = args.sample or args.record
    if not is_given and (args.op.startswith("torch.") or args.matrix.exists()):
        try:
            return _plan(args.op, args.matrix), None
        except LookupError:
            if not is_importable(args.op):
                raise
    return plan_with_draft(args)


def _plan(op: str, matrix: Path) -> Plan:
    """Return the expanded matrix.

    If it does not name the op of the database yet, the op is added to a family `mine`.
    """
    known_ops = catalog.load(Path(".cache/gen"))
    plan = expand(validate.load(matrix), known_ops)
    if any(known.name == op for known in plan.ops):
        return plan
    if op not in known_ops.ops:
        near = nearest(op, known_ops.ops)
        hint = f" (nearest: {near})" if near else ""
        raise LookupError(
            f"{op!r} is no op of the OpInfo database and no row of {matrix}{hint}; "
            "give it a call by --sample or --record, or write its row"
        )
    # loaded once more, as the file's own data changes here
    loaded = validate.load(matrix)
    loaded.source.data["families"].setdefault("mine", {"ops": []})["ops"].append(op)
    return expand(
        validate.Loaded(Matrix.model_validate(loaded.source.data), loaded.source), known_ops
    )


@dataclass(frozen=True)
class Seen:
    """The result of one cell."""

    check: str
    # its dtype and the words of its axes
    word: str
    outcome: str
    why: str = ""
    # its distinct exceptions, as (class, pattern)
    errors: tuple[tuple[str, str], ...] = ()

    @property
    def dtype(self) -> str:
        return self.word.partition(":")[0]


@dataclass(frozen=True)
class Probe:
    """An op, and the cells that fit it, before exclusion and reduction."""

    op: str
    plan: Plan
    target: Target
    device: str
    wanted: frozenset[str] | None = None  # checks; None: every one
    draft: Draft | None = None  # the row of a function that the matrix does not name
    today: datetime.date = field(default_factory=datetime.date.today)

    @property
    def family(self) -> Family:
        """Return the family table that a generated module of the op would have."""
        op = self.plan.ops[self._index]
        return Family(op.family, {op.name: op.row} if op.row else {})

    @property
    def _index(self) -> int:
        return next(index for index, op in enumerate(self.plan.ops) if op.name == self.op)

    def seen(self) -> Iterator[Seen]:
        """Run every check that fits the op, on every dtype that fits it."""
        for place in bits(self.plan.possible[self._index]):
            if self.wanted is None or self.plan.columns[place].check in self.wanted:
                yield self._cell(self.plan.columns[place])

    def _cell(self, column: Column) -> Seen:
        """Run one cell, and return its result."""
        check = self.plan.loaded.matrix.checks[column.check]
        case = Case(
            Cell(self.op, column.dtype, column.axes, "full", ()),
            column.check,
            self.family,
            self.target,
            self.device,
        )

        def body(case: Case) -> None:
            case.assert_same(
                check.pipeline,
                against=tuple(check.against),
                form=check.form,
                layout=check.layout,
                values=check.values,
            )

        # Without entries, every failure is one that the proposal names.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict = attempt(body, case, {}, self.today)
        errors = _errors([failure.error for failure in verdict.failures])
        return Seen(column.check, column.word, verdict.outcome, verdict.why, errors)


def _errors(errors: Sequence[BaseException]) -> tuple[tuple[str, str], ...]:
    """Return the distinct errors of a cell, as (class, pattern).

    Wrong values are one, with the place and the size of each: a word that they share would match
    any later mistake too.
    """
    patterns: defaultdict[tuple[str, bool], dict[str, None]] = defaultdict(dict)
    for error in errors:
        patterns[type(error).__name__, isinstance(error, Mismatch)][pattern(error)] = None
    distinct = []
    for (name, is_wrong), texts in patterns.items():
        if is_wrong:
            distinct.append((name, "|".join(texts)))
            continue
        for text in texts:
            distinct.append((name, text))
    return tuple(distinct)


def pattern(error: BaseException) -> str:
    """Return a regular expression for the part of a message that is the same in every sample.

    It is the whole message if there is no such part. For a wrong value it is the output, its dtype
    and shape, and the size and the place of the error.
    """
    # `re.escape` puts a backslash before a space, which only makes a sentence hard to read.
    place = _PLACE.search(str(error)) if isinstance(error, Mismatch) else None
    if place is not None:
        return re.escape(place[0]).replace("\\ ", " ").replace("\\-", "-")
    part = stable_part(error)
    if part:
        return re.escape(part).replace("\\ ", " ")
    return f"^{re.escape(str(error))}$".replace("\\ ", " ")


def proposal(probe: Probe, seen: Sequence[Seen]) -> str:
    """Return the entries, as text to paste. Comments say what the author must add."""
    # A check is proposed if it compared anything, whether or not it passed.
    by_check: defaultdict[str, list[Seen]] = defaultdict(list)
    for result in seen:
        by_check[result.check].append(result)
    good = []
    for check, cells in by_check.items():
        if any(result.outcome in ("passed", "failed") for result in cells):
            good.append(check)
    dtypes = dict.fromkeys(result.dtype for result in seen)
    lines = [f"# {probe.op} on target {probe.target.name}: {_counts(seen)}"]
    if not good:
        return "\n".join(
            [*lines, "# nothing could be compared, so there is nothing to propose", ""]
        )
    lines += ["families:", f"  {probe.family.name}:"]
    if probe.draft is not None:
        lines += lines_of(probe.draft)
    else:
        lines += _row(probe, dtypes, good)
    lines += _xfails(probe, seen)
    remarks = {"vacuous": "compared nothing", "not covered": "not covered", "lacking": "lacking"}
    for outcome, remark in remarks.items():
        for check, words, why in _notes(seen, outcome):
            lines.append(f"# {remark}: {check} {words} ({why})")
    return "\n".join([*lines, ""])


def _row(probe: Probe, dtypes: Mapping[str, None], checks: Sequence[str]) -> list[str]:
    """Return the lines of an op that the matrix or the database knows."""
    lines = [
        "    ops:",
        f"      - op: {probe.op}",
        f"        dtypes: {_flow(dtypes)}",
        f"        checks: {_flow(checks)}",
    ]
    if probe.op in probe.family.ops:
        lines.append("        # samples, reference and errors: as the row has them")
    return lines


def _counts(seen: Sequence[Seen]) -> str:
    outcomes = [result.outcome for result in seen]
    return (
        ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
        or "no check concerns it"
    )


def _xfails(probe: Probe, seen: Sequence[Seen]) -> list[str]:
    """Return one entry for each cause, as lines.

    An entry needs no dtypes for a check if all cells of the check fail for this cause.
    """
    causes: defaultdict[tuple[str, str], list[Seen]] = defaultdict(list)
    for result in seen:
        if result.outcome == "failed":
            for cause in result.errors:
                causes[cause].append(result)
    if not causes:
        return []
    lines = [
        "xfail:",
        "  # Write why under `reason:`; an entry without a reason does not validate.",
    ]
    for (raises, match), cells in causes.items():
        lines += [
            f"  - op: {probe.op}",
            f"    check: {_flow(dict.fromkeys(result.check for result in cells))}",
        ]
        if not _are_all_of_their_checks(cells, seen):
            lines.append(f"    dtype: {_flow(dict.fromkeys(result.dtype for result in cells))}")
        if probe.device != "cpu":
            lines.append(f"    device: {probe.device.partition(':')[0]}")
        lines += [
            f"    target: {probe.target.name}",
            f"    raises: {raises}",
            f"    match: {json.dumps(match, ensure_ascii=False)}",
        ]
        lines += ["    reason:", f"    # seen: {cells[0].why}"]
    return lines


def _are_all_of_their_checks(cells: Sequence[Seen], seen: Sequence[Seen]) -> bool:
    """Return whether `cells` have every dtype of their checks."""
    checks = {result.check for result in cells}
    dtypes = {result.dtype for result in seen if result.check in checks}
    return {result.dtype for result in cells} == dtypes


def _notes(seen: Sequence[Seen], outcome: str) -> Iterator[tuple[str, str, str]]:
    """Yield the check, words and reason of the cells with this outcome."""
    grouped: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for result in seen:
        if result.outcome == outcome:
            grouped[result.check, result.why].append(result.word)
    for (check, why), words in grouped.items():
        yield check, " ".join(words), why


def _flow(words: Sequence[str] | Mapping[str, None]) -> str:
    return f"[{', '.join(words)}]"
