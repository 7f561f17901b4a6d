"""Run one cell, whoever asks for it: pytest's plug-in in a session, or a worker of a cluster."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from gen.checks.entries import Known, Settings
from gen.checks.tables import Cell, Cells, Family
from gen.outcomes import Crashed, Mismatch
from gen.run.execution import DEFAULT_LIMIT, Ran, Watch
from gen.run.failure_groups import cause_of, frame_of
from gen.severity import Failed, FailedSample, Severity, most_severe, severity_of_error

if TYPE_CHECKING:
    from gen.run.dispatcher_calls import DispatcherCalls
    from gen.run.rules_run import RulesRun
    from gen.run.verdict import Verdict
    from gen.targets.protocol import Target

__all__ = [
    "COMPILERS",
    "active_entries",
    "facts",
    "limit_of",
    "lost",
    "outcome_facts",
    "run_cell",
]

_LONGEST = 600  # characters of an expected or actual value, in the results


def active_entries(family: Family, cell: Cell, settings: Settings) -> dict[str, Known]:
    """Return the known entries of a cell that are active in this run."""
    return {name: entry for name, entry in family.entries(cell).items() if entry.active(settings)}


def limit_of(family: Family, cell: Cell, cells: Cells, asked: float | None) -> float | None:
    """Return the seconds that a cell may take. None if there is no limit.

    `asked`: what the command line says, where 0 is no limit.
    """
    if asked is not None:
        return asked or None
    return family.limit(cell.op, cells) or DEFAULT_LIMIT


def facts(family: Family, cell: Cell, check: str, entries: Mapping[str, Known]) -> dict[str, Any]:
    """Return the facts of a cell before it has run. Its outcome is an error until another one is
    known.
    """
    return {
        "id": cell.id,
        "family": family.name,
        "op": cell.op,
        "dtype": cell.dtype,
        "check": check,
        "axes": cell.axes.by_name(),
        "outcome": "error",
        "why": "",
        "samples": 0,
        "ledger": {
            f"{family.name}:{name}": entry.where()
            for name, entry in entries.items()
            if entry.kind in ("xfail", "skip")
        },
        "entries": [],
    }


def outcome_facts(ran: Ran, family: str) -> dict[str, object]:
    """Return the facts that a cell has once it has run."""
    verdict = ran.verdict
    facts_of_failure = {} if ran.failed is None else ran.failed.facts()
    return {
        **facts_of_failure,
        "outcome": verdict.outcome,
        "why": verdict.why,
        "samples": ran.compared,
        "entries": [f"{family}:{name}" for name in verdict.happened],
        "loops": dict(ran.loops),
        "rules": ran.rules,
        "values": ran.values,
        "refusal": ran.refusal,
        "program": ran.program,
        "failing": _first_failing_sample(verdict),
    }


def _first_failing_sample(verdict: Verdict) -> int | None:
    """Return the number of the first sample that failed. None if no failure is that of a sample."""
    for failure in verdict.failures:
        if failure.sample is not None:
            return failure.sample
    return None


def run_cell(
    test: Callable[..., object],
    cell: Cell,
    check: str,
    family: Family,
    target: Target,
    entries: Mapping[str, Known],
    settings: Settings,
    *,
    sample: int | None = None,
    all_samples: bool = False,
    watch: Watch | None = None,
    explain: bool = True,
    rules: RulesRun | None = None,
    calls: DispatcherCalls | None = None,
) -> Ran:
    """Run one cell in this process, and return what it came to.

    `explain`: write the stand-alone program of a failure. `rules`: what notes the rules that run.
    `calls`: what counts the calls of the dispatcher. `watch`: is told what the cell does.
    """
    import torch

    from gen.checks.case import Case
    from gen.run.verdict import attempt
    from gen.scripts.failures import of_failure

    torch.set_num_threads(1)
    with nullcontext() if watch is None else watch.outside_limit():
        _warm_up(family, cell, settings.device)
    case = Case(
        cell,
        check=check,
        family=family,
        target=target,
        device=settings.device,
        entries=entries,
        only=sample,
        all_samples=all_samples,
    )
    if watch is not None:
        case.on_sample = watch.begin
    # The target counts over all cells, so the cell's loops are a difference.
    loops: Any = getattr(case.target, "loops", {})
    before = Counter(loops)
    if rules is not None:
        rules.taken()  # what ran between cells
    with nullcontext() if calls is None else calls.of_cell(cell.op, check):
        verdict = attempt(test, case, entries, settings.today)
    rules_taken = () if rules is None else rules.taken()
    program = None
    failing = _first_failing_sample(verdict)
    if explain and verdict.failed and failing is not None:
        program = of_failure(case, failing)
    return Ran(
        verdict,
        case.compared,
        dict(Counter(loops) - before),
        program or "",
        rules=rules_taken,
        values=case.seen.digest,
        refusal=case.seen.refusal,
        failed=_failed(verdict),
    )


# --- functions that compile themselves ------------------------------------------------------------

COMPILERS = ("numba", "triton", "taichi", "cupy", "warp")
"""Packages whose functions are compiled when they are called."""
_MOST = 4
"""Samples of a function that run: their arguments are of few kinds."""
_warm: set[tuple[str, str]] = set()  # functions and dtypes that have run in this process


def _warm_up(family: Family, cell: Cell, device: str) -> None:
    """Run the function of a cell once on its first samples, if it may compile itself.

    A kernel of numba or triton is compiled at its first call with arguments of a kind, which may
    take a minute. The caller sees to it that the time does not count for the limit of the cell.
    Errors are those of the cell, which raises them again.
    """
    row: Any = family.ops.get(cell.op, {})
    key = (cell.op, cell.dtype)
    if "call" not in row or device == "meta" or key in _warm:
        return
    _warm.add(key)  # before the run, so that one that fails is not tried for each cell
    import torch

    from gen.samples.samples import STORE, resolve

    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch imports this at the first call of many a function inside of a mode
        importlib.import_module("gen.torch_private.compilers")
        resolve(row["call"])  # which imports what the function needs
    if not _may_compile():
        return

    dtype = getattr(torch, cell.dtype)
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in STORE.pool(family.name, cell.op, row, dtype, device, wrapped=False)[:_MOST]:
            with suppress(Exception):
                sample.run_backward()


def _may_compile() -> bool:
    """Return whether a compiler is imported, which a package may use.

    One that is installed alone would run the backward pass of each function before its cell.
    """
    return any(name in sys.modules for name in COMPILERS)


def _failed(verdict: Verdict) -> Failed | None:
    """Return the severity of a failure, and its cause. None if the cell did not fail."""
    if not verdict.failed:
        return None
    severity, worst = most_severe(verdict.failures)
    if worst is None:
        return Failed(severity)
    expected, actual = _both_sides(worst)
    return Failed(severity, cause_of(worst.error), frame_of(worst.error), expected, actual)


def _both_sides(failure: FailedSample) -> tuple[str, str]:
    """Return what a sample had to give and what it gave, in short. Empty where nothing was asked
    of the target.
    """
    error = failure.error
    if isinstance(error, Mismatch):
        return error.expected[:_LONGEST], error.actual[:_LONGEST]
    if severity_of_error(error) is Severity.UNASKED:
        return "", ""
    lines = str(error).strip().splitlines() or [""]
    expected = "the documented error" if failure.asks_error else "a value"
    return expected, f"{type(error).__name__}: {lines[0]}"[:_LONGEST]


def lost(entries: Mapping[str, Known], sample: int | None, description: str, error: Crashed) -> Ran:
    """Return the outcome of a cell whose process was lost."""
    from gen.checks.case import SampleFailure
    from gen.run.verdict import settle

    where = "" if sample is None else f" in sample {sample}"
    placed = type(error)(f"{error}{where}", error.stack)
    verdict = settle(entries, [SampleFailure(sample, description, placed)])
    return Ran(verdict, 0, {}, failed=_failed(verdict))
