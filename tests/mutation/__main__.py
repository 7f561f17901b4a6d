"""`python -m tests.mutation`: draw mutants, run the tests that cover each, and count those that
no test notices."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import TypeVar

import yaml

from tests.mutation.lines import IMPORT, Map
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.trial import Copy, Outcome

T = TypeVar("T")
R = TypeVar("R")

ROOT = Path.cwd()
CACHE = Path(".cache/mutation")
EQUIVALENT = Path("tests/mutation/equivalent")  # a file for each folder of the runtime
# all but the records of ops, in which `gen audit --rules` plants faults
SOURCES = [
    f"runtime/{folder}"
    for folder in (
        "seam",
        "rules/functional_forms.py",
        "rules/hidden_writes.py",
        "tape",
        "trace",
        "functionalize",
        "func",
        "session",
        "autograd",
        "checkpoint",
        "aot",
        "export",
        "jit",
        "per_sample",
        "expanded_weights",
        "dropin",
    )
]
TESTS = ["tests/runtime", "generated_tests"]
SLOW = [  # each takes half a minute or more, and other tests run the same lines
    "tests/runtime/tape/test_saved_memory.py",
    "tests/runtime/rules/inside/test_bindings.py",
]
FIRST = 3.0  # seconds of tests


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    mutants = [mutant for source in args.sources for mutant in _of_folder(source)]
    drawn = draw(mutants, args.mutants, args.seed, args.only or ())
    if args.list:
        print(*drawn, sep="\n")
        return 0
    reasons = _reasons(EQUIVALENT)
    asked = [mutant for mutant in drawn if identity(mutant) not in reasons]
    equivalent = [
        (mutant, reasons[identity(mutant)]) for mutant in drawn if identity(mutant) in reasons
    ]
    outcomes = _try_all(asked, args)
    killed = sum(outcome.killed for outcome in outcomes.values())
    _summarise(outcomes, equivalent)
    share = 100 * killed / len(outcomes) if outcomes else 100.0
    print(
        f"{killed} of {len(outcomes)} mutants killed ({share:.1f}%), "
        f"{len(drawn) - len(outcomes)} more are equivalent; seed {args.seed}"
    )
    if args.report:
        rows = [
            {"mutant": str(m), "identity": identity(m), "killed": o.killed, "by": o.by}
            for m, o in outcomes.items()
        ]
        args.report.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return 0 if share >= args.at_least else 1


def _try_all(mutants: Sequence[Mutant], args: argparse.Namespace) -> dict[Mutant, Outcome]:
    """Run the tests of each mutant in a copy of the tree, and print each outcome."""
    test_files = [
        path for tests in args.tests for path in _test_files(tests) if path not in args.without
    ]
    options = [
        "--target",
        "runtime",
        "--tier",
        args.tier,
        "--in-process",
        *(f"--deselect={one}" for one in args.without),
    ]
    outcomes: dict[Mutant, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        workers = Workers([Copy(ROOT, Path(folder, str(i)), options) for i in range(args.workers)])
        known = Map(CACHE / f"{args.tier}.json", ROOT, args.fresh)
        _learn_lines(known, test_files, workers)

        def try_one(copy: Copy, mutant: Mutant) -> Outcome:
            return _try(copy, mutant, known, test_files, args.budget)

        start = time.monotonic()
        for mutant, outcome in workers.map(try_one, mutants):
            outcomes[mutant] = outcome
            fate = f"killed by {outcome.by}" if outcome.killed else f"SURVIVED {outcome.by}"
            seconds = time.monotonic() - start
            print(f"[{len(outcomes)}/{len(mutants)} {seconds:.0f} s] {mutant}  {fate}", flush=True)
    return outcomes


def _learn_lines(known: Map, test_files: list[str], workers: Workers) -> None:
    """Trace the test files that have changed, to know which lines each test runs."""
    stale = known.stale(test_files)
    traces = workers.map(lambda copy, path: copy.trace(path, SOURCES), stale)
    for number, (test_file, trace) in enumerate(traces, 1):
        known.learn(test_file, trace, SOURCES)
        count = sum(bool(facts["lines"]) for test, facts in trace.items() if test != IMPORT)
        print(
            f"which tests run which lines: {number} of {len(stale)}: "
            f"{test_file}, {count} of {len(trace) - 1} tests run some",
            flush=True,
        )


def _try(copy: Copy, mutant: Mutant, known: Map, test_files: list[str], budget: float) -> Outcome:
    """Run the tests that cover a mutant, the nearest first, until one of them fails."""
    tests = known.tests(mutant.path, mutant.lines, test_files)
    near = known.near(mutant.path, tests)
    outcome = Outcome(False, "no test runs it")
    for stage in stages(within_budget(nearest_first(tests, near), budget), near):
        outcome = copy.trial(mutant, stage)
        if outcome.killed:
            break
    return outcome


def draw(
    mutants: Iterable[Mutant], number: int, seed: int, only: Sequence[str] = ()
) -> list[Mutant]:
    """``number`` mutants, drawn at most one per line; or all mutants whose text contains
    one of ``only``."""
    if only:
        return [mutant for mutant in mutants if any(text in str(mutant) for text in only)]
    shuffled = sorted(
        mutants, key=lambda mutant: (mutant.path, mutant.start, mutant.kind, mutant.new)
    )
    random.Random(seed).shuffle(shuffled)
    by_line = {(mutant.path, mutant.line): mutant for mutant in reversed(shuffled)}
    return [mutant for mutant in shuffled if by_line[mutant.path, mutant.line] is mutant][:number]


def identity(mutant: Mutant) -> str:
    """The name of a mutant in the files of equivalent mutants. It has no line number,
    since lines move."""
    return " ".join(
        (
            f"{mutant.path} {mutant.within} ({mutant.text}): {mutant.kind}: "
            f"{mutant.old} → {mutant.new}"
        ).split()
    )


def within_budget(tests: dict[str, float], seconds: float) -> dict[str, float]:
    """The first tests that fit into ``seconds``, but at least one."""
    total, chosen = 0.0, dict[str, float]()
    for test, cost in tests.items():
        total += cost
        if chosen and total > seconds:
            break
        chosen[test] = cost
    return chosen


def nearest_first(tests: dict[str, float], near: set[str]) -> dict[str, float]:
    """``tests`` with those in the files ``near`` first. The order within each group is
    unchanged."""
    return dict(sorted(tests.items(), key=lambda item: item[0].partition("::")[0] not in near))


def stages(tests: dict[str, float], near: set[str]) -> list[dict[str, float]]:
    """First a few seconds of the tests in the files ``near``, then all others. Importing a test
    file takes longer than most tests."""
    first = within_budget(
        {test: cost for test, cost in tests.items() if test.partition("::")[0] in near}, FIRST
    )
    return [
        some
        for some in (first, {test: cost for test, cost in tests.items() if test not in first})
        if some
    ]


class Workers:
    """Copies of the tree, with a thread for each."""

    def __init__(self, copies: list[Copy]) -> None:
        self._count, self._free = len(copies), Queue[Copy]()
        for one in copies:
            self._free.put(one)

    def map(self, work: Callable[[Copy, T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
        """Each item with the result of ``work``, in the order in which they are done."""

        def task(item: T) -> tuple[T, R]:
            with self._borrowed() as one:
                return item, work(one, item)

        with ThreadPoolExecutor(self._count) as pool:
            for future in as_completed([pool.submit(task, item) for item in items]):
                yield future.result()

    @contextmanager
    def _borrowed(self) -> Iterator[Copy]:
        one = self._free.get()
        try:
            yield one
        finally:
            self._free.put(one)


def _of_folder(source: str) -> Iterator[Mutant]:
    path = ROOT / source
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        yield from mutants_of(ROOT, str(file.relative_to(ROOT)))


def _test_files(tests: str) -> list[str]:
    path = ROOT / tests
    return [
        str(file.relative_to(ROOT))
        for file in ([path] if path.is_file() else sorted(path.rglob("test_*.py")))
    ]


def _reasons(folder: Path) -> dict[str, str]:
    return {
        one["mutant"]: one["reason"]
        for path in sorted(folder.glob("*.yaml"))
        for one in yaml.safe_load(path.read_text())
    }


def _summarise(found: dict[Mutant, Outcome], equivalent: list[tuple[Mutant, str]]) -> None:
    print()
    for axis, word in (("kind", lambda m: m.kind), ("in", lambda m: str(Path(m.path).parent))):
        planted = Counter(word(mutant) for mutant in found)
        killed = Counter(word(mutant) for mutant, outcome in found.items() if outcome.killed)
        for name, number in sorted(planted.items()):
            print(f"  {axis:5} {name:22} {killed[name]:4d} of {number:4d} killed")
    print(f"  {sum(outcome.by == 'time-out' for outcome in found.values())} killed by time-out")
    for mutant, reason in equivalent:
        print(f"  equivalent: {mutant}: {reason}")
    for mutant, outcome in sorted(found.items(), key=lambda item: (item[0].path, item[0].line)):
        if not outcome.killed:
            print(f"  survived: {mutant}" + (f" ({outcome.by})" if outcome.by else ""))
    print()


def _parser() -> argparse.ArgumentParser:
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=shown
    )
    parser.add_argument(
        "sources", nargs="*", default=SOURCES, help="folders or files with the lines to change"
    )
    parser.add_argument("--mutants", type=int, default=150, metavar="N", help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="TEXT",
        help="instead: all mutants whose line of the report contains one of these",
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument(
        "--tests", nargs="+", default=TESTS, metavar="PATH", help="the tests that may kill"
    )
    parser.add_argument("--tier", default="smoke", help="of the cells of generated_tests")
    parser.add_argument(
        "--without",
        nargs="*",
        default=SLOW,
        metavar="PATH",
        help="test files, and tests, that are not run",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="of tests per mutant, the quickest first",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="trace all test files again, not only those that changed",
    )
    parser.add_argument(
        "--at-least",
        type=float,
        default=95.0,
        metavar="PERCENT",
        help="exit 1 when fewer are killed",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PATH",
        help="write every mutant and its result to this file, as JSON",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
