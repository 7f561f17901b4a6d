"""The command `soak-programs`: what it writes, goes on with, and refuses; and its scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gen.cli import main
from gen.grammar import (
    LEVELS,
    Call,
    Difference,
    Input,
    Program,
    Statement,
    difference_of,
    finding_of,
    script_of,
)

RETURNED = Program(
    (Statement("same", "p = same(a)"),),
    (Statement("part", "p[0]"),),
    (Call("first", (Input("a", "fresh", "leaf", "leaf(numbers(2, 3, seed=1))"),)),),
)
"""A custom Function that returns its argument, whose backward AOTAutograd leaves out."""


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process without this project."""
    file = folder / "script.py"
    file.write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(file)], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_a_script_differs_where_the_level_does(tmp_path: Path) -> None:
    difference = difference_of(RETURNED, LEVELS["aot_eager"]())
    assert difference is not None
    done = run_script(script_of(RETURNED, difference), tmp_path)
    assert done.stdout.startswith("differs: gradient of leaf 2"), done.stderr
    assert done.returncode == 1


def test_a_script_is_as_expected_where_nothing_differs(tmp_path: Path) -> None:
    done = run_script(script_of(RETURNED, Difference("eager", "", "", 0)), tmp_path)
    assert done.stdout == "as expected\n", done.stderr
    assert done.returncode == 0


def soak(out: Path, *options: str) -> int:
    return main(["soak-programs", "--seed", "3", "--minutes", "0.1", "--out", str(out), *options])


def test_a_soak_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found"
    first = soak(out, "--level", "eager", "--shard", "2/3")
    before = json.loads((out / "state.json").read_text())
    assert before["next"] % 3 == 1
    assert before["counts"]["run"] == (before["next"] - 1) // 3
    again = soak(out, "--level", "eager", "--shard", "2/3", "--resume")
    after = json.loads((out / "state.json").read_text())
    assert after["next"] > before["next"]
    assert after["counts"]["run"] == (after["next"] - 1) // 3
    assert {first, again} <= {0, 1}
    assert "eager by seed 3, shard 2/3" in capsys.readouterr().out


def test_a_cause_is_written_as_a_script_and_as_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found"
    options = ["--level", "aot_eager", "--seed", "0", "--minutes", "5", "--most", "1"]
    assert main(["soak-programs", *options, "--out", str(out)]) == 1
    (entry,) = yaml.safe_load((out / "programs.yaml").read_text())
    assert finding_of(entry).program.text().startswith("def program(a")
    assert (out / f"{entry['name']}.py").exists()
    assert entry["message"][:60] in capsys.readouterr().out


def test_another_soak_in_the_same_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found"
    soak(out, "--level", "eager")
    assert soak(out, "--level", "eager") == 2
    assert "go on with --resume" in capsys.readouterr().err
    assert soak(out, "--level", "session", "--resume") == 2
    assert "is the soak of eager by seed 3" in capsys.readouterr().err
