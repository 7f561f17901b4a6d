"""`gen probe`: run an op over dtypes and checks, and print the YAML that it proposes for matrix.yaml.

It proposes what it saw: checks that pass, and for those that fail an xfail with its exception and message. It never
proposes a reason; an entry without one does not validate, so nobody can paste a finding without having understood it.
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
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gen import catalog, source
from gen.checks.case import Case
from gen.checks.cases import Cell, Family
from gen.checks.ledger import attempt
from gen.checks.outcomes import Mismatch
from gen.errors import MatrixError, nearest
from gen.pipeline import parse
from gen.spec import Check
from gen.targets import load
from gen.targets.protocol import Target

__all__ = ["Probe", "Seen", "add_arguments", "proposal", "run"]

DTYPES = ("float64", "float32", "bfloat16", "complex128", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool")
_OWN = frozenset(("own", "autograd", "forward_ad", "gradgrad", "deterministic"))  # what is tried of an op that OpInfo does not know


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", help="a name of the OpInfo database, or of a row in matrix.yaml, as examples.ops.rms_norm")
    parser.add_argument("--target", default="runtime", help="implementation to run (default runtime)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checks", default="*", metavar="GLOB", help="only these checks")
    parser.add_argument("--matrix", type=Path, default=Path("matrix.yaml"), help="where checks, dtype groups and rows are read")


def run(args: argparse.Namespace) -> int:
    try:
        data = source.load(args.matrix).data
        target = load(args.target)
        probe = _probe(args.op, data, target, args.device, args.checks)
    except (MatrixError, ValidationError, LookupError) as error:
        print(error.args[0] if isinstance(error, LookupError) else error, file=sys.stderr)
        return 2
    seen = []
    for one in probe.seen():
        print(f"  {one.outcome:8} {one.check} {one.word}", file=sys.stderr, flush=True)
        seen.append(one)
    print(proposal(probe, seen), end="")
    return 0 if any(one.outcome == "passed" for one in seen) else 1


@dataclass(frozen=True)
class Seen:
    """What one cell did. `errors` are its distinct exceptions, as (class, pattern)."""

    check: str
    word: str
    outcome: str
    why: str = ""
    errors: tuple[tuple[str, str], ...] = ()

    @property
    def dtype(self) -> str:
        return self.word.partition(":")[0]


@dataclass(frozen=True)
class Probe:
    """An op and all that is tried on it."""

    op: str
    family: Family
    facts: frozenset[str]
    checks: Mapping[str, Check]
    groups: Mapping[str, Sequence[str]]
    target: Target
    device: str
    differentiable: frozenset[str]
    today: datetime.date = field(default_factory=datetime.date.today)

    def seen(self) -> Iterator[Seen]:
        """Every check that may concern the op, on every dtype that its forward takes."""
        takes = [dtype for dtype in DTYPES if self._runs(dtype)]
        for name, check in self.checks.items():
            pipeline = parse(check.pipeline)
            for dtype in takes:
                if check.dtypes is not None and dtype not in self._expanded(check.dtypes):
                    continue
                if pipeline.differentiates and dtype not in self.differentiable:
                    continue
                for values in product(*check.over.values()):
                    yield self._cell(name, check, dtype, dict(zip(check.over, values, strict=True)))

    def _runs(self, dtype: str) -> bool:
        plain = Check.model_validate({"claim": "the op runs", "against": "eager"})
        return self._cell("forward", plain, dtype, {}).outcome in ("passed", "vacuous")

    def _expanded(self, words: Sequence[str]) -> set[str]:
        return {dtype for word in words for dtype in self.groups.get(word, [word])}

    def _cell(self, name: str, check: Check, dtype: str, axes: Mapping[str, str]) -> Seen:
        case = Case(Cell(self.op, dtype, tuple(axes.items()), "full", ()), name, self.family, self.target, self.device)

        def body(case: Case) -> None:
            case.assert_same(check.pipeline, against=tuple(check.against), form=check.form, layout=check.layout, values=check.values)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict = attempt(body, case, {}, self.today)
        errors = dict.fromkeys((type(failure.error).__name__, pattern(failure.error)) for failure in verdict.failures)
        return Seen(name, ":".join((dtype, *axes.values())), verdict.outcome, verdict.why, tuple(errors))


def _probe(op: str, data: Mapping[str, Any], target: Target, device: str, wanted: str) -> Probe:
    family, row = _row(op, data)
    known = catalog.load(Path(".cache/gen")).ops
    if row is None and op not in known:
        near = nearest(op, known)
        hint = f"; nearest: {near}" if near else ""
        raise LookupError(f"{op!r} is neither in the OpInfo database nor a row with samples in the matrix{hint}")
    facts, differentiable = _OWN, frozenset(dtype for dtype in DTYPES if dtype.startswith(("float", "bfloat", "complex")))
    if row is None:
        facts, differentiable = frozenset((*known[op].facts, known[op].kind)), frozenset(known[op].differentiable)
    else:
        facts |= {fact for fact in ("reference", "errors", "out", "inplace") if row.get(fact)}
    checks = {name: Check.model_validate(raw) for name, raw in data.get("checks", {}).items() if fnmatchcase(name, wanted)}
    fit = {name: check for name, check in checks.items() if _concerns(check, op, family, facts)}
    own = Family(family, {} if row is None else {op: row})
    return Probe(op, own, facts, fit, data.get("dtypes", {}), target, device, differentiable)


def _row(op: str, data: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The op's family in the matrix, and its row if it has more than a name."""
    for family, content in data.get("families", {}).items():
        for row in content.get("ops", ()):
            if isinstance(row, dict) and row.get("op") == op and ("samples" in row or "samples" in content):
                return family, {"samples": content.get("samples"), **row}
            if row == op or (isinstance(row, dict) and row.get("op") == op):
                return family, None
    return "mine", None


def _concerns(check: Check, op: str, family: str, facts: frozenset[str]) -> bool:
    def within(name: str, globs: Sequence[str]) -> bool:
        return any(fnmatchcase(name, glob) for glob in globs)

    return (
        set(check.requires) <= facts
        and within(op, check.ops)
        and not within(op, check.not_ops)
        and (family == "mine" or (within(family, check.families) and not within(family, check.not_families)))
    )


def pattern(error: BaseException) -> str:
    """A regular expression for the part of a message that stays the same from sample to sample."""
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, Mismatch) and "largest error" in first:
        return "largest error"
    parts = re.split(r"\d[\w.]*|0x\w+|\[[^\]]*\]|\([^)]*\)|'[^']*'|\"[^\"]*\"", first)
    return re.escape(max((part.strip(" :;,.") for part in parts), key=len, default="")[:80]).replace("\\ ", " ")


def proposal(probe: Probe, seen: Sequence[Seen]) -> str:
    """The entries, as text to paste; comments say what is left to do."""
    by_check: defaultdict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        by_check[one.check].append(one)
    good = [check for check, cells in by_check.items() if any(one.outcome in ("passed", "failed") for one in cells)]
    dtypes = [dtype for dtype in DTYPES if any(one.dtype == dtype for one in seen)]
    lines = [f"# {probe.op} on target {probe.target.name}: {_counts(seen)}"]
    if not good:
        return "\n".join([*lines, "# nothing could be compared, so there is nothing to propose", ""])
    lines += ["families:", f"  {probe.family.name}:", "    ops:", f"      - op: {probe.op}", f"        dtypes: {_flow(dtypes)}"]
    lines += [f"        checks: {_flow(good)}"]
    if probe.op in probe.family.ops:
        lines.append("        # samples, reference and errors: as the row has them")
    lines += _xfails(probe, seen)
    lines += [f"# compared nothing: {check} {word} ({why})" for check, word, why in _notes(seen, "vacuous")]
    lines += [f"# lacking: {check} {word} ({why})" for check, word, why in _notes(seen, "lacking")]
    return "\n".join([*lines, ""])


def _counts(seen: Sequence[Seen]) -> str:
    outcomes = [one.outcome for one in seen]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)) or "no check concerns it"


def _xfails(probe: Probe, seen: Sequence[Seen]) -> list[str]:
    """One entry for each cause; a check whose cells all fail for it needs no dtypes."""
    causes: defaultdict[tuple[str, str], list[Seen]] = defaultdict(list)
    for one in seen:
        for cause in one.errors if one.outcome == "failed" else ():
            causes[cause].append(one)
    if not causes:
        return []
    lines = ["xfail:", "  # Write why under `reason:`; an entry without a reason does not validate."]
    for (raises, match), cells in causes.items():
        lines += [f"  - op: {probe.op}", f"    check: {_flow(dict.fromkeys(one.check for one in cells))}"]
        checks = {one.check for one in cells}
        if {one.dtype for one in cells} != {one.dtype for one in seen if one.check in checks}:
            lines.append(f"    dtype: {_flow(dict.fromkeys(one.dtype for one in cells))}")
        lines += [f"    target: {probe.target.name}", f"    raises: {raises}", f"    match: {json.dumps(match, ensure_ascii=False)}"]
        lines += ["    reason:", f"    # seen: {cells[0].why}"]
    return lines


def _notes(seen: Sequence[Seen], outcome: str) -> Iterator[tuple[str, str, str]]:
    grouped: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for one in seen:
        if one.outcome == outcome:
            grouped[one.check, one.why].append(one.word)
    return ((check, " ".join(words), why) for (check, why), words in grouped.items())


def _flow(words: Sequence[str] | Mapping[str, None]) -> str:
    return f"[{', '.join(words)}]"
