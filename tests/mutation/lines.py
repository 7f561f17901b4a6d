"""Which tests run which lines: learnt once by running every test file under a tracer, and kept under `.cache/`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

__all__ = ["Map", "Tracer"]

# How much of a test is traced; what comes later rarely runs another line.
CALLS = 200  # of one function
SECONDS = 10.0  # of processor time
Trace = dict[str, dict[str, Any]]  # by test: "seconds" of processor time, and "lines": by source file a bit per line


class Tracer:
    """A pytest plugin that notes which lines of ``sources`` under ``root`` each test runs, in all threads."""

    def __init__(self, root: Path, sources: list[str]) -> None:
        self.found: Trace = {}
        self._prefixes = tuple(f"{root / source}{os.sep}" for source in sources)
        self._root, self._mine = root, dict[CodeType, bool]()
        self._lines: set[tuple[CodeType, int]] = set()
        self._calls: Counter[CodeType] = Counter()
        self._failed = False

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        mine = self._mine.get(code)
        if mine is None:
            mine = self._mine[code] = code.co_filename.startswith(self._prefixes)
        if not mine:
            return None
        self._calls[code] += 1
        return self._line if self._calls[code] <= CALLS else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._lines.add((frame.f_code, frame.f_lineno))
        return self._line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines, self._calls, self._failed, start = set(), Counter(), False, sum(os.times()[:4])
        threading.settrace(self._called)
        signal.signal(signal.SIGVTALRM, lambda *_: sys.settrace(None))
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        sys.settrace(self._called)
        try:
            result = yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            sys.settrace(None)
            threading.settrace(None)
        if not self._failed:
            lines: dict[str, int] = {}
            for code, line in self._lines:
                path = os.path.relpath(code.co_filename, self._root)
                lines[path] = lines.get(path, 0) | 1 << line
            self.found[item.nodeid] = {"seconds": round(sum(os.times()[:4]) - start, 3), "lines": {p: f"{m:x}" for p, m in lines.items()}}
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= not report.passed


class Map:
    """The traces of test files, each with the sources that it is of: lines of an edited source are found again by their text.

    An edited test file is traced again, and so is every one when the map is to be ``fresh``.
    """

    def __init__(self, path: Path, root: Path, fresh: bool = False) -> None:
        self._path, self._root = path, root
        known = {} if fresh or not path.exists() else json.loads(path.read_text())
        self._digests: dict[str, str] = known.get("digests", {})  # of test files when they were traced
        self._traces: dict[str, Trace] = known.get("traces", {})
        self._versions: dict[str, dict[str, str]] = known.get("versions", {})  # by test file: the digest of each source then
        self._sources: dict[str, list[str]] = known.get("sources", {})  # by digest: the lines
        self._moved: dict[tuple[str, str], dict[int, int]] = {}

    def stale(self, test_files: list[str]) -> list[str]:
        return [path for path in test_files if self._digests.get(path) != _digest(self._root / path)]

    def learn(self, test_file: str, trace: Trace, sources: list[str]) -> None:
        """Keep what a tracer found."""
        versions = self._versions[test_file] = {}
        for path in sorted(path for source in sources for path in (self._root / source).rglob("*.py")):
            version = versions[str(path.relative_to(self._root))] = _digest(path)
            self._sources.setdefault(version, path.read_text().splitlines())
        self._digests[test_file], self._traces[test_file] = _digest(self._root / test_file), trace
        self._path.parent.mkdir(parents=True, exist_ok=True)
        known = {"digests": self._digests, "traces": self._traces, "versions": self._versions, "sources": self._sources}
        self._path.with_suffix(".new").write_text(json.dumps(known))
        self._path.with_suffix(".new").replace(self._path)

    def tests(self, path: str, lines: tuple[int, int], test_files: list[str]) -> dict[str, float]:
        """Tests that run one of ``lines`` of ``path``, with their seconds, quickest first; those that run the file, if none does."""
        found, nearby = dict[str, float](), dict[str, float]()
        for test_file in test_files:
            then = self._then(path, self._versions.get(test_file, {}).get(path, ""))
            wanted = sum(1 << then[line] for line in range(lines[0], lines[1] + 1) if line in then)
            for test, facts in self._traces.get(test_file, {}).items():
                mask = int(facts["lines"].get(path, "0"), 16)
                if mask:
                    (found if mask & wanted else nearby)[test] = float(facts["seconds"])
        return dict(sorted((found or nearby).items(), key=lambda item: item[1]))

    def near(self, tests: Iterable[str], number: int = 3) -> set[str]:
        """The test files of which the largest part is among ``tests``."""
        counts = Counter(test.partition("::")[0] for test in tests)
        return set(sorted(counts, key=lambda path: (-counts[path] / len(self._traces[path]), path))[:number])

    def _then(self, path: str, version: str) -> dict[int, int]:
        """Where a line of today's source stood in that version of it."""
        if (path, version) not in self._moved:
            old, new = self._sources.get(version, []), (self._root / path).read_text().splitlines()
            blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            self._moved[path, version] = {b.b + i + 1: b.a + i + 1 for b in blocks for i in range(b.size)}
        return self._moved[path, version]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
