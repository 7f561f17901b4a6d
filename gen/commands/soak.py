"""Run `gen soak`: draw cells beyond the list of the matrix until the time is over.

The draws run in a process of their own. If a draw kills it or takes too long, that is its outcome,
and another process goes on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gen.checks.entries import Known
from gen.errors import MatrixError
from gen.language import pipeline
from gen.language.selection_specs import ToleranceEntry, Xfail
from gen.plan.cell_sets import Plan
from gen.plan.matrix_plan import above, load_plan
from gen.plan.reduce import bits
from gen.run.project_defaults import declare_targets_of, declared
from gen.severity import Severity
from gen.soak.search import Search
from gen.soak.soak_findings import Finding, finding_of, summary, write
from gen.soak.space import Draw, Entry, Subject, subject_dtypes
from gen.soak.trial import Failure, text
from gen.targets import load

_TOO_LONG = 60.0  # seconds of one draw
_ENDED = "ended"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen soak`."""
    parser.add_argument(
        "--minutes", type=above(0), default=10.0, help="how long to draw (default: %(default)s)"
    )
    parser.add_argument(
        "--target", help="implementation to run (default: the matrix's targets.default)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="the same seed draws the same cells (default: another one each time)",
    )
    parser.add_argument(
        "--most", type=above(0, kind=int), metavar="N", help="stop when N causes are found"
    )
    parser.add_argument(
        "--op",
        action="append",
        default=[],
        metavar="GLOB",
        help="only these ops; repeat for more",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for what was found (default: .cache/soak beside the matrix)",
    )
    parser.add_argument(
        "--matrix",
        type=Path,
        default=Path("matrix.yaml"),
        metavar="FILE",
        help="the matrix (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Draw, and write each cause as a row and as a program.

    Return 0 if there is no cause but refusals, 1 if there is one, 2 if the input is wrong.
    """
    args.target = args.target or declared(args.matrix.parent).target
    try:
        plan = load_plan(args.matrix)
        _require_matches(plan, args)
        subjects = list(subjects_of(plan, args.target, args.op))
        if not subjects:
            raise LookupError(f"no op of {args.matrix} can be drawn")
        load(args.target)
    except (MatrixError, LookupError) as error:
        print(error.args[0] if isinstance(error, LookupError) else error, file=sys.stderr)
        return 2
    # The seed is printed, so that a soak can be repeated.
    number = args.seed
    if number is None:
        number = random.SystemRandom().randrange(1 << 30)
    out = args.out or args.matrix.resolve().parent / ".cache" / "soak" / f"{args.target}-{number}"
    print(f"seed {number}, {len(subjects)} ops, target {args.target}, {args.minutes:g} minutes")
    soak = _Soak(
        args.target, subjects, number, time.monotonic() + 60 * args.minutes, out, args.most
    )
    soak.run(60 * args.minutes)
    if soak.findings:
        soak.write()
    print(f"\n{soak.run_count} draws, {soak.rejected} of them no cells")
    for line in summary([*soak.findings.values()], out):
        print(line)
    return int(any(not finding.is_refusal for finding in soak.findings.values()))


def _require_matches(plan: Plan, args: argparse.Namespace) -> None:
    """Raise LookupError for a glob that no op matches: a slip would soak less than was asked."""
    for glob in args.op:
        if not any(fnmatchcase(op.name, glob) for op in plan.ops):
            raise LookupError(f"no op of {args.matrix} matches {glob!r}")


def subjects_of(plan: Plan, target: str, globs: Sequence[str] = ()) -> Iterator[Subject]:
    """Yield the ops of a matrix that match one of `globs`, with what the matrix says of them on
    `target`. Without globs: all ops.
    """
    for index, op in enumerate(plan.ops):
        dtypes = subject_dtypes(op.dtypes)
        is_chosen = not globs or any(fnmatchcase(op.name, glob) for glob in globs)
        if dtypes and "deterministic" in op.facts and is_chosen:
            yield _subject(plan, index, target, dtypes)


def _subject(plan: Plan, index: int, target: str, dtypes: tuple[str, ...]) -> Subject:
    """Return an op with what the entries of the matrix say of it on `target`."""
    excluded: list[Entry] = []
    known: list[Entry] = []
    tolerances: list[Entry] = []
    for entry in plan.entries:
        spec = entry.spec
        glob = getattr(spec, "target", None) or "*"
        has_op = (entry.ops >> index) & 1
        if not has_op or not fnmatchcase(target, glob):
            continue
        cells = _cells(plan, entry.columns)
        if isinstance(spec, ToleranceEntry):
            tolerances += [replace(cell, tolerance=(spec.rtol, spec.atol)) for cell in cells]
        elif isinstance(spec, Xfail):
            error = Known("xfail", spec.reason, raises=spec.raises, match=spec.match)
            known += [replace(cell, error=error) for cell in cells]
        elif entry.kind in ("exclude", "skip"):
            excluded += cells
    op = plan.ops[index]
    return Subject(
        op.name,
        op.family,
        op.row,
        dtypes,
        op.differentiable,
        tuple(excluded),
        tuple(known),
        tuple(tolerances),
    )


def _cells(plan: Plan, columns: int) -> list[Entry]:
    """Return the cells of an entry by their stages and layouts. Those of forms that a draw does not
    have stand for any."""
    dtypes_by_key: dict[tuple[tuple[str, ...], str], set[str]] = {}
    for position in bits(columns):
        column = plan.columns[position]
        check = plan.loaded.matrix.checks[column.check]
        key = pipeline.parse(check.pipeline).stages, column.axes.layout
        dtypes_by_key.setdefault(key, set()).add(column.dtype)
    return [
        Entry(stages, frozenset(dtypes), layout)
        for (stages, layout), dtypes in dtypes_by_key.items()
    ]


@dataclass
class _Soak:
    """The process that runs the draws, and what came of it."""

    target: str
    subjects: Sequence[Subject]
    # the seed of the first process; each further one has the next
    number: int
    # the time, by the monotonic clock, at which no further draw begins
    end: float
    out: Path
    # the number of causes after which it ends
    most: int | None = None
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    run_count: int = 0
    # the number of draws that were no cells
    rejected: int = 0

    def run(self, seconds: float) -> None:
        """Run processes of draws until the time is over, and show how many draws there were."""
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress:
            task = progress.add_task("soaking", total=seconds)
            start = time.monotonic()

            def show() -> None:
                progress.update(
                    task,
                    completed=time.monotonic() - start,
                    description=f"{self.run_count} draws, {len(self.findings)} causes",
                )

            # By the same seed, the next process would repeat the draws of the one that died.
            turn = 0
            while time.monotonic() < self.end and not self._enough:
                self._process(self.number + turn, show)
                turn += 1

    @property
    def _enough(self) -> bool:
        causes = sum(not finding.is_refusal for finding in self.findings.values())
        return self.most is not None and causes >= self.most

    def _process(self, number: int, show: Callable[[], None]) -> None:
        """Run one process to its end or death."""
        context = multiprocessing.get_context("spawn")
        messages: Any = context.Queue()
        arguments = (
            self.target,
            self.subjects,
            number,
            self.end - time.monotonic(),
            set(self.findings),
            messages,
        )
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        # `trying` is the draw that runs now: what to report if the process dies.
        trying: Finding | None = None
        since = time.monotonic()
        counts, by_target = (0, 0), False
        while True:
            try:
                # A dead process sends nothing, so each wait is short and ends with a look at it.
                kind, content = messages.get(timeout=0.5)
            except queue.Empty:
                show()
                if not process.is_alive():
                    why = f"the process ended with exit code {process.exitcode}"
                    self._note_death(trying, why, "crashed", by_target)
                    break
                if trying is not None and time.monotonic() - since > _TOO_LONG:
                    process.kill()
                    why = f"it ran for more than {_TOO_LONG:g} s"
                    self._note_death(trying, why, "timed out", by_target)
                    break
                continue
            if kind == _ENDED:
                break
            if kind == "trying":
                trying, by_target, counts = content
                since = time.monotonic()
            elif kind == "again":
                self._note_again(*content)
            else:
                self._add(*content)
                if self._enough:
                    process.kill()
                    break
        process.join(5)
        self.run_count += counts[0]
        self.rejected += counts[1]

    def _note_death(self, trying: Finding | None, why: str, kind: str, by_target: bool) -> None:
        """Note that the process is gone.

        An op or a reference that kills it is left out from now on, and is no finding.
        """
        if trying is None:
            raise RuntimeError(f"the process that draws could not start: {why}")
        self.subjects = [subject for subject in self.subjects if subject.name != trying.op]
        if not by_target:
            print(
                f"\n{trying.draw}\n  left out, since the op itself or its reference {kind}: {why}"
            )
            return
        severity = Severity.CRASH if kind == "crashed" else Severity.SLOW
        found = replace(trying, kind=kind, message=why, severity=severity.word, ops=(trying.op,))
        self._add(found, (trying.op, kind))

    def _add(self, finding: Finding, cause: tuple[str, ...]) -> None:
        """Add a finding, write all of them, and print it."""
        self.findings[cause] = finding
        self.write()
        print(f"\n{finding.draw}\n  {finding.kind}: {finding.first_line[:200]}")

    def _note_again(self, op: str, cause: tuple[str, ...]) -> None:
        """Note that another op has a cause."""
        known = self.findings[cause]
        if op not in known.ops:
            self.findings[cause] = replace(known, ops=(*known.ops, op))

    def write(self) -> None:
        """Write all findings, in the order in which they were found."""
        write(self.out, [*self.findings.values()], self.target)


def _work(
    target: str,
    subjects: Sequence[Subject],
    number: int,
    seconds: float,
    known: set[tuple[str, ...]],
    messages: Any,
) -> None:
    """Draw in a process of its own, and send findings back."""
    import torch

    torch.set_num_threads(1)
    declare_targets_of(Path.cwd())  # a process that is spawned has read no matrix
    loaded = load(target)
    loop: Search

    parent = multiprocessing.parent_process()

    def trying(draw: Draw, by_target: bool) -> None:
        if parent is not None and not parent.is_alive():
            os._exit(1)  # nobody reads what is found
        counts = (loop.counts.run, loop.counts.rejected)
        messages.put(("trying", (finding_of(draw), by_target, counts)))

    def found(failure: Failure) -> None:
        program: tuple[str | None, str] = (None, "the target refuses")
        if failure.severity is not Severity.REFUSED:
            program = text(failure, loaded)
        finding = replace(
            finding_of(failure.draw, failure.word),
            kind=failure.kind,
            message=str(failure.error),
            script=program[0],
            why_no_script=program[1],
            severity=failure.severity.word,
            ops=(failure.draw.subject.name,),
        )
        messages.put(("found", (finding, failure.cause)))

    def again(failure: Failure) -> None:
        messages.put(("again", (failure.draw.subject.name, failure.cause)))

    loop = Search(loaded, subjects, trying, found, again, set(known))
    loop.until(time.monotonic() + seconds, number)
    messages.put((_ENDED, None))
