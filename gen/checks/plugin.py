"""The pytest plug-in of the matrix: its options, the choice of cells, and how a cell runs and is reported.

It is loaded with `-p gen.checks.plugin`, for tests outside of the matrix too. So torch and the target are imported only when the first
cell needs them.
"""

from __future__ import annotations

import datetime
import shlex
import traceback
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gen.checks.entries import Known, Settings
from gen.checks.recorder import FACTS, Recorder
from gen.checks.results import default_path
from gen.checks.shard import Shard, assign, fingerprint, parse_shard, read_durations
from gen.checks.tables import TIERS, Cell, Family, TableError, cells_of

if TYPE_CHECKING:
    from gen.checks.case import Case, SampleFailure
    from gen.checks.ledger import Verdict
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
    durations: Path
    narrowed: str
    partition: str = ""
    _target: Target | None = None

    def target(self) -> Target:
        if self._target is None:
            from gen.targets import load

            try:
                self._target = load(self.settings.target)
            except LookupError as error:
                raise pytest.UsageError(f"--target: {error.args[0]}") from error
        return self._target

    def header(self) -> dict[str, Any]:
        """The description of the run, for the results file and the terminal."""
        return {
            "target": self.settings.target,
            "device": self.settings.device,
            "tier": self.tier,
            "torch": self.settings.torch,
            "seed": "of the case's id",
            "sample": "all" if self.all_samples else "usual" if self.sample is None else self.sample,
            "shard": "{}/{}".format(*self.shard),
            "narrowed": self.narrowed or "no",
            "date": self.settings.today.isoformat(),
        }


_run = pytest.StashKey[Run]()
_active = pytest.StashKey[Mapping[str, Known]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("matrix", "the matrix of generated tests")
    group.addoption("--target", default="runtime", help="what is tested: runtime (default), torch, or an entry point of matrix.targets")
    group.addoption("--device", default="cpu", help="device of the samples (default cpu); a device that is absent stops the run")
    group.addoption("--tier", choices=TIERS, default="default", help="which cells to take: smoke < default < full")
    group.addoption("--sample", type=int, metavar="N", help="run only sample N of each case (counted from 0)")
    group.addoption("--all-samples", action="store_true", help="run every sample of a case, including those beyond its usual limit")
    group.addoption("--shard", default="1/1", metavar="I/N", help="run part I of N, balanced by recorded durations")
    group.addoption("--results", type=Path, metavar="PATH", help="results file (default .cache/matrix/results-TARGET-DEVICE.jsonl)")


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    try:
        shard = parse_shard(option.shard)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if option.sample is not None and (option.sample < 0 or option.all_samples):
        raise pytest.UsageError("--sample takes one number from 0 up, and not together with --all-samples")
    settings = Settings(option.target, option.device, version("torch"), datetime.date.today())
    narrowed = _narrowed(config)
    part = "{}of{}".format(*shard) if shard[1] > 1 else "part" if narrowed else ""
    root = config.rootpath
    run = Run(
        settings=settings,
        tier=option.tier,
        sample=option.sample,
        all_samples=option.all_samples,
        shard=shard,
        results=root / (option.results or default_path(settings.target, settings.device, part)),
        durations=root / ".cache" / f"durations-{settings.target}-{settings.device.replace(':', '_')}.json",
        narrowed=narrowed,
    )
    config.stash[_run] = run
    if settings.device != "cpu":
        _require_device(settings.device)
    if not hasattr(config, "workerinput"):
        if settings.target != "runtime":
            run.target()  # an unknown target stops the run here, whether or not workers are to run it
        durations = run.durations if shard[1] == 1 and run.sample is None else None
        recorder = Recorder(run.results, run.header(), durations, whole=not narrowed and shard[1] == 1)
        config.pluginmanager.register(recorder, "matrix-recorder")


def _narrowed(config: pytest.Config) -> str:
    """Why this run does not take every cell of its tier, in words; empty if it does."""
    option = config.option
    asked = {
        "-k": option.keyword,
        "-m": option.markexpr,
        "--deselect": option.deselect,
        "--sample": option.sample is not None,
        "--lf": getattr(option, "lf", False),
        "-x": option.maxfail,
        "ids": any("::" in str(arg) for arg in config.args),
    }
    return " ".join(name for name, given in asked.items() if given)


def _require_device(device: str) -> None:
    import torch

    try:
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise pytest.UsageError(f"--device {device}: not present here, nothing was run ({str(error).strip().splitlines()[0]})") from error


def pytest_report_header(config: pytest.Config) -> str:
    run = config.stash[_run]
    shown = run.header() | {"results": _relative(run.results, config.rootpath)}
    return "matrix: " + " · ".join(f"{key} {value}" for key, value in shown.items())


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


def family_of(module: Any) -> Family:
    """The table of a generated module. A module without a table is a family with its file's name."""
    found = getattr(module, "FAMILY", None)
    return found if isinstance(found, Family) else Family(module.__name__.rpartition(".")[2].removeprefix("test_"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cells = cells_of(metafunc.function)
    if cells is None:
        return
    chosen = list(cells.at(metafunc.config.stash[_run].tier))
    family = family_of(metafunc.module)
    try:
        for cell in chosen:
            family.entries(cell)
    except TableError as error:
        pytest.fail(str(error), pytrace=False)
    # A function without a cell at this tier is left out. Otherwise pytest would report a skipped test.
    metafunc.parametrize("case", chosen, ids=[cell.id for cell in chosen], indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _empty(item)]
    run = config.stash[_run]
    if run.shard[1] == 1:
        return
    chosen = assign([item.nodeid for item in items], read_durations(run.durations), run.shard[1])
    run.partition = fingerprint(chosen)
    dropped = [item for item in items if chosen[item.nodeid] != run.shard[0]]
    items[:] = [item for item in items if chosen[item.nodeid] == run.shard[0]]
    config.hook.pytest_deselected(items=dropped)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    run = config.stash[_run]
    return [f"matrix: shard {run.shard[0]}/{run.shard[1]} of partition {run.partition}"] if run.partition else []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load torch, the target and OpInfo's database before the first cell, so that no cell's time includes the loading."""
    if session.config.option.collectonly:
        return
    cells = [(item, cell) for item in session.items if (cell := _cell(item)) is not None]
    if cells:
        import torch

        from gen.checks import ledger, opinfo  # noqa: F401  # the ledger imports what running a cell needs

        torch.set_num_threads(1)
        session.config.stash[_run].target()
        if any(cell.op not in family_of(item.getparent(pytest.Module).obj).ops for item, cell in cells):  # type: ignore[union-attr]
            opinfo.database()


def _empty(item: pytest.Item) -> bool:
    """Whether pytest made this item for a check without a cell at the tier."""
    spec = getattr(item, "callspec", None)
    return spec is not None and cells_of(getattr(item, "function", None)) is not None and not isinstance(spec.params.get("case"), Cell)


def _cell(item: pytest.Item) -> Cell | None:
    spec = getattr(item, "callspec", None)
    found = spec.params.get("case") if spec is not None else None
    return found if isinstance(found, Cell) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Attach the facts of the cell before anything can fail. The outcome is filled in later."""
    cell = _cell(item)
    if cell is None:
        return
    assert isinstance(item, pytest.Function)
    family = family_of(item.module)
    settings, shown = item.config.stash[_run].settings, item.config.option.runxfail  # with --runxfail no failure is expected
    entries = {
        name: entry for name, entry in family.entries(cell).items() if entry.active(settings) and not (shown and entry.kind == "xfail")
    }
    item.stash[_active] = entries
    facts = {
        "id": cell.id,
        "family": family.name,
        "op": cell.op,
        "dtype": cell.dtype,
        "check": item.originalname.removeprefix("test_"),
        "axes": dict(cell.axes),
        "outcome": "error",
        "why": "",
        "samples": 0,
        "ledger": {f"{family.name}:{name}": entry.where() for name, entry in entries.items() if entry.kind in ("xfail", "skip")},
        "entries": [],
    }
    item.user_properties.append((FACTS, facts))


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """The case of this cell, with the run's target, device and samples."""
    from gen.checks.case import Case

    run: Run = request.config.stash[_run]
    item = request.node
    yield Case(
        request.param,
        check=item.originalname.removeprefix("test_"),
        family=family_of(item.module),
        target=run.target(),
        device=run.settings.device,
        entries=item.stash[_active],
        only=run.sample,
        all_samples=run.all_samples,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run one cell and report its verdict to pytest. pytest runs other tests itself."""
    __tracebackhide__ = True
    if _cell(pyfuncitem) is None:
        return None
    from gen.checks.ledger import attempt

    run = pyfuncitem.config.stash[_run]
    case: Case = pyfuncitem.funcargs["case"]  # type: ignore[assignment]  # what the fixture made
    loops: Any = getattr(run.target(), "loops", {})
    before = Counter(loops)
    verdict = attempt(pyfuncitem.obj, case, pyfuncitem.stash[_active], run.settings.today)
    facts: dict[str, Any] = dict(pyfuncitem.user_properties)[FACTS]  # type: ignore[assignment]
    family = facts["family"]
    facts.update(outcome=verdict.outcome, why=verdict.why, samples=case.compared, entries=[f"{family}:{name}" for name in verdict.happened])
    facts["loops"] = dict(Counter(loops) - before)
    match verdict.outcome:
        case "skipped" | "lacking":
            pytest.skip(f"lacking: {verdict.why}" if verdict.outcome == "lacking" else verdict.why)
        case "xfailed":
            pytest.xfail(verdict.why)
        case "failed" | "vacuous" | "xpassed":
            _show(pyfuncitem, case, verdict)
    return True


class CellFailed(Exception):
    """An error whose text is the report. Its traceback is not shown."""


def _show(item: pytest.Function, case: Case, verdict: Verdict) -> None:
    """Report each failing sample as a subtest, then the case in one line."""
    __tracebackhide__ = True
    samples = [failure for failure in verdict.failures if failure.sample is not None]
    if samples:
        subtests = item._request.getfixturevalue("subtests")
        for failure in samples:
            with subtests.test(f"sample {failure.sample}"):
                _raise(item, failure, verdict)
    for failure in verdict.failures:
        if failure.sample is None:
            _raise(item, failure, verdict)
    if samples:
        raise CellFailed(f"{len(samples)} of {case.compared} samples failed: {', '.join(str(failure.sample) for failure in samples)}")
    raise CellFailed(f"{_title(item)}: {verdict.why}\nreproduce: {_command(item, None)}")


def _raise(item: pytest.Function, failure: SampleFailure, verdict: Verdict) -> None:
    from gen.checks.outcomes import Mismatch, Vacuous

    __tracebackhide__ = True
    sample = "" if failure.sample is None else f", sample {failure.sample}" + (f" {failure.description}" if failure.description else "")
    lines = [_title(item) + sample]
    if verdict.why.startswith("expected "):
        lines.append(verdict.why)
    if isinstance(failure.error, Mismatch | Vacuous):
        lines.append(str(failure.error))
    else:
        # Python's traceback: pytest's quotes whole functions, for which it parses torch's files of 20,000 lines.
        lines.append("".join(traceback.format_exception(failure.error)).rstrip())
    raise CellFailed("\n".join([*lines, f"reproduce: {_command(item, failure.sample)}"])) from failure.error


def _title(item: pytest.Function) -> str:
    run = item.config.stash[_run]
    cell = _cell(item)
    assert cell is not None
    return f"{cell.id} under {item.originalname.removeprefix('test_')}, target {run.settings.target} on {run.settings.device}"


def _command(item: pytest.Function, sample: int | None) -> str:
    """The command that reruns this cell or sample."""
    run = item.config.stash[_run]
    words = ["pytest", shlex.quote(item.nodeid), "--target", shlex.quote(run.settings.target)]
    if run.settings.device != "cpu":
        words += ["--device", shlex.quote(run.settings.device)]
    words += ["--tier", "full"]
    if sample is not None:
        words += ["--sample", str(sample)]
    return " ".join(words)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, CellFailed):
        report.longrepr = str(call.excinfo.value)
    return report
