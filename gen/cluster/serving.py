"""Serve a worker as the process that runs cells: `python -m gen.cluster.serving FD`, where FD is
its end of a pipe.

It loads torch and the target once, then runs groups, each cell in a fork. It lives apart from the
worker, so that a cell that keeps the interpreter's lock cannot keep the worker from its heartbeat,
and it ends when the worker does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from gen.checks.tables import Cell, Family, cells_of
from gen.cluster.job import Group, Job, differences, versions
from gen.devices.device import declare, load_device
from gen.outcomes import Crashed
from gen.run import run_cell
from gen.run.execution import Ran, Watch
from gen.run.inventory import find, imported
from gen.run.isolation import Worker
from gen.run.project_defaults import declared
from gen.run.results import CellResult, line_of
from gen.run.rules_run import RulesRun
from gen.targets import built_in, load
from gen.targets import declare as declare_targets

if TYPE_CHECKING:  # which imports torch
    from gen.targets.protocol import Target

__all__ = ["main"]

_OUTCOMES = {
    pytest.skip.Exception: "skipped",
    pytest.xfail.Exception: "xfailed",
    pytest.fail.Exception: "failed",
}


class Server:
    """Run the cells of one job."""

    def __init__(self, job: Job, root: Path) -> None:
        self._job = job
        self._root = root
        self._settings = job.settings()
        project = declared(root)
        declare(project.devices)
        declare_targets(project.imports)
        self._modules: dict[str, ModuleType] = {}
        self._entries_sent: set[str] = set()  # names of the entries that the worker knows of
        self._worker = Worker(self._serve)
        self._rules = RulesRun() if job.rules else None
        self._filters = list(map(_filter_of, job.filters))

    def load(self) -> None:
        """Load what forks share.

        A process may not be forked once it has used a GPU, nor with a library of another package in
        it.
        """
        if self._job.device not in ("cpu", "meta"):
            Worker(load_device).ask(self._job.device, None)
            return
        import torch

        from gen.checks import case  # noqa: F401  # what running a cell needs
        from gen.run import verdict  # noqa: F401  # what running a cell needs

        torch.set_num_threads(1)
        if built_in(self._job.target):
            _ = self._target

    @cached_property
    def _target(self) -> Target:
        """Return the target, whose rules are noted if the job asks for it.

        One of another package is loaded in the fork alone.
        """
        target = load(self._job.target)
        if self._rules is not None:
            self._rules.watch(self._job.target, target)
        return target

    def run(
        self, module: str, function: str, cell: Cell
    ) -> tuple[str, str, list[str], dict[str, str]]:
        """Return the outcome of a cell, its line of the results file, the entries that happened,
        and the active ones that no earlier answer had.
        """
        loaded = self._module(module)
        test = getattr(loaded, function)
        family = _family_of(loaded, module)
        check = function.removeprefix("test_")
        entries = run_cell.active_entries(family, cell, self._settings)
        facts = run_cell.facts(family, cell, check, entries)
        cells = cells_of(test)
        assert cells is not None
        if self._job.device in ("cpu", "meta"):
            from gen.samples import opinfo

            # torch's database takes seconds to import, which each fork would do by itself.

            opinfo.preload([(cell.op, family.ops.get(cell.op, {}))])
        # The cell runs in a fork. If that dies, its last note says which sample it ran.
        begin = time.perf_counter()
        try:
            came = self._worker.ask(
                (module, function, cell),
                run_cell.limit_of(family, cell, cells, self._job.limit),
                alone=cell.alone,
            )
        except Crashed as error:
            sample, _, description = self._worker.noted().partition(" ")
            came = run_cell.lost(entries, int(sample) if sample else None, description, error)
        if isinstance(came, Ran):
            facts |= run_cell.outcome_facts(came, family.name)
        else:
            facts |= dict(zip(("outcome", "why"), came, strict=True))
        new_entries = {
            name: where
            for name, where in facts.pop("ledger").items()
            if name not in self._entries_sent
        }
        self._entries_sent.update(new_entries)
        seconds = round(time.perf_counter() - begin, 5)
        node = f"{module}::{function}[{cell.id}]"
        facts_of_result = facts | {"entries": tuple(facts["entries"])}
        result = CellResult(**facts_of_result, seconds=seconds, node=node)
        return result.outcome, line_of(result), facts["entries"], new_entries

    def _module(self, name: str) -> ModuleType:
        """Return the imported module. The last one stays, for groups come module after module."""
        if name not in self._modules:
            self._modules.clear()
            self._modules[name] = imported(self._root / name)
        return self._modules[name]

    def _serve(self, question: tuple[str, str, Cell]) -> Ran | tuple[str, str]:
        """Return, in the fork, what the cell comes to, or the outcome and the reason of pytest's
        exception that it raised.
        """
        module, function, cell = question
        if self._job.memory is not None:
            _limit_memory(self._job.memory)
        loaded = self._module(module)
        family = _family_of(loaded, module)
        entries = run_cell.active_entries(family, cell, self._settings)
        with warnings.catch_warnings(record=True):
            for add in self._filters:
                add()
            try:
                ran = run_cell.run_cell(
                    getattr(loaded, function),
                    cell,
                    function.removeprefix("test_"),
                    family,
                    self._target,
                    entries,
                    self._settings,
                    watch=Watch(self._worker),
                    explain=False,
                    rules=self._rules,
                )
            except tuple(_OUTCOMES) as raised:
                return _OUTCOMES[type(raised)], str(raised.msg)
        # The answer goes through a pipe, and the exceptions of failures need not be picklable.
        return replace(ran, verdict=replace(ran.verdict, failures=()))


def _family_of(module: object, name: str) -> Family:
    table = getattr(module, "FAMILY", None)
    return table if isinstance(table, Family) else Family(Path(name).stem.removeprefix("test_"))


def _limit_memory(size: int) -> None:
    """Let allocations beyond `size` bytes fail in this process, so that its cell does and no other
    process of the machine.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _filter_of(line: str) -> Callable[[], object]:
    """Return a call that adds the filter of an ini line, as `error::UserWarning:torch`.

    Message and module are regular expressions.
    """
    # A line may have one to five parts. What it leaves out is empty.
    action, message, category, module, number, *_ = [*line.split(":", 4), "", "", "", ""]
    kind: Any = Warning
    if category:
        package, _, name = category.rpartition(".")
        kind = getattr(__import__(package or "builtins", fromlist=[name]), name)
    line_number = int(number or 0)
    # That the action is one of Python's is for the line to say.
    return partial(warnings.filterwarnings, action, message, kind, module, line_number)  # type: ignore[arg-type]


def main(descriptor: int) -> None:
    """Answer a worker until it is gone.

    The first message is a Job and the folder of the modules, every other one a Group.
    """
    # The lifeline ends this process if the worker is killed, without a word through the pipe.
    connection = Connection(descriptor)
    lifeline = connection.recv()
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    job, root = connection.recv()
    wrong = differences(job, find([name for name, _ in job.digests], Path(root)), versions())
    if wrong:
        connection.send("; ".join(wrong))
        return
    # What cannot be loaded is reported once, in the place of the first answer.
    server = Server(job, Path(root))
    try:
        server.load()
    except (RuntimeError, AssertionError, NotImplementedError, LookupError) as error:
        connection.send(f"no {job.device} for {job.target}: {str(error).strip().splitlines()[0]}")
        return
    connection.send(None)
    while True:
        try:
            group: Group = connection.recv()
        except EOFError:
            return
        for function, cell in group.cells:
            connection.send(server.run(group.module, function, cell))


def _end_with(descriptor: int) -> None:
    """End this process when the worker's end of a pipe is closed.

    The fork that runs a cell dies with this process.
    """
    os.read(descriptor, 1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
