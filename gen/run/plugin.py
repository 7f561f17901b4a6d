"""Run the matrix under pytest: this plug-in has its options, chooses cells, runs them and reports
them.

It is loaded with `-p gen.run.plugin`, for tests outside of the matrix too. So torch and the target
are imported only when the first cell needs them. The hooks stand in the order in which pytest calls
them.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gen.checks.entries import Known
from gen.checks.tables import TIERS, Cell, Cells, TableError, cells_of
from gen.devices.device import declare
from gen.run.cell_items import cell_of, family_of, is_without_cells, module_of
from gen.run.earlier_results import Resumed
from gen.run.execution import Ran, Runner, Watch
from gen.run.failure_report import CellFailed, fail_cell
from gen.run.matrix_run import (
    RUN,
    Run,
    is_in_process,
    recorder_of,
    run_asked_for,
    since_asked_for,
)
from gen.run.project_defaults import declared, devices_of
from gen.run.recorder import FACTS, RECORDER
from gen.run.requirements import require_device, require_place, why_absent
from gen.run.run_cell import active_entries, facts, lost, outcome_facts, run_cell
from gen.run.run_options import add_options, require_valid_options, selection, shard_asked_for
from gen.run.selection.shard_plugin import NO_LARGEST_TIER, Sharding
from gen.targets import built_in
from gen.targets import declare as declare_targets

if TYPE_CHECKING:
    from gen.run.verdict import Verdict

_ACTIVE = pytest.StashKey[Mapping[str, Known]]()
"""Where an item has the known entries of its cell that are active in this run."""


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
    run = run_asked_for(config, shard, project.target)
    config.stash[RUN] = run
    # What cannot work is said now, and not when the first results are there.
    require_place(run.results, option.results)
    if shard[1] > 1:
        run.sharding = Sharding(shard, run.tier, selection(config))
        config.pluginmanager.register(run.sharding, "matrix-sharding")
    device = run.settings.device
    if device != "cpu":
        run.absent = why_absent(project, device, here=is_in_process(config))
        if not run.absent:
            require_device(device, here=is_in_process(config))
    if option.resume:
        run.resumed = Resumed(config, run.results, run.header())
        config.pluginmanager.register(run.resumed, "matrix-resume")
    if option.since is not None:
        run.since = since_asked_for(config, run)
        config.pluginmanager.register(run.since, "matrix-since")
    # Workers of pytest-xdist send their results to the process that has started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(recorder_of(config, run), RECORDER)
    if run.levels is not None:
        config.pluginmanager.register(run.levels, "matrix-levels")


def pytest_report_header(config: pytest.Config) -> str:
    """Return the settings of the run as a line of pytest's header."""
    run = config.stash[RUN]
    shown = run.header() | {"results": _relative(run.results, config.rootpath)}
    return "matrix: " + " · ".join(f"{key} {value}" for key, value in shown.items())


def _relative(path: Path, root: Path) -> Path:
    """Return a path as a line of the header shows it, short if it lies below the root."""
    return path.relative_to(root) if path.is_relative_to(root) else path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the tests of a check: one for each of its cells at the tier."""
    cells = cells_of(metafunc.function)
    if cells is None:
        return
    run = metafunc.config.stash[RUN]
    family = family_of(metafunc.module)
    # A mistake of a table is not one of this file, whose traceback would only hide it.
    try:
        if run.sharding is None:
            chosen = list(cells.at(run.tier))
        else:
            chosen = run.sharding.cells(metafunc.module, metafunc.function.__name__)
        if run.levels is not None:
            chosen = run.levels.chosen(metafunc.function.__name__, chosen)
        # One shard runs them, so that merged results have them once.
        if run.shard[0] == 1:
            at_tier = {cell.id for cell in cells.at(run.tier)}
            chosen = [*chosen, *_cells_by_id(metafunc, cells, at_tier)]
        # a mistake in the entries of a cell stops the collection here, not the cell
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
    # in place: pytest goes on with the list that it has passed
    items[:] = filterfalse(is_without_cells, items)
    run = config.stash[RUN]
    if run.sharding is not None:
        items[:] = [
            item for item in items if cell_of(item) is not None or run.sharding.has_others(item)
        ]
    for chooser in (run.resumed, run.since):
        if chooser is not None:
            items[:], left_out = chooser.chosen(items)
            config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load before the first cell what cells need. The collector need not look at any of it again:
    it stays until the end."""
    run = session.config.stash[RUN]
    cells = filter(None, map(cell_of, session.items))
    tiers = {cell.tier for cell in cells}
    is_whole_run = run.sharding is None and run.tier == TIERS[-1]
    if is_whole_run and tiers and TIERS[-1] not in tiers:
        raise pytest.UsageError(NO_LARGEST_TIER)
    if session.config.option.collectonly:
        return
    here = is_in_process(session.config)
    run.runner = Runner(session.items, _run_here, here=here)
    # Forked workers of a cell have what this process has loaded.
    if here or run.settings.device in ("cpu", "meta"):
        with nullcontext() if run.since is None else run.since.loading():
            _load(session.items, run, here)
    # what is garbage now would stay for ever
    gc.collect()
    # Collections of the forked workers would touch, and so copy, the parent's pages.
    gc.freeze()


def _load(items: Sequence[pytest.Item], run: Run, here: bool) -> None:
    """Load torch, the target and OpInfo's database, so that no cell's time includes the loading.

    On other devices than the CPU, the workers load them: a process may not be forked once
    it has used a GPU.
    """
    pairs = [(item, cell_of(item)) for item in items]
    cells = [(item, cell) for item, cell in pairs if cell is not None]
    if cells:
        import torch

        # `verdict` is imported for what it imports: all that running a cell needs
        from gen.checks.memory_access import warm
        from gen.run import verdict  # noqa: F401
        from gen.samples import opinfo

        torch.set_num_threads(1)
        if here or built_in(run.settings.target):
            run.target()
            if any(cell.alone for _, cell in cells):
                warm(run.target())
        opinfo.preload(
            (cell.op, family_of(module_of(item)).ops.get(cell.op, {})) for item, cell in cells
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Attach the facts of the cell before anything can fail. The outcome is filled in later."""
    cell = cell_of(item)
    if cell is None:
        return
    assert isinstance(item, pytest.Function)
    family = family_of(item.module)
    entries = item.stash[_ACTIVE] = _entries(item, cell)
    described = facts(family, cell, item.originalname.removeprefix("test_"), entries)
    item.user_properties.append((FACTS, described))


def _entries(item: pytest.Function, cell: Cell) -> dict[str, Known]:
    """Return the known entries of a cell that are active in this run. With --runxfail no failure is
    expected."""
    settings, shown = item.config.stash[RUN].settings, item.config.option.runxfail
    entries = active_entries(family_of(item.module), cell, settings)
    return {name: entry for name, entry in entries.items() if not (shown and entry.kind == "xfail")}


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Cell:
    """Return the cell. The check gets a Case of it, which is made where the cell runs."""
    cell: Cell = request.param
    return cell


def _run_here(item: pytest.Function, watch: Watch | None) -> Ran:
    """Run one cell in this process."""
    run, cell = item.config.stash[RUN], cell_of(item)
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
    # Only the report of the first error shows them.
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
    cell = cell_of(pyfuncitem)
    if cell is None:
        return None
    run = pyfuncitem.config.stash[RUN]
    if run.absent:
        pytest.skip(run.absent)
    assert run.runner is not None
    ran = _ran_apart(pyfuncitem, cell, run, run.runner)
    verdict = ran.verdict
    # The report has this dictionary already, so the outcome is filled into it.
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
            fail_cell(pyfuncitem, ran)
    return True


def _ran_apart(item: pytest.Function, cell: Cell, run: Run, runner: Runner) -> Ran:
    """Run a cell, in another process if possible, and return its outcome."""
    alone = cell.alone or (run.since is not None and run.since.notes)
    ran = runner.run(item, run.limit(item, cell), alone=alone)
    if not isinstance(ran, Ran):
        ran = lost(item.stash[_ACTIVE], *ran)
    if run.since is not None:
        run.since.keep(item, ran)
    return ran


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show of a failed cell its report alone, without a traceback of the plug-in."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, CellFailed):
        report.longrepr = str(call.excinfo.value)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the worker of the run."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    if run.runner is not None:
        run.runner.close()
    if run.since is not None:
        run.since.end()
