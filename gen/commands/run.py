"""Run `gen run`: run cells on a cluster, and print what came of them."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gen.checks.tables import TIERS
from gen.cluster.cell_groups import Selection, groups
from gen.cluster.coordinator import Coordinator
from gen.cluster.dask_pool import ClusterError, DaskPool, connected
from gen.cluster.job import Group, Job, versions
from gen.cluster.output import Display, Output
from gen.dependencies.cell_record import Record
from gen.plan.matrix_plan import above
from gen.run.cell_durations import PLACE, read_durations
from gen.run.environment import environment
from gen.run.failure_groups import summary_lines
from gen.run.inventory import Module, find, matrix_fingerprint
from gen.run.isolation import Worker
from gen.run.project_defaults import declared
from gen.run.requirements import require_place
from gen.run.results import OUTCOMES, ResultsError, default_path
from gen.run.rules_run import RulesRun
from gen.run.selection.shard import lacks_the_largest_tier
from gen.run.selection.since_plugin import compare, options_of, record_path
from gen.run.selection.unaffected import Unaffected
from gen.severity import Severity
from gen.targets import load, names

__all__ = ["add_arguments", "run"]

_UNITS = {"K": 10, "M": 20, "G": 30}  # as powers of 2
_STOPPED = 130  # 128 and the number of SIGINT, as a shell has it
_LISTED = 40  # causes of failures in the summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen run`."""
    add = parser.add_argument
    add(
        "modules",
        nargs="*",
        default=["generated_tests"],
        metavar="PATH",
        help="modules, folders, or pytest ids (default: generated_tests)",
    )
    add(
        "--cluster",
        default="local:2",
        metavar="WHERE",
        help="local:N workers here, or a Dask scheduler, as tcp://host:8786 (default local:2)",
    )
    add(
        "--target",
        help=(
            "as of pytest: runtime, torch, or an entry point of matrix.targets (default: "
            "the matrix's targets.default)"
        ),
    )
    add(
        "--device",
        default="cpu",
        help=(
            "device of the samples (default cpu); "
            "its cells go to workers with the resource CPU or GPU"
        ),
    )
    add(
        "--tier",
        choices=TIERS,
        default="default",
        help="which cells to take: smoke < default < full < all",
    )
    for name in ("op", "check", "dtype"):
        add(
            f"--{name}",
            action="append",
            default=[],
            metavar="GLOB",
            help=f"only this {name}; repeat for more",
        )
    add(
        "--cell-timeout",
        type=above(0, or_equal=True),
        metavar="SECONDS",
        help="limit of every cell (default: the matrix's, or 120; 0: none)",
    )
    add(
        "--cell-memory",
        type=_bytes,
        metavar="SIZE",
        help="memory that the process of a cell may have, as 4G (default: no limit)",
    )
    add(
        "--fail-on",
        choices=[severity.word for severity in reversed(Severity)],
        help=(
            "exit with status 1 only if a cell fails at least this severely (default: if any cell "
            "fails)"
        ),
    )
    add(
        "--group-seconds",
        type=above(0),
        default=3.0,
        metavar="SECONDS",
        help="how long a group of cells should take (default %(default)s)",
    )
    add(
        "--rules",
        action="store_true",
        help="note the target's rules that each cell runs, for the report; cells take longer",
    )
    add(
        "--results",
        type=Path,
        metavar="FILE",
        help="results file (default .cache/matrix/results-TARGET-DEVICE.jsonl)",
    )
    add(
        "--since",
        metavar="REF",
        help=(
            "leave out cells that no change since this commit can affect, by what "
            "`pytest --since` has noted of them; what is unknown runs"
        ),
    )
    add(
        "--resume",
        action="store_true",
        help="go on with the results file: run the cells that have no outcome in it",
    )


def _bytes(text: str) -> int:
    """Return a size in bytes: "4G" is 4 << 30."""
    number, shift = text, 0
    unit = text[-1:].upper()
    if unit in _UNITS:
        number, shift = text[:-1], _UNITS[unit]
    if not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size, as 500M or 4G")
    return int(number) << shift


def run(args: argparse.Namespace) -> int:
    """Run the cells and print what came of them.

    Return 0 if all is well, 1 if a cell failed, 2 if it could not begin or go on, 130 if it was
    stopped.
    """
    try:
        return _run(args)
    except (ClusterError, ResultsError, ValueError, pytest.UsageError) as error:
        print(f"gen run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gen run: stopped before the first cell", file=sys.stderr)
        return _STOPPED


def _run(args: argparse.Namespace) -> int:
    """Run the cells. Raises what :func:`run` reports."""
    root = Path.cwd()
    args.target = args.target or declared(root).target
    modules = _modules(args, root)
    selection = _selection(args)
    durations = read_durations(root / PLACE)
    left_out = _left_out(args, root, modules)
    # Workers take seconds to start, so a run of no cells ends before.
    to_run = groups(modules, selection, durations, 0.0, left_out.__contains__)
    if next(to_run, None) is None:
        return _without_cells(args, selection, left_out)
    # A narrowed run has a file of its own, so that it does not replace the results of all cells.
    narrowed = _narrowed(args, selection)
    path = args.results or default_path(args.target, args.device, "part" if narrowed else "")
    require_place(root / path, args.results)
    job = _job(args, modules)
    header = _header(args, job, modules, selection)
    with _stoppable() as stop_if_asked, connected(args.cluster, args.device) as client:
        pool = DaskPool(client, job)
        pool.require_resource()
        print(f"results {path} · dashboard {pool.dashboard}", file=sys.stderr)
        output = Output(path, header, resume=args.resume)

        def is_done(node: str) -> bool:
            return node in left_out or output.has(node)

        offered = _Counted(groups(modules, selection, durations, args.group_seconds, is_done))
        stopped = ""
        try:
            with Display(output, None if narrowed else header["cells"]) as display:

                def tick(coordinator: Coordinator) -> None:
                    stop_if_asked()
                    display.show(pool.workers, coordinator.lost)

                Coordinator(iter(offered), pool, output, tick).run()
        except KeyboardInterrupt:
            stopped = "stopped"
        except ClusterError as error:
            stopped = str(error)
        pool.close()
        never = output.close(complete=not stopped, whole=not narrowed)
    fail_on = None if args.fail_on is None else Severity.of_word(args.fail_on)
    return _summary(output, offered.cells + output.resumed, never, stopped, fail_on)


def _without_cells(args: argparse.Namespace, selection: Selection, left_out: frozenset[str]) -> int:
    """End a run that has no cell to run: well, if ``--since`` has left all of them out.

    Raises ClusterError if nothing matches what was asked for.
    """
    if left_out:
        print(f"since {args.since}: all cells are as they were ({len(left_out)} left out)")
        return 0
    raise ClusterError(
        f"no cell of {' '.join(args.modules)} at tier {args.tier} matches "
        f"{selection.narrowed() or 'the tier'}"
    )


def _left_out(args: argparse.Namespace, root: Path, modules: Sequence[Module]) -> frozenset[str]:
    """Return the ids of the cells that ``--since`` leaves out."""
    if args.since is None:
        return frozenset()
    record = Record.read(record_path(root, args.target, args.device))
    options = options_of(args.target, args.device, args.cell_timeout)
    comparison = compare(root, args.since, record, options)
    if comparison.everything:
        print(f"since {args.since}: every cell runs: {comparison.everything}", file=sys.stderr)
    return Unaffected(record, comparison).nodes(modules, args.tier)


def _narrowed(args: argparse.Namespace, selection: Selection) -> str:
    """Return what narrows the run, in words. Empty if it takes every cell of its tier."""
    words = (selection.narrowed(), "" if args.since is None else "--since")
    return " ".join(filter(None, words))


def _modules(args: argparse.Namespace, root: Path) -> list[Module]:
    """Return the modules that are asked for. Raises ClusterError if there is nothing to run in
    them.
    """
    for argument in args.modules:
        if not (root / argument.partition("::")[0]).exists():
            raise ClusterError(f"{argument}: no such file or folder here, in {root}")
    modules = [module for module in find(args.modules, root) if module.counts]
    if not modules:
        raise ClusterError(
            f"{' '.join(args.modules)}: no modules of a matrix; "
            "`python -m gen generate` writes them"
        )
    # these modules would run fewer cells than were asked for, and say nothing
    if args.tier == TIERS[-1] and lacks_the_largest_tier(modules):
        raise ClusterError(
            "these modules have no cells beyond the tier full; "
            "`gen generate --every --out FOLDER` writes all valid cells"
        )
    if args.target not in names():
        raise ClusterError(f"no target {args.target!r}; known: {', '.join(names())}")
    return modules


def _selection(args: argparse.Namespace) -> Selection:
    ids = frozenset(argument for argument in args.modules if "::" in argument)
    return Selection(args.tier, tuple(args.op), tuple(args.check), tuple(args.dtype), ids)


def _job(args: argparse.Namespace, modules: Sequence[Module]) -> Job:
    """Return what workers have to know of the run."""
    return Job(
        name=secrets.token_hex(4),
        target=args.target,
        device=args.device,
        date=datetime.date.today().isoformat(),
        filters=_filters(),
        digests=tuple((module.name, module.digest) for module in modules),
        versions=tuple(versions().items()),
        limit=args.cell_timeout,
        memory=args.cell_memory,
        rules=args.rules,
    )


def _rules(target: str) -> list[str]:
    """Return the names of a target's rules.

    Another process loads the target, so that the coordinator holds no torch.
    """
    worker = Worker(lambda name: RulesRun.of(name, load(name)))
    try:
        rule_names: list[str] = worker.ask(target, None)
    except LookupError as error:
        raise ClusterError(str(error.args[0])) from error
    finally:
        worker.close()
    return rule_names


class _Ini:
    """Read pytest's settings, and end pytest before it collects anything."""

    filters: tuple[str, ...] = ()

    # The first result of this hook counts, so pytest never comes to a session of its own.
    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        self.filters = tuple(config.getini("filterwarnings"))
        return 0


def _filters() -> tuple[str, ...]:
    """Return the filters of warnings under which pytest runs the modules: there a warning may be an
    error.
    """
    reader = _Ini()
    pytest.main([], plugins=[reader])
    return reader.filters


def _header(
    args: argparse.Namespace, job: Job, modules: Sequence[Module], selection: Selection
) -> dict[str, Any]:
    """Return the header of the results file."""
    return {
        "target": job.target,
        "device": job.device,
        "tier": args.tier,
        **environment(job.settings()),
        "seed": "of the case's id",
        "sample": "usual",
        "shard": "1/1",
        "narrowed": _narrowed(args, selection) or "no",
        "date": job.date,
        "matrix": matrix_fingerprint(modules),
        "cells": sum(module.counts.get(args.tier, 0) for module in modules),
        "cluster": args.cluster,
    } | ({"rules": _rules(job.target)} if job.rules else {})


class _Counted:
    """Count the cells of the groups that pass through it."""

    def __init__(self, of: Iterator[Group]) -> None:
        self.cells = 0
        self._of = of

    def __iter__(self) -> Iterator[Group]:
        for group in self._of:
            self.cells += len(group.cells)
            yield group


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C, and SIGTERM, which batch systems send, stop the run.

    The function that the context gives raises KeyboardInterrupt again if one of them was sent:
    Python drops an exception that a signal raises in a destructor, such as that of a future.
    """
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def stop_if_asked() -> None:
        if asked:
            raise KeyboardInterrupt

    # A background job of a shell ignores Ctrl-C.
    handlers = []
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            handlers.append((number, signal.signal(number, stop)))
    try:
        yield stop_if_asked
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def _summary(
    output: Output, expected: int, never: Sequence[str], stopped: str, fail_on: Severity | None
) -> int:
    """Print the counts, the failures and why the run stopped. Return the exit code."""
    print(_counts(output) or "no cell has run")
    print(f"{output.cells:,} cells, {output.seconds:.1f} s of workers; {output.path}")
    for line in summary_lines(output.severities, output.failed, _LISTED, fail_on):
        print(line)
    if never:
        print("entries that never happened:", *never, sep="\n  ")
    if stopped:
        print(
            f"{stopped}; {output.cells:,} cells have an outcome, and --resume runs the others",
            file=sys.stderr,
        )
        if stopped == "stopped":
            return _STOPPED
        return 2
    # A check of the coordinator itself: each cell has to have one outcome.
    if output.cells != expected:
        print(
            (
                f"{expected:,} cells were to run, and {output.cells:,} have an outcome: "
                "this is a mistake of gen.cluster"
            ),
            file=sys.stderr,
        )
        return 2
    return int(output.fails(fail_on))


def _counts(output: Output) -> str:
    """Return the number of cells of each outcome, in one line."""
    present = [outcome for outcome in OUTCOMES if output.counts[outcome]]
    return " · ".join(f"{output.counts[outcome]} {outcome}" for outcome in present)
