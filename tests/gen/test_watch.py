"""`gen watch` runs cells again when a file changes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gen.cli import main
from tests.gen.conftest import KIT_CELLS, KIT_REFERENCE, KIT_SETTINGS

FILES = {
    "kit.py": "def double(x):\n    return 2 * x\n",
    "truth.py": KIT_REFERENCE,
    ".gitignore": ".cache\n__pycache__\n",
    "pytest.ini": KIT_SETTINGS,
    "generated_tests/test_kit.py": KIT_CELLS,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "a step")):
        identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_a_change_is_run_and_its_failure_is_shown(project: Path) -> None:
    command = [sys.executable, "-m", "gen", "watch", "kit.py", "--runs", "2", "--target", "torch"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        first: list[str] = []
        for line in watch.stdout:
            first.append(line)
            if line.startswith("waiting for a change of kit.py"):
                break
        assert "1 passed" in "".join(first)
        time.sleep(1)  # the watch has to see the file as it was
        (project / "kit.py").write_text("def double(x):\n    return 3 * x\n")
        rest = watch.stdout.read()
    assert watch.returncode == 1
    assert "1 failed" in rest


def test_a_path_that_is_not_there_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "kit.py", "kti.py"]) == 2
    assert "kti.py: no such file or folder here" in capsys.readouterr().err
