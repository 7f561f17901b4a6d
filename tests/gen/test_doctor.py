"""`gen doctor` says what is here, and what to do about the rest, also where torch does not import.
`--version` names torch and Python."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gen.cli import main

ROOT = Path(__file__).parents[2]


def gen(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the modules in ``folder`` before all others."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, "-m", "gen", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def lines_of(text: str) -> str:
    """The lines without their columns."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def test_all_that_is_needed_is_here(tmp_path: Path) -> None:
    done = gen(tmp_path, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    said = lines_of(done.stdout)
    assert f"ok python {platform.python_version()}" in said
    assert f"ok torch {version('torch')}" in said
    assert "ok runtime grad and vmap work" in said
    assert "optional matrix.yaml not in this folder -> run `matrix-gen init FOLDER`" in said
    assert done.stdout.endswith("all that is needed is here\n")


def test_an_unsupported_package_and_a_broken_torch_are_to_mend(tmp_path: Path) -> None:
    (tmp_path / "pydantic-1.0.dist-info").mkdir()
    (tmp_path / "pydantic-1.0.dist-info/METADATA").write_text("Name: pydantic\nVersion: 1.0\n")
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is gone')\n")
    done = gen(tmp_path, "doctor")
    assert done.returncode == 1
    said = lines_of(done.stdout)
    assert "unsupported pydantic 1.0 -> run `pip install 'pydantic>=2.10'`" in said
    assert "missing torch ImportError: libtorch.so is gone -> see all of it: python -c" in said
    assert done.stdout.endswith("to mend: pydantic, torch\n")


def test_it_answers_where_the_commands_do_not_import(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise ModuleNotFoundError('No module named yaml')\n")
    done = gen(tmp_path, "doctor")
    assert done.returncode == 1
    assert "missing commands ModuleNotFoundError: No module named yaml" in lines_of(done.stdout)
    other = gen(tmp_path, "check")
    assert other.returncode == 2
    assert other.stderr == "matrix-gen: No module named yaml; `matrix-gen doctor` says what to do\n"


def test_the_version_names_torch_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    own = version("torch-transform-matrix")
    said = f"matrix-gen {own}, torch {version('torch')}, Python {platform.python_version()}\n"
    assert capsys.readouterr().out == said
