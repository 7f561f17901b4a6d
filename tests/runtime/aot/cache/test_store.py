"""A folder of entries: what is read is what was written, or it is said to be damaged."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.aot.cache import store
from runtime.aot.cache.store import LARGEST_ENTRY, Damaged, Folder

ENTRY = {"key": {"graph": "abc"}, "saved": [1, 2, 30]}
PLENTY = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "made" / "when needed", PLENTY)


def file_of(folder: Folder, name: str = "a") -> Path:
    return folder.path / f"{name}.json"


def test_an_entry_is_read_as_it_was_written(folder: Folder) -> None:
    assert folder.read("a") is None and folder.names() == [] and folder.size() == (0, 0)
    folder.write("a", ENTRY)
    assert (
        folder.read("a") == ENTRY
        and folder.names() == ["a"]
        and folder.size() == (1, file_of(folder).stat().st_size)
    )


def test_a_change_of_any_byte_is_noticed(folder: Folder) -> None:
    folder.write("a", ENTRY)
    whole = file_of(folder).read_bytes()
    for i in range(len(whole)):
        file_of(folder).write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with pytest.raises(Damaged):
            folder.read("a")


def test_a_file_that_is_cut_off_or_longer_is_noticed(folder: Folder) -> None:
    folder.write("a", ENTRY)
    whole = file_of(folder).read_bytes()
    for content in [*(whole[:i] for i in range(len(whole))), whole + b" ", whole * 2]:
        file_of(folder).write_bytes(content)
        with pytest.raises(Damaged):
            folder.read("a")


@pytest.mark.parametrize(
    "body",
    [b"[1, 2]", b"no json", b"\xff", b"", b"[" * 100_000, b"1" * 10_000, b" " * LARGEST_ENTRY],
)
def test_a_foreign_file_with_the_right_digest_is_noticed(folder: Folder, body: bytes) -> None:
    folder.write("a", ENTRY)
    file_of(folder).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(Damaged):
        folder.read("a")


def test_a_folder_in_the_place_of_an_entry_is_an_error_of_the_system(folder: Folder) -> None:
    file_of(folder).mkdir(parents=True)
    with pytest.raises(OSError):
        folder.read("a")


def test_entries_that_were_not_used_for_longest_make_room(folder: Folder) -> None:
    folder.write("a", ENTRY)
    folder.max_bytes = 2 * file_of(folder).stat().st_size
    folder.write("b", ENTRY)
    for age, name in ((200, "a"), (100, "b")):
        os.utime(file_of(folder, name), (time.time() - age,) * 2)
    folder.read("a")
    folder.write("c", ENTRY)
    assert sorted(folder.names()) == ["a", "c"]
    folder.max_bytes = 0
    folder.write("d", ENTRY)
    assert folder.names() == []


def test_what_a_killed_process_has_left_is_removed_after_a_while_and_other_files_are_not(
    folder: Folder,
) -> None:
    folder.write("a", ENTRY)
    old, young, foreign = (
        folder.path / name for name in ("x.unfinished", "y.unfinished", "notes.txt")
    )
    for path in (old, young, foreign):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    folder.write("b", ENTRY)
    assert not old.exists() and young.exists()
    folder.clear()
    assert [p.name for p in folder.path.iterdir()] == ["notes.txt"]


def test_an_unfinished_file_is_of_nobody_when_it_is_older_than_an_hour(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a", ENTRY)
    unfinished = folder.path / "x.unfinished"
    unfinished.write_bytes(b"")
    os.utime(unfinished, (1000, 1000))
    monkeypatch.setattr(time, "time", lambda: 4600.0)
    folder.write("b", ENTRY)
    assert unfinished.exists()
    monkeypatch.setattr(time, "time", lambda: 4600.5)
    folder.write("b", ENTRY)
    assert not unfinished.exists()


def test_a_write_that_fails_leaves_no_file(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a", ENTRY)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        folder.write("b", ENTRY)
    assert [p.name for p in folder.path.iterdir()] == ["a.json"]


def test_an_entry_is_made_beside_the_others_before_it_has_its_name(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    replace = os.replace

    def noted(source: str, target: Path) -> None:
        made.append(Path(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    folder.write("a", ENTRY)
    assert [p.parent for p in made] == [folder.path] and made[0].suffix == ".unfinished"


def test_an_entry_that_is_too_large_is_not_written(folder: Folder) -> None:
    folder.write("a", {"saved": "x" * LARGEST_ENTRY})
    assert folder.names() == []


def test_an_entry_may_fill_its_file_to_the_last_byte(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a", ENTRY)
    size = file_of(folder).stat().st_size
    monkeypatch.setattr(store, "LARGEST_ENTRY", size)
    folder.write("b", ENTRY)
    assert folder.read("b") == ENTRY
    file_of(folder).write_bytes(file_of(folder).read_bytes() + b" ")
    with pytest.raises(Damaged):
        folder.read("a")
    monkeypatch.setattr(store, "LARGEST_ENTRY", size - 1)
    folder.write("c", ENTRY)
    assert sorted(folder.names()) == ["a", "b"]
    with pytest.raises(Damaged):
        folder.read("b")


def test_the_largest_entry_has_four_mebibytes() -> None:
    assert LARGEST_ENTRY == 4 * 1024 * 1024


@pytest.mark.parametrize("gone", ["a.json", "x.unfinished"])
def test_files_that_another_process_removes_meanwhile_are_passed_over(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    for name in "ab":
        folder.write(name, ENTRY)
    (folder.path / "x.unfinished").write_bytes(b"")
    size = file_of(folder).stat().st_size
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


def test_a_folder_that_exists_is_written_to(folder: Folder) -> None:
    folder.path.mkdir(parents=True)
    folder.write("a", ENTRY)
    assert folder.names() == ["a"]


def test_an_entry_in_a_folder_of_somebody_else_is_read(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a", ENTRY)

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refused)
    assert folder.read("a") == ENTRY


def test_only_as_many_of_the_oldest_entries_go_as_must(folder: Folder) -> None:
    for i, name in enumerate("abcd"):
        folder.write(name, ENTRY)
        os.utime(file_of(folder, name), (1000 + i,) * 2)
    size = file_of(folder).stat().st_size
    folder.max_bytes = 3 * size
    folder.write("e", ENTRY)
    assert sorted(folder.names()) == ["c", "d", "e"]
    folder.max_bytes = 3 * size - 1
    folder._make_room()
    assert sorted(folder.names()) == ["d", "e"]


def test_processes_that_write_the_same_entries_at_once_disturb_nobody(tmp_path: Path) -> None:
    text = (
        "import importlib.util, sys\n"
        # without the rest of the package, which takes long
        "spec = importlib.util.spec_from_file_location('store', sys.argv[1])\n"
        "store = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(store)\n"
        "folder = store.Folder(sys.argv[2], 2000)\n"
        "for i in range(300):\n"
        "    folder.write(str(i % 7), {'saved': [i % 7] * 50})\n"
        "    found = folder.read(str((i + 3) % 7))\n"
        "    assert found is None or found == {'saved': [(i + 3) % 7] * 50}\n"
    )
    command = [sys.executable, "-c", text, str(store.__file__), str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [p.wait(timeout=200) for p in processes] == [0, 0, 0]
    assert not list(tmp_path.glob("*.unfinished"))
