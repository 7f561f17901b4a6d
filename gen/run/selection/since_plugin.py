"""Leave out the cells that a change since a commit cannot affect: ``pytest --since main``.

Each cell that runs does so in a process of its own, which notes what it depends on. The record of
that is for the next run with ``--since``. What it does not know runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import sys
import tempfile
import time
import warnings
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gen.checks.tables import Cell, cells_of
from gen.dependencies.cell_record import (
    CellRecord,
    Fact,
    Files,
    Record,
    added,
    stale_facts,
    unreadable_changes,
)
from gen.dependencies.process_trace import CellTrace, ProcessTrace
from gen.dependencies.revision import Revision, RevisionError
from gen.dependencies.source_units import WHOLE
from gen.run.cell_items import cell_of
from gen.run.project_defaults import declared
from gen.run.results import default_path
from gen.run.run_cell import COMPILERS
from gen.run.selection.unaffected import (
    Comparison,
    Unaffected,
    definition,
    family_of_table,
    is_generated,
)

if TYPE_CHECKING:
    from gen.run.execution import Ran
    from gen.run.recorder import Recorder

__all__ = ["Since", "compare", "options_of", "record_path"]

_TRACE = "matrix-dependencies"  # the user property of a report
_INPUT = "matrix_since"  # what a worker of pytest-xdist is told, and what it tells
_PRELOADED = ("torch.", "gen.")


def compare(root: Path, name: str, record: Record, options: Sequence[object]) -> Comparison:
    """Compare the files below `root` with the commit `name`.

    `options` are those of the run that change what a cell does. Raises UsageError for a name that
    git does not know.
    """
    try:
        revision = Revision.named(root, name)
        unreadable = unreadable_changes(revision)
        comparison = Comparison(
            str(revision.repository),
            name,
            revision.commit,
            _environment(options),
            files=len(revision.changed),
        )
        if unreadable:
            more = f" and {len(unreadable) - 1} more files" if len(unreadable) > 1 else ""
            why = f"{unreadable[0]}{more} changed, and nobody knows which cells that affects"
        elif _declared_then(revision, root) != repr(declared(root)):
            why = "targets or devices of matrix.yaml changed"
        else:
            stale = tuple(sorted(stale_facts(record.facts, revision)))
            return replace(comparison, stale=stale)
        return replace(comparison, everything=why)
    except RevisionError as error:
        raise pytest.UsageError(f"--since {name}: {error}") from error


def _declared_then(revision: Revision, root: Path) -> str:
    """Return the targets and devices that `matrix.yaml` declared at a commit."""
    place = os.path.relpath(root / "matrix.yaml", revision.repository)
    text = revision.text(Path(place).as_posix())
    with tempfile.TemporaryDirectory() as folder:
        if text is not None:
            (Path(folder) / "matrix.yaml").write_bytes(text)
        return repr(declared(Path(folder)))


def _environment(options: Sequence[object]) -> str:
    """Return a digest of the versions of all that is installed, of the matrix and of the
    options.

    The matrix counts by its files, since a checkout has one version for many states.
    """
    import torch

    digest = hashlib.blake2b(digest_size=8)
    installed = sorted({f"{each.name}=={each.version}" for each in distributions()})
    # variables by which torch chooses what it compiles and how
    settings = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(("TORCH", "PYTORCH")):
            settings[name] = value
    cpu = torch.backends.cpu.get_cpu_capability()
    words = (platform.python_version(), platform.machine(), cpu, installed, settings, *options)
    digest.update(repr(words).encode())
    for path in sorted(Path(__file__).resolve().parents[2].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def record_path(root: Path, target: str, device: str) -> Path:
    """Return the file with what the cells of a target depend on."""
    results = default_path(target, device)
    return root / results.with_name(results.stem.replace("results", "dependencies", 1) + ".json")


class Since:
    """Choose the cells of a run with ``--since``, and keep what those that run depend on.

    The process that starts the workers compares the files with the commit, and tells each worker.
    A worker chooses, runs cells and notes what they depend on. That comes back with the reports,
    and the first process writes it at the end.
    """

    def __init__(self, config: pytest.Config, name: str, target: str, device: str) -> None:
        self._path = record_path(config.rootpath, target, device)
        self._record = Record.read(self._path)
        self._began = time.time()
        self._config = config
        input_of_worker = getattr(config, "workerinput", {}).get(_INPUT)
        if input_of_worker is None:
            options = _options(config, target, device)
            self.comparison = compare(config.rootpath, name, self._record, options)
        else:
            self.comparison = Comparison(**input_of_worker)
        self._unaffected = Unaffected(self._record, self.comparison)
        self.left_out = 0
        self._traces: dict[str, str] = {}
        self._loaded = frozenset[str]()  # the modules that a process of a cell begins with
        self.trace: ProcessTrace | None = None  # None if this run cannot note what runs

    # --- processes of pytest-xdist ---

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker what differs, so that all workers choose the same cells.

        A file may change between the start of two workers, which would then disagree.
        """
        node.workerinput[_INPUT] = asdict(self.comparison)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take from a worker how many cells it has left out: all leave out the same."""
        output = getattr(node, "workeroutput", None) or {}
        self.left_out = max(self.left_out, output.get(_INPUT, 0))

    # --- which cells run ---

    def chosen(self, items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
        """Divide the items of a session into those that run and those that are left out."""
        runs: list[pytest.Item] = []
        out: list[pytest.Item] = []
        for item in items:
            if self._is_as_it_was(item):
                out.append(item)
            else:
                runs.append(item)
        self.left_out = len(out)
        return runs, out

    def _is_as_it_was(self, item: pytest.Item) -> bool:
        """Return whether a change since the commit cannot affect a cell."""
        cell = cell_of(item)
        if cell is None:
            return False
        return self._unaffected.has(
            item.nodeid, item.path, item.name, lambda: definition_of(item, cell)
        )

    # --- what cells depend on ---

    def begin(self) -> None:
        """Begin to note what runs in this process and its forks."""
        self.trace = ProcessTrace(_may_compile)
        self.trace.start()

    @property
    def notes(self) -> bool:
        """Return whether this run notes what cells depend on."""
        return self.trace is not None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Import what many a cell makes torch import, and note what a block reads."""
        if self.trace is None:
            yield
            return
        _import("gen.torch_private.compilers")
        # which starts a process at the first call, for torch's own tests
        platform.platform()
        with self.trace.reading():
            yield
        self._loaded = frozenset(sys.modules)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note what a block does, which runs a cell."""
        if self.trace is None:
            yield
            return
        with self.trace.cell():
            yield

    def end(self) -> None:
        """Note no more of what runs."""
        if self.trace is not None:
            self.trace.stop()

    def noted(self, item: pytest.Function, cell: Cell) -> str:
        """Return what this process, which has run a cell, depends on, as text."""
        assert self.trace is not None
        trace = self.trace.of_cell()
        # the definition of a cell has what the tables say of it
        units = {path: names for path, names in trace.units.items() if not _has_tables(path)}
        if not _has_tables(str(item.path)):
            units[str(item.path)] = [WHOLE]
        if self._config.inipath is not None:
            units[str(self._config.inipath)] = [WHOLE]
        new = [name for name in sys.modules if name not in self._loaded]
        return _packed((definition_of(item, cell), trace.unknown, units, new))

    def keep(self, item: pytest.Function, ran: Ran) -> None:
        """Attach what a cell depends on to its reports.

        What the cell made torch import is imported here too, so that the process of the next cell
        need not: the first call of a compiler imports hundreds of modules.
        """
        if not ran.trace:
            return
        item.user_properties.append((_TRACE, ran.trace))
        *_, new = _unpacked(ran.trace)
        for name in new:
            if name.startswith(_PRELOADED) and name not in sys.modules:
                _import(name)
        self._loaded = frozenset(sys.modules)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a cell depends on, in the process that has started the workers."""
        trace = dict(report.user_properties).get(_TRACE)
        if report.when == "call" and isinstance(trace, str):
            self._traces[report.nodeid] = trace

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the record. A run of which every cell is as it was has ended well."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_INPUT] = self.left_out
            return
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left_out:
            session.exitstatus = pytest.ExitCode.OK
        recorder: Recorder | None = self._config.pluginmanager.get_plugin("matrix-recorder")
        if self._traces and recorder is not None:
            outcomes = {cell.node: cell.outcome for cell in recorder.cells}
            # without a record the next run takes every cell
            with suppress(OSError):
                added(self._record, self._new_records(outcomes)).write(self._path)

    def _new_records(self, outcomes: dict[str, str]) -> dict[str, tuple[CellRecord, list[Fact]]]:
        """Return the records of the cells that have run, of which all is known.

        A cell without a record runs the next time: it may start a process, or one of its files has
        changed during the run.
        """
        files = Files(Path(self.comparison.repository), self._began)
        records: dict[str, tuple[CellRecord, list[Fact]]] = {}
        for node, text in self._traces.items():
            of_cell, unknown, units, _ = _unpacked(text)
            facts = None if unknown else files.facts_of(CellTrace(units))
            if facts is not None and node in outcomes:
                environment = self.comparison.environment
                records[node] = CellRecord(of_cell, environment, outcomes[node], ()), facts
        return records

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many cells were left out, or why none was."""
        comparison = self.comparison
        line = f"since {comparison.name} ({comparison.commit[:10]}), {comparison.files} files: "
        if comparison.everything:
            line += f"every cell runs: {comparison.everything}"
        else:
            line += f"{self.left_out} cells left out, which are as they were"
        terminalreporter.write_line(line)


def _options(config: pytest.Config, target: str, device: str) -> list[object]:
    """Return the settings of a run that change what a cell does."""
    option = config.option
    return options_of(target, device, option.cell_timeout, option.pythonwarnings, option.runxfail)


def options_of(
    target: str,
    device: str,
    limit: float | None,
    filters: Sequence[str] | None = None,
    runxfail: bool = False,
) -> list[object]:
    """Return the settings of a run that change what a cell does, as :func:`compare` takes them."""
    return [target, device, limit, list(filters or ()), bool(runxfail)]


def _may_compile(files: Iterable[str]) -> bool:
    """Return whether a compiler is among the files whose functions have run: it reads functions
    that it does not call.
    """
    from gen.torch_private.compilers import frame_compiler

    folders = tuple(f"{os.sep}{name}{os.sep}" for name in COMPILERS)
    return any(
        file == frame_compiler or any(folder in file for folder in folders) for file in files
    )


@cache
def _has_tables(path: str) -> bool:
    """Return whether a path is that of a generated module or of the folder of such modules."""
    if path.endswith(".py"):
        return is_generated(Path(path))
    return any(map(is_generated, Path(path).glob("test_*.py")))


def _import(name: str) -> None:
    """Import a module of torch that the process of each cell would have to import."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(name)


def _packed(data: tuple[object, ...]) -> str:
    return b85encode(zlib.compress(json.dumps(data).encode(), 1)).decode()


def _unpacked(text: str) -> Any:
    return json.loads(zlib.decompress(b85decode(text)))


def definition_of(item: pytest.Item, cell: Cell) -> str:
    """Return a digest of what the tables say of the cell of an item."""
    assert isinstance(item, pytest.Function)
    cells = cells_of(item.function)
    assert cells is not None
    return definition(family_of_table(item.module), cells, cell, item.function)
