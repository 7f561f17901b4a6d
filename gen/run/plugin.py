"""Run the matrix under pytest: this plug-in has its options, chooses cells, runs them and reports
them.

It is loaded with `-p gen.run.plugin`, for tests outside of the matrix too. So torch and the target
are imported only when the first cell needs them.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import re
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from gen.checks.entries import Known, Settings
from gen.checks.tables import TIERS, Cell, Cells, Family, TableError, cells_of
from gen.devices.device import declare
from gen.language.backend_levels import TIER_OF_LEVELS
from gen.run.earlier_results import Resumed
from gen.run.environment import environment
from gen.run.execution import Ran, Runner, Watch, told
from gen.run.isolation import POSSIBLE
from gen.run.level_run import LevelRun, level_run_asked_for
from gen.run.progress import Progress
from gen.run.project_defaults import declared, devices_of
from gen.run.recorder import FACTS, RECORDER, Recorder
from gen.run.requirements import require_device, require_place, require_target, why_absent
from gen.run.results import LAST, default_path
from gen.run.rules_run import RulesRun
from gen.run.run_cell import active_entries, facts, limit_of, lost, outcome_facts, run_cell
from gen.run.run_options import (
    add_options,
    baseline_asked_for,
    narrowing,
    require_valid_options,
    selection,
    severity_asked_for,
    shard_asked_for,
)
from gen.run.shard import Shard
from gen.run.shard_plugin import NO_LARGEST_TIER, Sharding
from gen.run.since_plugin import Since
from gen.targets import built_in
from gen.targets import declare as declare_targets

if TYPE_CHECKING:
    from gen.checks.case import SampleFailure
    from gen.run.dispatcher_calls import DispatcherCalls
    from gen.run.verdict import Verdict
    from gen.targets.protocol import Target

__all__ = ["Run", "family_of"]


@dataclass
class Run:
    """The settings of this run, and the target once a cell has asked for it."""

    settings: Settings
    tier: str
    sample: int | None
    all_samples: bool
    shard: Shard
    results: Path
    narrowed: str
    timeout: float | None
    sharding: Sharding | None = None
    runner: Runner | None = None
    absent: str = ""
    """Why the device is not available: every cell is then skipped."""
    rules: RulesRun | None = None
    """What notes the rules that cells run, if the run is asked to."""
    calls: DispatcherCalls | None = None
    """What counts the calls of the dispatcher, if the run is asked to."""
    resumed: Resumed | None = None
    """The run with which this one goes on, if it is asked to."""
    levels: LevelRun | None = None
    """What chooses the cells of levels, if the run is asked to."""
    since: Since | None = None
    """What leaves out the cells that a change cannot affect, if the run is asked to."""
    _target: Target | None = None

    def target(self) -> Target:
        """Return the target, which is loaded at the first call. Raises UsageError for an unknown
        name.
        """
        if self._target is None:
            from gen.targets import load

            try:
                self._target = load(self.settings.target)
            except LookupError as error:
                raise pytest.UsageError(f"--target: {error.args[0]}") from error
            if self.rules is not None:
                self.rules.watch(self.settings.target, self._target)
        return self._target

    def limit(self, item: pytest.Function, cell: Cell) -> float | None:
        """Return the seconds that a cell may take; None if there is no limit."""
        cells = cells_of(item.function)
        assert cells is not None
        return limit_of(family_of(item.module), cell, cells, self.timeout)

    def _samples(self) -> str | int:
        """Return which samples of a cell run: all, the usual ones, or the one of a number."""
        if self.all_samples:
            return "all"
        return "usual" if self.sample is None else self.sample

    def header(self) -> dict[str, object]:
        """Return the description of the run, for the results file and the terminal."""
        return {
            "target": self.settings.target,
            "device": self.settings.device,
            "tier": self.tier,
            **environment(self.settings),
            "seed": "of the case's id",
            "sample": self._samples(),
            "shard": "{}/{}".format(*self.shard),
            "narrowed": self.narrowed or "no",
            "date": self.settings.today.isoformat(),
        }


_run = pytest.StashKey[Run]()
_active = pytest.StashKey[Mapping[str, Known]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the matrix to pytest."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and register what a run with them needs."""
    option = config.option
    shard = shard_asked_for(option)
    require_valid_options(option)
    project = declared(config.rootpath)
    declare(devices_of(project, option.device, option.backend))
    declare_targets(project.imports)
    run = _run_asked_for(config, shard, project.target)
    config.stash[_run] = run
    # What cannot work is said now, and not when the first results are there.
    require_place(run.results, option.results)
    if shard[1] > 1:
        run.sharding = Sharding(shard, run.tier, selection(config))
        config.pluginmanager.register(run.sharding, "matrix-sharding")
    device = run.settings.device
    if device != "cpu":
        run.absent = why_absent(project, device, here=_in_process(config))
        if not run.absent:
            require_device(device, here=_in_process(config))
    if option.resume:
        run.resumed = Resumed(config, run.results, run.header())
        config.pluginmanager.register(run.resumed, "matrix-resume")
    if option.since is not None:
        run.since = _since_asked_for(config, run)
        config.pluginmanager.register(run.since, "matrix-since")
    # Workers of pytest-xdist send their results to the process that has started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_recorder_of(config, run), RECORDER)
    if run.levels is not None:
        config.pluginmanager.register(run.levels, "matrix-levels")


def _since_asked_for(config: pytest.Config, run: Run) -> Since:
    """Return what leaves out cells. It notes what cells depend on, where each may have a process
    of its own and runs as it does in every other run.
    """
    option = config.option
    since = Since(config, option.since, run.settings.target, run.settings.device)
    is_usual = run.sample is None and not (run.all_samples or run.rules or run.calls)
    # functions of a backward pass on a GPU run in threads that no hook sees
    is_visible = run.settings.device in ("cpu", "meta")
    if POSSIBLE and is_usual and is_visible and not _in_process(config):
        since.begin()
    return since


def _run_asked_for(config: pytest.Config, shard: Shard, default_target: str) -> Run:
    """Return the run that the options describe. Its results have a name of their own if it is a
    part.
    """
    option = config.option
    settings = Settings(
        option.target or default_target, option.device, version("torch"), datetime.date.today()
    )
    levels = level_run_asked_for(config.rootpath, option.level)
    narrowed = narrowing(config)
    part = "part" if narrowed else ""
    if shard[1] > 1:
        part = "{}of{}".format(*shard)
    results = option.results or default_path(settings.target, settings.device, part)
    return Run(
        settings=settings,
        tier=option.tier if levels is None else TIER_OF_LEVELS,
        levels=levels,
        sample=option.sample,
        all_samples=option.all_samples,
        shard=shard,
        results=config.rootpath / results,
        narrowed=narrowed,
        timeout=option.cell_timeout,
        rules=RulesRun() if option.rules else None,
        calls=_counter_asked_for(option),
    )


def _counter_asked_for(option: argparse.Namespace) -> DispatcherCalls | None:
    """Return what counts the calls of the dispatcher, if the run is to."""
    if option.overloads is None:
        return None
    from gen.run.dispatcher_calls import DispatcherCalls  # it needs torch

    return DispatcherCalls(option.overloads)


def _recorder_of(config: pytest.Config, run: Run) -> Recorder:
    """Return what writes the results. Only one process of a run has it, workers have not."""
    target = run.settings.target
    if not built_in(target) or run.rules is not None:
        # what does not load stops the run here, whether or not workers are to run it
        require_target(run.target, target, here=_in_process(config))
    header = run.header()
    if run.rules is not None:
        header |= {"rules": RulesRun.of(target, run.target())}
    progress = Progress(config, config.option.progress)
    config.pluginmanager.register(progress, "matrix-progress")
    return Recorder(
        run.results,
        header,
        run.sharding,
        last=config.rootpath / LAST,
        whole=not run.narrowed and run.shard[1] == 1,
        fail_on=severity_asked_for(config.option),
        earlier=() if run.resumed is None else run.resumed.cells,
        baseline=baseline_asked_for(config),
        progress=progress,
    )


def _in_process(config: pytest.Config) -> bool:
    """Return whether cells run in pytest's own process, as a debugger needs it."""
    return bool(config.option.in_process or config.option.usepdb or config.option.trace)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the worker of the run."""
    run = config.stash.get(_run, None)
    if run is None:
        return
    if run.runner is not None:
        run.runner.close()
    if run.since is not None:
        run.since.end()


def pytest_report_header(config: pytest.Config) -> str:
    """Return the settings of the run as a line of pytest's header."""
    run = config.stash[_run]
    shown = run.header() | {"results": _relative(run.results, config.rootpath)}
    return "matrix: " + " · ".join(f"{key} {value}" for key, value in shown.items())


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


def family_of(module: Any) -> Family:
    """Return the table of a generated module. A module without a table is a family with its file's
    name."""
    table = getattr(module, "FAMILY", None)
    if isinstance(table, Family):
        return table
    return Family(module.__name__.rpartition(".")[2].removeprefix("test_"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the tests of a check: one for each of its cells at the tier."""
    cells = cells_of(metafunc.function)
    if cells is None:
        return
    run = metafunc.config.stash[_run]
    family = family_of(metafunc.module)
    try:
        if run.sharding is None:
            chosen = list(cells.at(run.tier))
        else:
            chosen = run.sharding.cells(metafunc.module, metafunc.function.__name__)
        if run.levels is not None:
            chosen = run.levels.chosen(metafunc.function.__name__, chosen)
        # One shard runs them, so that merged results have them once.
        if run.shard[0] == 1:
            chosen = [
                *chosen,
                *_cells_by_id(metafunc, cells, {cell.id for cell in cells.at(run.tier)}),
            ]
        for cell in chosen:
            family.entries(cell)
    except TableError as error:
        pytest.fail(str(error), pytrace=False)
    # A function without a cell at this tier is left out. Otherwise pytest would
    # report a skipped test.
    metafunc.parametrize("case", chosen, ids=[cell.id for cell in chosen], indirect=True)


def _cells_by_id(metafunc: pytest.Metafunc, cells: Cells, chosen: set[str]) -> list[Cell]:
    """Return the cells that the command line names and the tier does not have, such as those that
    reduction drops.
    """
    cells_by_id = []
    for argument in map(str, metafunc.config.args):
        path, _, node = argument.partition("::")
        name, _, case = node.partition("[")
        is_this_check = (
            name == metafunc.function.__name__
            and Path(path).name == Path(metafunc.module.__file__ or "").name
        )
        identifier = case.removesuffix("]")
        if not is_this_check or identifier == case or identifier in chosen:
            continue
        cell = cells.named(identifier)
        if cell is not None:
            cells_by_id.append(cell)
    return cells_by_id


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove checks without a cell at the tier, and tests that other shards run."""
    items[:] = filterfalse(_is_empty, items)
    run = config.stash[_run]
    if run.sharding is not None:
        items[:] = [
            item for item in items if _cell(item) is not None or run.sharding.has_others(item)
        ]
    for chooser in (run.resumed, run.since):
        if chooser is not None:
            items[:], left_out = chooser.chosen(items)
            config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load before the first cell what cells need. The collector need not look at any of it again:
    it stays until the end."""
    run = session.config.stash[_run]
    cells = filter(None, map(_cell, session.items))
    tiers = {cell.tier for cell in cells}
    is_whole_run = run.sharding is None and run.tier == TIERS[-1]
    if is_whole_run and tiers and TIERS[-1] not in tiers:
        raise pytest.UsageError(NO_LARGEST_TIER)
    if session.config.option.collectonly:
        return
    here = _in_process(session.config)
    run.runner = Runner(session.items, _run_here, here=here)
    if here or run.settings.device in ("cpu", "meta"):
        with nullcontext() if run.since is None else run.since.loading():
            _load(session.items, run, here)
    gc.collect()
    # Collections of the forked workers would touch, and so copy, the parent's pages.
    gc.freeze()


def _load(items: Sequence[pytest.Item], run: Run, here: bool) -> None:
    """Load torch, the target and OpInfo's database, so that no cell's time includes the loading.

    On other devices than the CPU, the workers load them: a process may not be forked once
    it has used a GPU.
    """
    pairs = [(item, _cell(item)) for item in items]
    cells = [(item, cell) for item, cell in pairs if cell is not None]
    if cells:
        import torch

        # it imports what running a cell needs
        from gen.checks.memory_access import warm
        from gen.run import verdict  # noqa: F401
        from gen.samples import opinfo

        torch.set_num_threads(1)
        if here or built_in(run.settings.target):
            run.target()
            if any(cell.alone for _, cell in cells):
                warm(run.target())
        opinfo.preload(
            (cell.op, family_of(_module(item)).ops.get(cell.op, {})) for item, cell in cells
        )


def _module(item: pytest.Item) -> Any:
    module = item.getparent(pytest.Module)
    assert module is not None
    return module.obj


def _is_empty(item: pytest.Item) -> bool:
    """Return whether pytest made this item for a check without a cell at the tier."""
    spec = getattr(item, "callspec", None)
    return (
        spec is not None
        and cells_of(getattr(item, "function", None)) is not None
        and not isinstance(spec.params.get("case"), Cell)
    )


def _cell(item: pytest.Item) -> Cell | None:
    spec = getattr(item, "callspec", None)
    case = spec.params.get("case") if spec is not None else None
    return case if isinstance(case, Cell) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Attach the facts of the cell before anything can fail. The outcome is filled in later."""
    cell = _cell(item)
    if cell is None:
        return
    assert isinstance(item, pytest.Function)
    family = family_of(item.module)
    entries = item.stash[_active] = _entries(item, cell)
    described = facts(family, cell, item.originalname.removeprefix("test_"), entries)
    item.user_properties.append((FACTS, described))


def _entries(item: pytest.Function, cell: Cell) -> dict[str, Known]:
    """Return the known entries of a cell that are active in this run. With --runxfail no failure is
    expected."""
    settings, shown = item.config.stash[_run].settings, item.config.option.runxfail
    entries = active_entries(family_of(item.module), cell, settings)
    return {name: entry for name, entry in entries.items() if not (shown and entry.kind == "xfail")}


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Cell:
    """Return the cell. The check gets a Case of it, which is made where the cell runs."""
    cell: Cell = request.param
    return cell


def _run_here(item: pytest.Function, watch: Watch | None) -> Ran:
    """Run one cell in this process."""
    run, cell = item.config.stash[_run], _cell(item)
    assert cell is not None
    with nullcontext() if run.since is None else run.since.running():
        ran = _run_cell(item, cell, run, watch)
    if run.since is not None and run.since.notes:
        ran = replace(ran, trace=run.since.noted(item, cell))
    if ran.verdict.failed:
        ran = replace(ran, elsewhere=_entries_elsewhere(item, ran.verdict))
    return ran


def _run_cell(item: pytest.Function, cell: Cell, run: Run, watch: Watch | None) -> Ran:
    """Run one cell by the settings of the run."""
    return run_cell(
        item.obj,
        cell,
        item.originalname.removeprefix("test_"),
        family_of(item.module),
        run.target(),
        _entries(item, cell),
        run.settings,
        sample=run.sample,
        all_samples=run.all_samples,
        watch=watch,
        rules=run.rules,
        calls=run.calls,
    )


def _entries_elsewhere(item: pytest.Function, verdict: Verdict) -> tuple[str, ...]:
    """Return the entries of other cells of this session that expect the first error.

    They have perhaps the same cause, or are perhaps too narrow.
    """
    errors = [failure.error for failure in verdict.failures[:1]]
    modules = dict.fromkeys(getattr(other, "module", None) for other in item.session.items)
    modules.pop(None, None)  # a test outside of modules
    names: dict[Known, str] = {}
    for family in map(family_of, modules):
        for name, entry in family.known.items():
            if entry.kind == "xfail" and any(map(entry.expects, errors)):
                names.setdefault(entry, name)
    return tuple(dict.fromkeys(names.values()))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run one cell and report its verdict to pytest. pytest runs other tests itself."""
    __tracebackhide__ = True
    cell = _cell(pyfuncitem)
    if cell is None:
        return None
    run = pyfuncitem.config.stash[_run]
    if run.absent:
        pytest.skip(run.absent)
    assert run.runner is not None
    ran = _ran_apart(pyfuncitem, cell, run, run.runner)
    verdict = ran.verdict
    described: dict[str, Any] = dict(pyfuncitem.user_properties)[FACTS]  # type: ignore[assignment]
    described.update(outcome_facts(ran, described["family"]))
    match verdict.outcome:
        case "lacking" | "not covered":
            pytest.skip(f"{verdict.outcome}: {verdict.why}")
        case "skipped":
            pytest.skip(verdict.why)
        case "xfailed":
            pytest.xfail(verdict.why)
        case "crashed" | "timed out" | "failed" | "vacuous" | "xpassed":
            _show(pyfuncitem, ran)
    return True


def _ran_apart(item: pytest.Function, cell: Cell, run: Run, runner: Runner) -> Ran:
    """Return what a cell came to, which runs in another process where that is possible."""
    alone = cell.alone or (run.since is not None and run.since.notes)
    ran = runner.run(item, run.limit(item, cell), alone=alone)
    if not isinstance(ran, Ran):
        ran = lost(item.stash[_active], *ran)
    if run.since is not None:
        run.since.keep(item, ran)
    return ran


class CellFailed(Exception):
    """An error whose text is the report. Its traceback is not shown."""


def _show(item: pytest.Function, ran: Ran) -> NoReturn:
    """Fail the cell, with one report for each distinct error."""
    __tracebackhide__ = True
    verdict = ran.verdict
    failures_by_error: dict[str, list[SampleFailure]] = {}
    for failure in verdict.failures:
        failures_by_error.setdefault(_without_numbers(told(failure.error)), []).append(failure)
    if not failures_by_error:
        raise CellFailed(f"{_title(item)}: {verdict.why}\nreproduce: {_command(item, None)}")
    # Samples that fail alike are one report, so that a second kind of failure is seen. Of the first
    # error, the process of the cell has found out more.
    groups = list(failures_by_error.values())
    parts = [
        _report(item, group, verdict, None if place else ran)
        for place, group in enumerate(groups[:_SHOWN])
    ]
    if len(groups) > _SHOWN:
        parts.append(f"and {len(groups) - _SHOWN} more errors of other kinds")
    raise CellFailed("\n\n".join(parts)) from groups[0][0].error


_SHOWN = 4  # distinct errors of a cell
_LISTED = 3  # entries of other cells


def _without_numbers(text: str) -> str:
    """Return a message with "#" for each number and list, so that errors that differ in numbers
    count as one.
    """
    return re.sub(r"-?\d[\d.e+-]*|\[[^\]]*\]|\b(?:nan|inf)\b", "#", text)


def _report(
    item: pytest.Function,
    alike: Sequence[SampleFailure],
    verdict: Verdict,
    first: Ran | None = None,
) -> str:
    """Return the report of samples that fail alike.

    `first`: what the cell came to, of whose first error more is known.
    """
    failure, others = alike[0], [str(other.sample) for other in alike[1:]]
    title = _title(item)
    if failure.sample is not None:
        title += f", sample {failure.sample}"
        if failure.description:
            title += f" {failure.description}"
    lines = [title]
    if verdict.why.startswith("expected "):
        lines.append(verdict.why)
    lines.append(told(failure.error))
    if others:
        lines.append(f"fails alike: sample{'s' * (len(others) > 1)} {', '.join(others)}")
    if first is not None and first.elsewhere:
        lines.append(_known_elsewhere(first.elsewhere))
    lines.append(f"reproduce: {_command(item, failure.sample)}")
    if first is not None and first.program:
        lines += ["as a program:", first.program]
    return "\n".join(lines)


def _known_elsewhere(entries: Sequence[str]) -> str:
    """Say how many entries of other cells match a message, and name some."""
    names = ", ".join(entries[:_LISTED])
    if len(entries) > _LISTED:
        names += ", …"
    match = "entries match" if len(entries) > 1 else "entry matches"
    return f"known elsewhere: {len(entries)} {match} this message ({names})"


def _title(item: pytest.Function) -> str:
    """Return the cell, its check, its target and its device as text."""
    run = item.config.stash[_run]
    cell = _cell(item)
    assert cell is not None
    return (
        f"{cell.id} under {item.originalname.removeprefix('test_')}, "
        f"target {run.settings.target} on {run.settings.device}"
    )


def _command(item: pytest.Function, sample: int | None) -> str:
    """Return the command that reruns this cell or sample."""
    run = item.config.stash[_run]
    words = ["pytest", shlex.quote(item.nodeid), "--target", shlex.quote(run.settings.target)]
    if run.settings.device != "cpu":
        words += ["--device", shlex.quote(run.settings.device)]
    words += ["--tier", "full"]
    if sample is not None:
        words += ["--sample", str(sample)]
    return " ".join(words)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show of a failed cell its report alone, without a traceback of the plug-in."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, CellFailed):
        report.longrepr = str(call.excinfo.value)
    return report
