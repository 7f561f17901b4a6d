"""Mistakes on the command line of `gen run` are refused before anything starts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gen.cli import main
from gen.cluster import dask_pool
from gen.cluster.job import Answer, Group, Job, resource_of, versions
from gen.cluster.serving import _filter_of
from gen.cluster.work import release, run_group
from gen.commands import run
from gen.report.view import rules_table
from gen.run.results import read

ROOT = Path(__file__).parents[2]
MODULE = (
    'from gen.checks import cases, op\n@cases(op("a", smoke="float64"))\ndef test_vjp(case): ...\n'
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_a.py").write_text(MODULE)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["gone.py"], "gone.py: no such file or folder here"),
        (["empty"], "empty: no modules of a matrix; `python -m gen generate` writes them"),
        (["test_a.py", "--target", "tporch"], "no target 'tporch'; known: "),
        (["test_a.py", "--op", "b*"], "no cell of test_a.py at tier default matches --op b*"),
        (["test_a.py::test_vjp[b-float64]"], "matches ids test_a.py::test_vjp[b-float64]"),
        (["test_a.py", "--tier", "all"], "no cells beyond the tier full"),
        (["test_a.py", "--target", "torch", "--rules"], "--rules: target torch offers no rules"),
    ],
)
def test_a_run_of_nothing_is_refused(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *args]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("size", ["", "G", "0", "1.5G", "-1", "4T"])
def test_a_size_that_is_none_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", f"--cell-memory={size}"])
    assert "expected a size, as 500M or 4G" in capsys.readouterr().err


def test_without_distributed_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "dask.config", None)
    assert main(["run", "test_a.py", "--target", "torch"]) == 2
    assert "--cluster needs Dask's distributed" in capsys.readouterr().err


def test_devices_but_the_cpu_s_are_routed_to_gpu_workers() -> None:
    assert [resource_of(device) for device in ("cpu", "meta", "cuda", "cuda:1")] == [
        "CPU",
        "CPU",
        "GPU",
        "GPU",
    ]


def test_the_digest_of_the_code_is_the_same_in_every_process() -> None:
    assert versions() == versions() and versions().keys() == {"code", "torch", "python"}


def test_filters_of_an_ini_line_act_as_in_pytest() -> None:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        for line in ("error", "ignore:quiet .*:UserWarning", "always::DeprecationWarning"):
            _filter_of(line)()
        warnings.warn("quiet please", UserWarning, stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        with pytest.raises(RuntimeWarning):
            warnings.warn("loud", RuntimeWarning, stacklevel=1)
    assert [str(one.message) for one in caught] == ["old"]


def test_a_group_is_split_into_about_equal_parts() -> None:
    group = Group("test_a.py", tuple((str(number), None) for number in range(20)))  # type: ignore[misc]
    parts = group.split(8)
    assert [len(part.cells) for part in parts] == [3, 3, 3, 3, 3, 3, 2]
    assert sum((part.cells for part in parts), ()) == group.cells


def test_the_coordinator_and_the_workers_of_dask_need_no_torch() -> None:
    """Which takes seconds and some 200 MB; the processes that run cells load it."""
    program = (
        "import sys, gen.commands.run, gen.cluster.work, gen.cluster.serving; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


class Here:
    """A pool of one worker, which is this process."""

    workers = 1
    dashboard = ""

    def __init__(self, client: object, job: Job) -> None:
        self._job = job
        self._out: dict[int, Group] = {}

    def require_resource(self) -> None: ...

    def room(self) -> int:
        return 2

    def submit(self, key: int, group: Group) -> None:
        self._out[key] = group

    def finished(self, seconds: float) -> Sequence[tuple[int, Answer]]:
        key, group = self._out.popitem()
        return [(key, run_group(self._job, group))]

    def close(self) -> None:
        release(self._job)


@contextlib.contextmanager
def nowhere(where: str, device: str) -> Iterator[Any]:
    yield SimpleNamespace()


DERIVATIVES = """from gen.checks import cases, family, op
SAMPLES = [{"args": [{"shape": [3]}]}]
FAMILY = family("demo", ops={f"torch.{name}": {"call": f"torch:{name}", "samples": \
SAMPLES} for name in ("sin", "cos")})
@cases(op("torch.sin", smoke="float64"), op("torch.cos", smoke="float64"))
def test_vjp(case):
    case.assert_same("vjp", against="upstream")
"""


def test_the_rules_that_each_cell_runs_are_in_the_results_when_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "test_demo.py").write_text(DERIVATIVES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(run, "connected", nowhere)
    monkeypatch.setattr(run, "DaskPool", Here)
    assert main(["run", "test_demo.py", "--results", "r.jsonl", "--rules"]) == 0
    found = read(folder / "r.jsonl")
    ran = {cell.op: set(cell.rules) & {"sin vjp self", "cos vjp self"} for cell in found.cells}
    assert ran == {"torch.sin": {"sin vjp self"}, "torch.cos": {"cos vjp self"}}
    table = rules_table(found)
    assert table is not None and ("sin vjp self", 1) in table.cells
    assert (
        "tan vjp self" in dict(table.unrun)["vjp"]
        and "sin vjp self" not in dict(table.unrun)["vjp"]
    )


@pytest.mark.parametrize("is_local", [True, False])
def test_workers_of_this_machine_that_do_not_come_back_end_the_run(
    is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(dask_pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    workers = {"tcp://here": {"resources": {resource_of("cpu"): 1}}}
    client = SimpleNamespace(
        dashboard_link="",
        cluster=object() if is_local else None,
        scheduler_info=lambda: {"workers": workers},
    )
    pool = dask_pool.DaskPool(client, Job("j", "torch", "cpu", "2026-01-01", (), (), ()))
    now[0] = 1000.0
    assert pool.room() == 2
    workers.clear()
    now[0] += 100
    assert pool.room() == 1, "one that died may come back"
    now[0] += 1000
    if is_local:
        with pytest.raises(dask_pool.ClusterError, match="none came back within 300 s"):
            pool.room()
    else:
        assert pool.room() == 1, "others may come"


FAILURES = """from gen.checks import cases, op
@cases(*(op(name, smoke="float64") for name in "abcd"))
def test_jvp(case):
    case.compared = 1
    if case.op in "ab":
        raise RuntimeError("refused")
    if case.op == "c":
        raise AssertionError("another value")
"""


@pytest.mark.parametrize(
    ("fail_on", "status"), [(None, 1), ("refused", 1), ("wrong", 0), ("crash", 0)]
)
def test_failures_are_listed_by_severity_and_fail_the_run_if_severe_enough(
    fail_on: str | None,
    status: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "test_demo.py").write_text(FAILURES)
    monkeypatch.setattr(run, "connected", nowhere)
    monkeypatch.setattr(run, "DaskPool", Here)
    args = ["run", "test_demo.py", "--results", "r.jsonl", "--target", "torch"]
    if fail_on is not None:
        args.append(f"--fail-on={fail_on}")
    assert main(args) == status
    shown = capsys.readouterr().out
    assert main([*args, "--resume"]) == status, "also of cells that an earlier run had"
    resumed = capsys.readouterr().out
    for text in (shown, resumed):
        assert (
            "failed, the most severe first: 1 error · 2 refused\nfindings (3):\n  error: " in text
        )
