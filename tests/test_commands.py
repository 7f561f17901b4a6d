"""A command that is a fork does what a process of its own does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, python

WORDS = {
    "a module": ("-m", "gen", "list", "--help"),
    "a module that is wrong": ("-m", "gen", "nothing"),
    "a package beside it": ("-m", "beside", "a", "--b"),
    "a text": ("-c", "import sys; print(sys.argv, sys.path[0], __name__)", "a"),
    "a script": ("script.py", "a"),
    "a text for an end": ("-c", "raise SystemExit('no more')"),
    "a number for an end": ("-c", "raise SystemExit(7)"),
    "an error": ("-c", "raise LookupError('nothing there')"),
    "what is left to the end": ("-c", "import atexit; atexit.register(print, 'late')"),
    "variables": ("-c", "import os; print(os.environ['MINE'], os.environ['PYTHONPATH'])"),
    "modules": ("-c", "import sys; print({'gen', 'runtime'} & {*sys.modules})"),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_command_is_that_of_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import sys; print(sys.argv[1:], sys.path[1:], __name__)\n")
    (tmp_path / "script.py").write_text("import beside\n")
    variables = {**os.environ, "MINE": "mine", "PYTHONPATH": str(ROOT)}
    words = WORDS[name]
    right = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    found = python(tmp_path, *words, environment=variables)
    assert (found.returncode, found.stdout) == (right.returncode, right.stdout)
    assert found.stderr.splitlines()[-1:] == right.stderr.splitlines()[-1:]


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        python(tmp_path, "-c", "import time; time.sleep(60)", timeout=0.5)
