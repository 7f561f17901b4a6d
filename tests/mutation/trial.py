"""Run chosen tests in a copy of the tree, in a process of its own that may hang, crash or
fill the memory."""

from __future__ import annotations

import compileall
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.mutation.lines import Trace, Tracer
from tests.mutation.mutants import Mutant

__all__ = ["Copy", "Outcome"]

LEFT_OUT = shutil.ignore_patterns(".*", "report", "*.egg-info", "build", "dist")
PYTEST = 100  # added to pytest's exit codes; any other exit code is no verdict
MEMORY = 16 << 30  # bytes of address space, because a mutant may append to a list without end
PROCESSES = multiprocessing.get_context("forkserver")
# imported once, for all trials
PROCESSES.set_forkserver_preload(["pytest", "torch.testing", "torch._dynamo", "scipy.special"])


@dataclass(frozen=True)
class Outcome:
    killed: bool
    by: str  # the test that failed, or another cause


class Copy:
    """A copy of the tree ``root`` in ``place``. One mutant at a time is tried in it."""

    _times = count(1)  # each mutant gets its own file time, so that Python compiles it again

    def __init__(self, root: Path, place: Path, options: list[str], patience: float = 60) -> None:
        """``options`` are pytest's. A trial may take ``patience`` seconds of processor time longer
        than its tests should."""
        self.place, self._options, self._patience = place, options, patience
        shutil.copytree(root, place, ignore=LEFT_OUT)
        compileall.compile_dir(place, quiet=2)

    def trace(self, test_file: str, sources: list[str]) -> Trace:
        """The lines of ``sources`` that each passing test of the file runs."""
        self._run({"tests": None, "files": [test_file], "sources": sources}, 3600, 3600)
        result = self.place / ".trace.json"
        trace: Trace = json.loads(result.read_text())
        result.unlink()
        return trace

    def trial(self, mutant: Mutant | None, tests: dict[str, float]) -> Outcome:
        """Whether one of the tests fails on the mutant, or on the unchanged tree if it is None."""
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        request: dict[str, list[str] | None] = {
            "tests": list(tests),
            "files": files,
            "sources": None,
        }
        limit = self._patience + 3 * sum(tests.values())
        if mutant is None:
            return self._run(request, limit, 10 * limit)
        path = self.place / mutant.path
        source, stat = path.read_bytes(), path.stat()
        try:
            path.write_bytes(mutant.applied(source))
            os.utime(path, (stat.st_atime, stat.st_mtime + 10 * next(self._times)))
            return self._run(request, limit, 10 * limit)
        finally:
            path.write_bytes(source)
            os.utime(path, (stat.st_atime, stat.st_mtime))

    def _run(
        self, request: dict[str, list[str] | None], processor_seconds: float, seconds: float
    ) -> Outcome:
        failure = self.place / ".failure"
        failure.unlink(missing_ok=True)
        process = PROCESSES.Process(
            target=_tests, args=(str(self.place), request, self._options, int(processor_seconds))
        )
        process.start()
        process.join(seconds)
        if process.is_alive() or process.exitcode == -signal.SIGXCPU:
            outcome = Outcome(True, "time-out")
        elif process.exitcode == PYTEST + pytest.ExitCode.OK:
            outcome = Outcome(False, "")
        elif process.exitcode == PYTEST + pytest.ExitCode.NO_TESTS_COLLECTED:
            outcome = Outcome(False, "no test runs it")
        elif process.exitcode is not None and 0 < process.exitcode < PYTEST:
            raise RuntimeError(f"the tests of {self.place} could not be run: {request}")
        else:
            outcome = Outcome(
                True, failure.read_text() if failure.exists() else f"exit code {process.exitcode}"
            )
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            # processes that the tests started are in its group too
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return outcome


class _Chosen:
    """A pytest plugin that runs only these tests, in this order. It writes the first
    failure to a file."""

    def __init__(self, tests: list[str] | None, failure: Path) -> None:
        self._order = None if tests is None else {test: i for i, test in enumerate(tests)}
        self._failure = failure

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = self._order
        if order is not None:
            items[:] = sorted(
                (item for item in items if item.nodeid in order),
                key=lambda item: order[item.nodeid],
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failure.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failure.write_text(f"{report.nodeid} cannot be imported")


def _tests(
    place: str, request: dict[str, list[str] | None], options: list[str], processor_seconds: int
) -> None:
    """The body of the process. Its exit code is pytest's plus 100."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, processor_seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    original = os.getcwd()
    os.chdir(place)
    sys.path[:] = [place, *(path for path in sys.path if path not in ("", original))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # import the tests' helpers from the copy
    output = os.open(".output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    chosen, sources, files = request["tests"], request["sources"], request["files"] or []
    plugins: list[object] = [_Chosen(chosen, Path(place, ".failure"))]
    arguments = ["-q", "-p", "no:cacheprovider", *options, *files]
    if sources is None:
        code = pytest.main(["-x", *arguments], plugins=plugins)
    else:
        tracer = Tracer(Path(place), sources)
        code = pytest.main(arguments, plugins=[*plugins, tracer])
        Path(".trace.json").write_text(json.dumps(tracer.found))
    sys.stdout.flush()
    os._exit(PYTEST + code)
