"""A target whose values are not torch's tensors: it brings its own ops, and a result that is no
tensor fails with what to do."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gen.run.results import read
from tests.commands import ROOT, python

TARGETS = '''
import numpy
import torch


class Arrays:
    """NumPy arrays inside, tensors of torch outside."""

    name = "arrays"
    lacks = frozenset(("vjp",))

    def op(self, name):
        return {"torch.sin": numpy.sin, "torch.mul": numpy.multiply}.get(name)

    def flat(self, result):
        return (numpy.asarray(result),)

    def forward(self, f):
        return lambda *xs: tuple(torch.from_numpy(numpy.array(y)) for y in f(*(x.numpy() for x in \
xs)))

    def pipeline(self, f, stages):
        return self.forward(f)

    def vmap(self, f, in_dims):
        def g(*xs):
            count = next(x.shape[d] for x, d in zip(xs, in_dims) if d is not None)
            rows = [f(*(x if d is None else numpy.take(x, k, d) for x, d in zip(xs, \
in_dims))) for k in range(count)]
            return tuple(map(numpy.stack, zip(*rows)))

        return g


class Leaks(Arrays):
    """It forgets to convert its results."""

    name = "leaks"

    def forward(self, f):
        return lambda *xs: f(*(x.numpy() for x in xs))
'''
MODULE = """
from gen.checks import cases, op

ROWS = [op("torch.sin", smoke="float64"), op("torch.mul", smoke="float64"), op("torch.cos", \
smoke="float64")]

@cases(*ROWS)
def test_forward(case):
    case.assert_same("forward", against="eager")

@cases(*ROWS)
def test_vmap(case):
    case.assert_same("vmap", against="loop")

@cases(*ROWS)
def test_inplace(case):
    case.assert_same("forward", against="eager", form="inplace")

@cases(*ROWS)
def test_vjp(case):
    case.assert_same("vjp", against="upstream")
"""


def run(target: str, folder: Path, *path: Path) -> tuple[Any, dict[str, str]]:
    (folder / "test_demo.py").write_text(MODULE)
    words = ("-m", "pytest", "-p", "gen.run.plugin", "--target", target, "-q")
    done = python(folder, *words, path=[*path, ROOT])
    results = folder / f".cache/matrix/results-{target}-cpu.jsonl"
    return done, {
        f"{cell.check} {cell.op}": cell.outcome for cell in read(results).cells
    } if results.exists() else {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module and its entry points, as an installer leaves it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "arrays.py").write_text(TARGETS)
    about = folder / "arrays-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: arrays\nVersion: 1.0\n")
    names = {"arrays": "Arrays", "leaks": "Leaks", "absent": "Absent"}
    (about / "entry_points.txt").write_text(
        "[matrix.targets]\n" + "".join(f"{name} = arrays:{kind}\n" for name, kind in names.items())
    )
    return folder


def test_a_target_with_its_own_ops_runs_those_and_lacks_the_others(
    site: Path, tmp_path: Path
) -> None:
    done, cells = run("arrays", tmp_path, site)
    assert done.returncode == 0, done.stdout
    assert {name for name, outcome in cells.items() if outcome == "passed"} == {
        *("forward torch.sin", "forward torch.mul", "vmap torch.sin", "vmap torch.mul")
    }
    assert set(cells.values()) == {"passed", "lacking"}
    assert "1 cells of forward: target arrays has no torch.cos" in done.stdout
    assert "2 cells of inplace: target arrays has ops of its own" in done.stdout


def test_a_result_that_is_no_tensor_fails_and_says_what_to_do(site: Path, tmp_path: Path) -> None:
    done, cells = run("leaks", tmp_path, site)
    assert cells["forward torch.sin"] == "failed"
    assert (
        "result 0 of target leaks is a numpy.ndarray: where a check calls a target, "
        "results are torch.Tensors"
    ) in done.stdout
    assert "converts inputs and results in `forward` and `pipeline`" in done.stdout


def test_an_entry_point_that_does_not_load_is_an_error_with_its_name(
    site: Path, tmp_path: Path
) -> None:
    done, cells = run("absent", tmp_path, site)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and not cells
    assert (
        "target 'absent': its entry point arrays:Absent does not load (AttributeError: "
        in done.stderr
    )


@pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="jax is not installed; it is an optional extra"
)
def test_jax_passes_by_its_entry_point(tmp_path: Path) -> None:
    package, site = tmp_path / "package", tmp_path / "site"
    shutil.copytree(
        ROOT / "examples/jax_target", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    pip = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--disable-pip-version-check",
    )
    subprocess.run(
        [sys.executable, *pip, "--target", str(site), str(package)], check=True, timeout=300
    )
    done, cells = run(
        "jax", tmp_path, site, *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    )
    assert done.returncode == 0, done.stdout
    assert all(
        cells[f"{check} {op}"] == "passed"
        for check in ("forward", "vmap", "vjp")
        for op in ("torch.sin", "torch.mul", "torch.cos")
    )
