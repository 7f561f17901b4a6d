"""The state that a small tree shares is known. The page of the runtime is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.state import main

ROOT = Path(__file__).parents[2]
DEPTHS = '''\
"""How deep each thread is."""

from .ambient import Ambient


class _Depth(Ambient):
    """Inside how many calls a thread is. More is to be known."""

    depth = 0

    def __init__(self) -> None:
        self.names: list[str] = []


DEPTH = _Depth()
_known: dict[str, int] = {}  # by name, the greatest depth
LIMITS = {"a": 1}


def enter(name: str) -> None:
    DEPTH.depth += 1

    def note() -> None:
        _known[name] = max(DEPTH.depth, LIMITS["a"])

    note()


class Counter:
    def leave(self) -> None:
        DEPTH.depth, before = DEPTH.depth - 1, DEPTH.depth
        depth = {}
        depth["own"] = before
'''
RESET = """\
from .depths import DEPTH as own, _known


def reset() -> None:
    own.depth = 0
    _known.clear()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small package, from which the command starts."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "calls"
    package.mkdir()
    (package / "depths.py").write_text(DEPTHS, encoding="utf-8")
    (package / "reset.py").write_text(RESET, encoding="utf-8")
    return tmp_path


def test_the_state_of_threads_and_registries_come_with_those_who_change_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calls"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert rows == [
        "| `depths` `DEPTH` Inside how many calls a thread is | `depth = 0`<br>`names = []` "
        "| `Counter.leave`, `enter`; `reset`: `reset` |",
        "| `depths` `_known` by name, the greatest depth | `enter.note`; `reset`: `reset` |",
    ]


def test_a_folder_that_is_not_there_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nothing", "--out", "page.md"]) == 2
    assert "nothing: there is no such folder" in capsys.readouterr().err
    assert not (here / "page.md").exists()


def test_the_page_in_docs_is_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["--out", str(tmp_path / "page.md")]) == 0
    page = (ROOT / "docs/state.md").read_text("utf-8")
    assert page == (tmp_path / "page.md").read_text("utf-8"), "make docs writes it anew"
