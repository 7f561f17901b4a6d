"""Declare the options that the matrix adds to pytest, and read those that have a value of their
own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gen.checks.tables import TIERS
from gen.run.earlier_results import Baseline
from gen.run.results import ResultsError
from gen.run.selection.shard import Shard, parse_shard
from gen.severity import Severity

__all__ = [
    "add_options",
    "baseline_asked_for",
    "narrowing",
    "require_valid_options",
    "selection",
    "severity_asked_for",
    "shard_asked_for",
]


def add_options(parser: pytest.Parser) -> None:
    """Add the options of the matrix to pytest."""
    group = parser.getgroup("matrix", "the matrix of generated tests")
    group.addoption(
        "--target",
        help=(
            "what is tested: runtime, torch, or an entry point (default: "
            "the matrix's targets.default)"
        ),
    )
    group.addoption("--device", default="cpu", help="where the target runs (default cpu)")
    group.addoption(
        "--backend",
        metavar="MODULE",
        help="what registers the device when imported, if matrix.yaml does not name it",
    )
    group.addoption(
        "--tier",
        choices=TIERS,
        default="default",
        help="which cells to take: smoke < default < full < all",
    )
    group.addoption(
        "--level",
        metavar="N",
        help="only the cells of this level, or of several such as 1-3, and which op to write next; "
        "they are of the tier full, whatever --tier says",
    )
    group.addoption(
        "--sample", type=int, metavar="N", help="run only sample N of each case (counted from 0)"
    )
    group.addoption(
        "--all-samples",
        action="store_true",
        help="run every sample of a case, including those beyond its usual limit",
    )
    group.addoption(
        "--fail-on",
        choices=[severity.word for severity in reversed(Severity)],
        help=(
            "exit with status 1 only if a cell fails at least this severely: "
            "wrong value > crash > wrong error > slow > refused > unasked > stale entry "
            "(default: if any cell fails)"
        ),
    )
    group.addoption(
        "--cell-timeout",
        type=float,
        metavar="SECONDS",
        help="limit of every cell (default: the matrix's, or 120; 0: none)",
    )
    group.addoption(
        "--in-process",
        action="store_true",
        help="run cells in pytest's own process: for debuggers; no limit, no crash survived",
    )
    group.addoption(
        "--rules",
        action="store_true",
        help="note the target's rules that each cell runs, for the report; cells take longer",
    )
    group.addoption(
        "--overloads",
        type=Path,
        metavar="FOLDER",
        help="write there which overloads of torch's dispatcher each cell calls, see gen coverage",
    )
    group.addoption(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="run part I of N, balanced by matrix/durations.json",
    )
    group.addoption(
        "--resume",
        action="store_true",
        help="go on with the results file of an interrupted run: run the cells without an outcome",
    )
    group.addoption(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="fail only by what did not fail so in this results file, and say what is new",
    )
    group.addoption(
        "--progress",
        type=float,
        metavar="SECONDS",
        help=(
            "how often a line says how far the run is (default: 5 on a terminal, 60 elsewhere; "
            "0: never)"
        ),
    )
    group.addoption(
        "--since",
        metavar="REF",
        help=(
            "leave out cells that no change since this commit can affect, by what they ran in the "
            "last run with --since; what is unknown runs"
        ),
    )
    group.addoption(
        "--results",
        type=Path,
        metavar="PATH",
        help="results file (default .cache/matrix/results-TARGET-DEVICE.jsonl)",
    )


def shard_asked_for(option: argparse.Namespace) -> Shard:
    """Return the part that `--shard` names. Raises UsageError for anything but ``I/N``."""
    try:
        return parse_shard(option.shard)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def require_valid_options(option: argparse.Namespace) -> None:
    """Raise UsageError for values that argparse lets through."""
    if option.sample is not None and (option.sample < 0 or option.all_samples):
        raise pytest.UsageError(
            "--sample takes one number from 0 up, and not together with --all-samples"
        )
    # comparisons that NaN does not pass either, which argparse takes for a number
    if option.cell_timeout is not None and not 0 <= option.cell_timeout < float("inf"):
        raise pytest.UsageError("--cell-timeout takes seconds, or 0 for no limit")
    if option.progress is not None and not option.progress >= 0:
        raise pytest.UsageError("--progress takes seconds, or 0 for no lines")


def baseline_asked_for(config: pytest.Config) -> Baseline | None:
    """Return the earlier run whose failures are old, if there is one."""
    path: Path | None = config.option.baseline
    if path is None:
        return None
    try:
        return Baseline(path)
    except ResultsError as error:
        raise pytest.UsageError(f"--baseline: {error}") from error


def severity_asked_for(option: argparse.Namespace) -> Severity | None:
    """Return the least severity that fails a run. None if any failure does."""
    return None if option.fail_on is None else Severity.of_word(option.fail_on)


def narrowing(config: pytest.Config) -> str:
    """Return why this run does not take every cell of its tier, in words; empty if it does."""
    option = config.option
    # Each option that leaves out cells, so that a report does not take them for vanished.
    options = {
        "-k": option.keyword,
        "-m": option.markexpr,
        "--deselect": option.deselect,
        "--sample": option.sample is not None,
        # the option is gone where pytest's plugin for its cache is off
        "--lf": getattr(option, "lf", False),
        "-x": option.maxfail,
        "--level": option.level,
        "--since": option.since,
        "--ignore": option.ignore or option.ignore_glob,
        "ids": any("::" in str(argument) for argument in config.args),
        "files": any(str(argument).endswith(".py") for argument in config.args),
    }
    return " ".join(name for name, is_set in options.items() if is_set)


def selection(config: pytest.Config) -> str:
    """Return what narrows the run, in full: shards of one run have the same."""
    option = config.option
    options = (
        option.keyword,
        option.markexpr,
        option.deselect,
        option.sample,
        option.all_samples,
        option.level,
        [argument for argument in config.args if "::" in str(argument)],
    )
    return repr(options)
