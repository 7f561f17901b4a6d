"""Files that go while a folder is looked through.

Inside: ``runtime.aot.cache.store.Folder``. Another process would have to remove a file between two
calls of one method, and no name of a user is called between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.aot.cache.store import Folder

ENTRY = {"key": {"graph": "abc"}, "saved": [1, 2, 30]}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path, 1 << 20)


@pytest.mark.parametrize("gone", ["a.json", "x.unfinished"])
def test_files_that_another_process_removes_meanwhile_are_passed_over(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    for name in "ab":
        folder.write(name, ENTRY)
    (folder.path / "x.unfinished").write_bytes(b"")
    size = (folder.path / "a.json").stat().st_size
    seen = list(folder._files(".json", ".unfinished"))
    monkeypatch.setattr(
        folder, "_files", lambda *suffixes: (e for e in seen if e.name.endswith(suffixes))
    )
    (folder.path / gone).unlink()
    left = 2 - gone.endswith(".json")
    assert folder.size() == (left, left * size)
    folder.max_bytes = 0
    folder.write("c", ENTRY)  # which makes room
    assert not list(folder.path.glob("[ab].json"))
    folder.clear()
    assert [p.name for p in folder.path.iterdir()] == ["c.json"], (
        "which came after they were listed"
    )
