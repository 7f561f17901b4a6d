"""Hold what one run of the matrix is: its settings, its target, and what takes part in it.

The plug-in makes one :class:`Run` from the options of pytest, and each hook finds it by
``config.stash[RUN]``.
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gen.checks.entries import Settings
from gen.checks.tables import Cell, cells_of
from gen.language.backend_levels import TIER_OF_LEVELS
from gen.run.cell_items import family_of
from gen.run.earlier_results import Resumed
from gen.run.environment import environment
from gen.run.execution import Runner
from gen.run.isolation import POSSIBLE
from gen.run.progress import Progress
from gen.run.recorder import Recorder
from gen.run.requirements import require_target
from gen.run.results import LAST, default_path
from gen.run.rules_run import RulesRun
from gen.run.run_cell import limit_of
from gen.run.run_options import baseline_asked_for, narrowing, severity_asked_for
from gen.run.selection.level_run import LevelRun, level_run_asked_for
from gen.run.selection.shard import Shard
from gen.run.selection.shard_plugin import Sharding
from gen.run.selection.since_plugin import Since
from gen.targets import built_in

if TYPE_CHECKING:
    from gen.run.dispatcher_calls import DispatcherCalls
    from gen.targets.protocol import Target

__all__ = ["RUN", "Run", "is_in_process", "recorder_of", "run_asked_for", "since_asked_for"]


@dataclass
class Run:
    """The settings of this run, and the target once a cell has asked for it."""

    settings: Settings
    tier: str
    # the number of the one sample to run, or None
    sample: int | None
    all_samples: bool
    shard: Shard
    results: Path
    # the options that leave out cells, as text; empty if the run has all of its tier
    narrowed: str
    # seconds that a cell may take, whatever the matrix says
    timeout: float | None
    # which cells belong to this process, if the run is divided
    sharding: Sharding | None = None
    # runs the cells in processes of their own
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
            # before any cell runs, so that no rule is missed
            if self.rules is not None:
                self.rules.watch(self.settings.target, self._target)
        return self._target

    def limit(self, item: pytest.Function, cell: Cell) -> float | None:
        """Return the seconds that a cell may take; None if there is no limit."""
        cells = cells_of(item.function)
        assert cells is not None
        return limit_of(family_of(item.module), cell, cells, self.timeout)

    def _samples(self) -> str | int:
        """Return the choice of samples: all, the usual ones, or the one with a number."""
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


RUN = pytest.StashKey[Run]()
"""Where the configuration of pytest has the run."""


def run_asked_for(config: pytest.Config, shard: Shard, default_target: str) -> Run:
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
    """Return the counter of the dispatcher's calls, or None if the run counts none."""
    if option.overloads is None:
        return None
    from gen.run.dispatcher_calls import DispatcherCalls  # it needs torch

    return DispatcherCalls(option.overloads)


def since_asked_for(config: pytest.Config, run: Run) -> Since:
    """Return what leaves out cells. It notes what cells depend on, where each may have a process
    of its own and runs as it does in every other run.
    """
    option = config.option
    since = Since(config, option.since, run.settings.target, run.settings.device)
    is_usual = run.sample is None and not (run.all_samples or run.rules or run.calls)
    # functions of a backward pass on a GPU run in threads that no hook sees
    is_visible = run.settings.device in ("cpu", "meta")
    if POSSIBLE and is_usual and is_visible and not is_in_process(config):
        since.begin()
    return since


def recorder_of(config: pytest.Config, run: Run) -> Recorder:
    """Return the recorder of the results. Only one process of a run has it, and no worker."""
    target = run.settings.target
    if not built_in(target) or run.rules is not None:
        # what does not load stops the run here, whether or not workers are to run it
        require_target(run.target, target, here=is_in_process(config))
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


def is_in_process(config: pytest.Config) -> bool:
    """Return whether cells run in pytest's own process, as a debugger needs it."""
    return bool(config.option.in_process or config.option.usepdb or config.option.trace)
