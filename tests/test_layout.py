"""Where files lie and how long they are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST = 500  # lines


def folders(path: Path) -> set[str]:
    return {p.name for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))}


def test_each_folder_of_the_runtime_has_one_of_tests() -> None:
    assert folders(ROOT / "tests/runtime") == folders(ROOT / "runtime")


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "gen", "runtime", "tests"])
def test_files_are_short_enough_to_read_at_one_go(folder: str) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}
