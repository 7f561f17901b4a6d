"""The small project in which bad inputs are tried, and the commands of the project as functions."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from gen import cli
from gen.checks import Case  # noqa: F401

# imported once, before the processes of the trials
from gen.targets import runtime_target, torch_target  # noqa: F401
from tests.bad_inputs.trial import HERE, MATRIX


def make(folder: Path) -> Path:
    """The project in its own folder below `folder`, where commands may write. Its modules are
    not generated yet."""
    project = folder / "project"
    (project / ".cache" / "gen").mkdir(parents=True)
    (folder / "temporary").mkdir()
    (project / "matrix.yaml").write_text(MATRIX)
    shutil.copy(HERE / "mine.py", project / "mine.py")
    return project


def run(text: str) -> int:
    """Run `gen …` or `pytest …` in the present folder and return its exit code."""
    program, *arguments = shlex.split(text)
    if program == "gen":
        return cli.main(arguments)
    assert program == "pytest", text
    return int(pytest.main(["-p", "gen.run.plugin", "-p", "no:cacheprovider", *arguments]))
