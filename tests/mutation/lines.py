"""Find which tests run which lines. Every test file runs once under a tracer; the result is stored
under `.cache/`."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.tracing import Lines, Masks, followed, merge

__all__ = ["Map", "Tracer"]

# a test is traced for so long, in processor time; later code rarely runs another line
SECONDS = 10.0
SECONDS_STARTED = 60.0  # the same for a process that a test starts, which first imports torch
SECONDS_COLLECTING = 300.0  # the same while test files are imported
# the key in a trace for the lines that run when a source is imported, for any test
IMPORT = "import"
# by test: "seconds" of processor time, and "lines": by source file a bit per line
Trace = dict[str, dict[str, Any]]


class Tracer:
    """A pytest plugin that notes which lines of ``sources`` under ``root`` each test runs, in all
    threads and started processes."""

    def __init__(self, root: Path, sources: list[str]) -> None:
        self.found: Trace = {}
        self._lines = Lines(str(root), sources)
        self._started = followed(root, sources, SECONDS_STARTED)
        self._failed = False
        self._lines.begin(SECONDS_COLLECTING)

    def pytest_collection_finish(self) -> None:
        self._lines.end()
        self._started.__enter__()

    def pytest_sessionfinish(self) -> None:
        self._started.__exit__()
        self.found[IMPORT] = _facts(0.0, self._lines.imported())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._failed, start = False, sum(os.times()[:4])
        self._lines.begin(SECONDS)
        try:
            result = yield
        finally:
            lines = self._lines.end()
            merge(lines, self._started.taken())
        if not self._failed:
            self.found[item.nodeid] = _facts(round(sum(os.times()[:4]) - start, 3), lines)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= not report.passed


def _facts(seconds: float, lines: Masks) -> dict[str, Any]:
    return {"seconds": seconds, "lines": {path: f"{mask:x}" for path, mask in lines.items()}}


class Map:
    """The traces of test files, each with its version of the sources. Lines of an edited source are
    found again by their text.

    An edited test file is traced again. With ``fresh``, every test file is.
    """

    def __init__(self, path: Path, root: Path, fresh: bool = False) -> None:
        self._path, self._root = path, root
        known = {} if fresh or not path.exists() else json.loads(path.read_text())
        # of the test files at the time of the trace
        self._digests: dict[str, str] = known.get("digests", {})
        self._traces: dict[str, Trace] = known.get("traces", {})
        # by test file: digests of its sources
        self._versions: dict[str, dict[str, str]] = known.get("versions", {})
        self._sources: dict[str, list[str]] = known.get("sources", {})  # by digest: the lines
        self._moved: dict[tuple[str, str], dict[int, int]] = {}

    def stale(self, test_files: list[str]) -> list[str]:
        return [
            path for path in test_files if self._digests.get(path) != _digest(self._root / path)
        ]

    def learn(self, test_file: str, trace: Trace, sources: list[str]) -> None:
        """Store the trace of a test file."""
        versions = self._versions[test_file] = {}
        for path in sorted(
            path for source in sources for path in (self._root / source).rglob("*.py")
        ):
            version = versions[str(path.relative_to(self._root))] = _digest(path)
            self._sources.setdefault(version, path.read_text().splitlines())
        self._digests[test_file], self._traces[test_file] = _digest(self._root / test_file), trace
        self._path.parent.mkdir(parents=True, exist_ok=True)
        known = {
            "digests": self._digests,
            "traces": self._traces,
            "versions": self._versions,
            "sources": self._sources,
        }
        self._path.with_suffix(".new").write_text(json.dumps(known))
        self._path.with_suffix(".new").replace(self._path)

    def tests(self, path: str, lines: tuple[int, int], test_files: list[str]) -> dict[str, float]:
        """Tests that run one of ``lines`` of ``path``, with their seconds, quickest first.

        If the lines run when the file is imported, or if no test runs them: all tests
        that run the file.
        """
        found, nearby = dict[str, float](), dict[str, float]()
        for test_file in test_files:
            then = self._then(path, self._versions.get(test_file, {}).get(path, ""))
            wanted = sum(1 << then[line] for line in range(lines[0], lines[1] + 1) if line in then)
            masks = {
                test: int(facts["lines"].get(path, "0"), 16)
                for test, facts in self._traces.get(test_file, {}).items()
            }
            at_import = masks.pop(IMPORT, 0) & wanted
            for test, mask in masks.items():
                if mask:
                    (found if at_import or mask & wanted else nearby)[test] = float(
                        self._traces[test_file][test]["seconds"]
                    )
        return dict(sorted((found or nearby).items(), key=lambda item: item[1]))

    def near(self, path: str, tests: Iterable[str], number: int = 3) -> set[str]:
        """Test files that are named after the source file ``path``, and those with the largest
        share of their tests in ``tests``."""
        counts = Counter(test.partition("::")[0] for test in tests)
        name = Path(path).parent.name if Path(path).stem == "__init__" else Path(path).stem
        named = {test_file for test_file in counts if Path(test_file).stem == f"test_{name}"}
        return named.union(
            sorted(counts, key=lambda path: (-counts[path] / len(self._traces[path]), path))[
                :number
            ]
        )

    def _then(self, path: str, version: str) -> dict[int, int]:
        """The line numbers of the present source, mapped to those of its earlier ``version``."""
        if (path, version) not in self._moved:
            old, new = self._sources.get(version, []), (self._root / path).read_text().splitlines()
            blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            self._moved[path, version] = {
                b.b + i + 1: b.a + i + 1 for b in blocks for i in range(b.size)
            }
        return self._moved[path, version]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
