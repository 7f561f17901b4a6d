"""The walk of docs/bring_up.md: a device from nothing to level 6, by the commands of the page."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gen.cli import main
from tests.commands import ROOT, python

PAGE = ROOT / "docs/bring_up.md"


def blocks() -> list[list[str]]:
    """Return the lines of each block of the page."""
    found = re.findall(r"(?:^    .*\n)+", PAGE.read_text("utf-8"), re.M)
    return [[line.strip() for line in block.splitlines()] for block in found]


def run(command: str, folder: Path) -> str:
    """Run a command of the page in a folder, and return what it prints."""
    words = shlex.split(command)
    if words[0] == "pytest":
        done = python(folder, "-m", *words, "-p", "no:cacheprovider")
    else:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_each_command_of_the_page_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, (whole,), all_hold, (edit, again), one_is_red, _ = blocks()
    monkeypatch.chdir(tmp_path)
    assert begin[1] == "cd mydevice"
    words = shlex.split(begin[0])
    assert words[0] == "matrix-gen"
    assert main([*words[1:], "--requirement", "x"]) == 0
    folder = tmp_path / "mydevice"
    said = run(whole, folder)
    assert "\n".join(all_hold) in said, said[-2000:]
    assert "failed" not in said
    run(edit, folder)
    said = run(again, folder)
    assert "\n".join(one_is_red) in said, said[-2000:]
