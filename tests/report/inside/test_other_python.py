"""Results of the matrix under other Pythons.

Inside: gen.run.other_python.OtherPython. A run of the matrix for each of nine pairs of a Python
and a selection would take minutes, and two of these Pythons have a torch that is not there.
"""

import shutil
import sys
from pathlib import Path

import pytest

from gen.run.other_python import Job, OtherPython


def test_each_python_and_each_selection_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copy(sys.executable, name)
        Path(name).chmod(0o755)
    jobs = [Job("torch", "full", Path("t"), 1, select) for select in ("", "sin", "cos")]
    pythons = [OtherPython(f"./{name}", "3.11.7", "2.13.0+cpu") for name in ("one", "two")]
    pythons.append(OtherPython("./one", "3.11.7", "2.13.0+cu128"))
    assert len({python.results(job) for python in pythons for job in jobs}) == 9
