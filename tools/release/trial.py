"""Build what is released, and try it as a new user would: `make release`.

    python -m tools.release.trial               # a clean environment, with a torch of its own
    python -m tools.release.trial --shared      # with the packages of this environment, in a minute

It builds a source distribution, and a wheel of that. The wheel is installed beside two foreign
packages named ``gen`` and ``runtime``. There it is imported as a whole, makes a project, and runs
the smoke tier of that project and of this one. Each step prints its command and its seconds. The
first step that fails ends the trial with its output.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from tools.release.wheel_contents import OUTER, PACKAGES, renaming_of

__all__ = ["FOREIGN", "USE", "Trial", "main"]

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
FOREIGN = '"""A package of another project."""\n\nWHO = "foreign"\n'
"""The text of the packages beside which the wheel is installed."""
_OWN_ROWS = ("programs", "examples")
"""Folders of modules that rows of this project's matrix name."""
USE = f"""
import pickle
import torch
from gen import WHO as of_gen
from runtime import WHO as of_runtime
from {OUTER}.runtime import jit
from {OUTER}.runtime.func import grad, vmap
from {OUTER}.runtime.per_sample import per_sample

assert vmap(grad(lambda x: x.sin()))(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
assert jit(lambda x: x * 2)(torch.ones(2)).tolist() == [2.0, 2.0]
model, xs = torch.nn.Linear(3, 2), torch.randn(4, 3)
with per_sample(model.parameters()) as grads:
    model(xs).sum().backward()
assert grads.norms().shape == (4,)
assert torch.equal(pickle.loads(pickle.dumps(jit(model)))(xs), model(xs))
assert (of_gen, of_runtime) == ("foreign", "foreign")
"""
"""What a user of the wheel writes, beside the foreign packages."""
_IMPORT_ALL = f"""
import importlib, pkgutil, sys
import {OUTER}
names = [m.name for m in pkgutil.walk_packages({OUTER}.__path__, "{OUTER}.")]
for name in names:
    if not name.endswith((".__main__", ".sitecustomize")) and ".start." not in name:
        importlib.import_module(name)
ours = [name for name in sys.modules if name.partition(".")[0] in ("gen", "runtime")]
assert not ours, ours
print(len(names), "modules")
"""
_DROPIN = """
import torch

def test_gradient():
    x = torch.ones(2, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert torch.autograd.backward.__module__ != "torch.autograd"
"""


class Failed(Exception):
    """A step of the trial failed. The message has its output."""


class Trial:
    """An environment with the wheel, and the folder in which its commands run.

    ``wheel``: the file to install. ``folder``: an absent or empty one. ``shared``: use the packages
    of the Python that runs this, and install the wheel alone.
    """

    def __init__(self, wheel: Path, folder: Path, *, shared: bool) -> None:
        self._wheel = wheel
        self._shared = shared
        self._environment = folder / "environment"
        self.folder = folder / "work"
        self.python = str(self._environment / "bin" / "python")
        self.command = str(self._environment / "bin" / "matrix-gen")

    def install(self) -> None:
        """Make the environment: foreign packages first, then the wheel."""
        self.folder.mkdir(parents=True)
        run([sys.executable, "-m", "venv", str(self._environment)], self.folder)
        site = Path(self.ask("import sysconfig; print(sysconfig.get_paths()['purelib'])"))
        for package in PACKAGES:
            (site / package).mkdir()
            (site / package / "__init__.py").write_text(FOREIGN)
        install = [self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        if self._shared:
            # a folder alone: what its own .pth files add would be an editable checkout of this
            shared = [path for path in sys.path if Path(path).name == "site-packages"]
            (site / "shared.pth").write_text("\n".join([*shared, ""]))
            run([*install, "--no-deps", str(self._wheel)], self.folder)
        else:
            run([*install, str(self._wheel), _pinned_torch()], self.folder)

    def ask(self, program: str) -> str:
        """Return what a program prints in this environment."""
        return run([self.python, "-c", program], self.folder).strip()

    def use(self) -> None:
        """Import the public names, and every module, beside the foreign packages."""
        self.ask(USE)
        self.ask(_IMPORT_ALL)
        (self.folder / "test_dropin.py").write_text(_DROPIN)
        dropin = ["-p", f"{OUTER}.runtime.dropin", "-p", "no:cacheprovider"]
        run([self.python, "-m", "pytest", "-q", *dropin, "test_dropin.py"], self.folder)
        run([self.python, "-m", f"{OUTER}.runtime", "coverage"], self.folder)

    def project(self) -> None:
        """Make a project, and run its tests and its smoke tier on both targets."""
        run([self.command, "--version"], self.folder)
        run([self.command, "init", "sketch"], self.folder)
        project = self.folder / "sketch"
        run([self.command, "check"], project)
        for target in ("torch", "runtime"):
            self._smoke(project, "tests", "generated_tests", "--target", target)
        run([self.command, "report", "--last", "--out", "report/index.html"], project)
        case = "sketch.ops.soft_clip-float64"
        run([self.command, "explain", case, "--check", "gradcheck"], project)
        run([self.command, "doctor"], project)

    def own_matrix(self) -> None:
        """Run the smoke tier of this project's matrix by the wheel."""
        project = self.folder / "own"
        project.mkdir()
        for name in ("matrix.yaml", "matrix"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, project / name)
        renaming = renaming_of(_modules())
        for path in _files_of(*_OWN_ROWS):
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            text = (ROOT / path).read_text("utf-8")
            (project / path).write_text(renaming.python(text, path), "utf-8")
        options = f"-p {OUTER}.gen.run.plugin -p no:logging --import-mode=importlib"
        (project / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\npythonpath = .\n")
        run([self.command, "generate"], project)
        self._smoke(project, "generated_tests", "--target", "runtime")

    def _smoke(self, folder: Path, *arguments: str) -> None:
        run([self.python, "-m", "pytest", "-q", "--tier", "smoke", *arguments], folder)


def run(command: list[str], folder: Path) -> str:
    """Run a command outside of the checkout, and return what it prints. Raises :class:`Failed`."""
    shown = " ".join(word if len(word) < 60 else "…" for word in command[:8])
    outside = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True)
    print(f"{time.monotonic() - begin:7.1f} s  {shown}", flush=True)
    if done.returncode:
        raise Failed(f"{shown}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(*, shared: bool) -> Path:
    """Build the source distribution, and the wheel of it. Return the wheel.

    ``shared``: by the setuptools that is here, and not by one that build installs.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    options = ["--no-isolation"] if shared else []
    run([sys.executable, "-m", "build", *options, "--outdir", str(DIST), str(ROOT)], ROOT.parent)
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, DIST.iterdir())], ROOT)
    missing = _tracked() - _names_in_source(next(DIST.glob("*.tar.gz")))
    if missing:
        raise Failed(f"the source distribution lacks {', '.join(sorted(missing))}; see MANIFEST.in")
    wheel = next(DIST.glob("*.whl"))
    tops = {name.partition("/")[0] for name in ZipFile(wheel).namelist()}
    if {top for top in tops if not top.endswith(".dist-info")} != {OUTER}:
        raise Failed(f"the wheel has {', '.join(sorted(tops))} beside {OUTER}")
    return wheel


def _tracked() -> set[str]:
    """Return the files of the repository that a source distribution has."""
    names = run(["git", "ls-files"], ROOT).splitlines()
    return {name for name in names if not name.startswith(".")}


def _names_in_source(archive: Path) -> set[str]:
    with tarfile.open(archive) as source:
        return {name.partition("/")[2] for name in source.getnames()}


def _files_of(*folders: str) -> Iterator[str]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix()


def _modules() -> dict[str, bytes]:
    return {path: (ROOT / path).read_bytes() for path in _files_of(*PACKAGES)}


def _pinned_torch() -> str:
    """Return the line of requirements.txt that names torch."""
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def main() -> int:
    """Build, install and try, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shared", action="store_true", help="use the packages of this environment"
    )
    arguments = parser.parse_args()
    # outside of the checkout, whose pyproject.toml and git would count in folders below it
    folder = Path(tempfile.mkdtemp(prefix="release-"))
    try:
        trial = Trial(build(shared=arguments.shared), folder, shared=arguments.shared)
        trial.install()
        trial.use()
        trial.project()
        trial.own_matrix()
    except Failed as failure:
        print(f"{failure}\nthe environment and its folders stay in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    print(f"{DIST}: {', '.join(sorted(path.name for path in DIST.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
