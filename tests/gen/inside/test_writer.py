"""Writing a directory: only what changed, orphans removed, hand-written files left alone,
and all or nothing.

Inside: gen.write.writer. A run is interrupted here at each of its steps on the disk, and on
file systems without some operations. No command stops at a step that a test chooses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gen.errors import OverwriteError
from gen.write import writer

OURS = "# ours\n"
FILES = {"test_a.py": OURS + "a = 1\n", "test_b.py": OURS + "b = 1\n"}


def compare(folder: Path, files: dict[str, str]) -> writer.Changes:
    return writer.compare(
        folder, files, lambda text: text.startswith(OURS), lambda text: "edited" in text
    )


def write(folder: Path, files: dict[str, str]) -> writer.Changes:
    changes = compare(folder, files)
    writer.write(folder, files, changes)
    return changes


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "generated", FILES)
    return tmp_path / "generated"


def test_the_first_run_adds_everything_and_the_second_changes_nothing(tmp_path: Path) -> None:
    changes = write(tmp_path / "out" / "generated", FILES)
    assert changes.added == ("test_a.py", "test_b.py")
    again = compare(tmp_path / "out" / "generated", FILES)
    assert not again
    assert again.unchanged == ("test_a.py", "test_b.py")


def test_changes_are_told_apart(folder: Path) -> None:
    changes = write(folder, {"test_a.py": OURS + "a = 2\n", "test_c.py": OURS})
    assert (changes.added, changes.changed, changes.removed) == (
        ("test_c.py",),
        ("test_a.py",),
        ("test_b.py",),
    )
    assert contents(folder) == {"test_a.py": OURS + "a = 2\n", "test_c.py": OURS}
    assert (
        changes.summary()
        == "1 added (test_c.py), 1 changed (test_a.py), 1 removed (test_b.py), 0 unchanged"
    )


def test_an_unchanged_file_stays_the_same_file(folder: Path) -> None:
    before = (folder / "test_b.py").stat()
    write(folder, {**FILES, "test_a.py": OURS})
    after = (folder / "test_b.py").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_what_was_not_generated_stays(folder: Path) -> None:
    (folder / "conftest.py").write_text("x = 1\n")
    (folder / "test_by_hand.py").write_text("def test(): ...\n")
    (folder / "data").mkdir()
    (folder / "data" / "file").write_text("kept")
    write(folder, {"test_a.py": OURS})
    assert set(contents(folder)) == {"test_a.py", "conftest.py", "test_by_hand.py"}
    assert (folder / "data" / "file").read_text() == "kept"


def test_a_hand_written_file_is_never_overwritten(folder: Path) -> None:
    (folder / "test_c.py").write_text("mine\n")
    with pytest.raises(
        OverwriteError, match=r"test_c\.py was not generated and would be overwritten"
    ):
        write(folder, {**FILES, "test_c.py": OURS})
    assert contents(folder) == {**FILES, "test_c.py": "mine\n"}


def interrupted(*args: object) -> None:
    raise KeyboardInterrupt


NEW = {"test_a.py": OURS + "new\n", "test_c.py": OURS + "new\n"}


@pytest.mark.parametrize("step", ["_stage", "_link", "_write_through", "_take_place", "_exchange"])
def test_an_interruption_at_any_step_leaves_the_old_set_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (folder / "conftest.py").write_text("x = 1\n")
    with monkeypatch.context() as patched:
        patched.setattr(writer, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(folder, NEW)
    assert contents(folder) == {**FILES, "conftest.py": "x = 1\n"}
    assert [path.name for path in folder.parent.iterdir()] == ["generated"]
    write(folder, NEW)
    assert contents(folder) == {**NEW, "conftest.py": "x = 1\n"}


def test_an_interruption_in_the_middle_of_the_files_leaves_the_old_set_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_through: Callable[[Path, str], None] = writer._write_through
    written: list[Path] = []

    def once(path: Path, text: str) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write_through(path, text)

    monkeypatch.setattr(writer, "_write_through", once)
    with pytest.raises(KeyboardInterrupt):
        write(folder, NEW)
    assert written
    assert contents(folder) == FILES


def test_without_an_exchange_of_names_two_renames_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_exchange", lambda first, second: False)
    write(folder, NEW)
    assert contents(folder) == NEW
    assert [path.name for path in folder.parent.iterdir()] == ["generated"]


def test_an_interruption_between_two_renames_is_undone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_exchange", lambda first, second: False)
    rename = Path.rename
    calls = []

    def second_fails(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(KeyboardInterrupt):
        write(folder, NEW)
    assert contents(folder) == FILES


def test_a_filesystem_without_hard_links_gets_copies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    write(folder, {**FILES, "test_c.py": OURS})
    assert contents(folder) == {**FILES, "test_c.py": OURS}


def test_the_difference_is_shown_as_a_patch(folder: Path) -> None:
    files = {"test_a.py": OURS + "a = 2\n"}
    lines = list(writer.difference(folder, files, compare(folder, files)))
    assert "-a = 1" in lines
    assert "+a = 2" in lines
    assert "-b = 1" in lines


def test_a_file_in_the_place_of_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(OverwriteError, match="mine is a file: choose a folder"):
        compare(tmp_path / "mine", FILES)
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_pipe_and_a_link_to_nothing_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(OverwriteError, match="pipe is a device, a pipe or a socket"):
        compare(tmp_path / "pipe", FILES)
    with pytest.raises(OverwriteError, match="link is a link to nothing"):
        compare(tmp_path / "link", FILES)


@pytest.mark.parametrize("name", ["notes.txt", "test_mine.py"])
def test_a_folder_of_other_things_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(OverwriteError, match=f"no generated module, but {name}"):
        compare(tmp_path, FILES)


def test_an_empty_folder_and_one_with_hidden_files_are_taken(tmp_path: Path) -> None:
    (tmp_path / ".gitkeep").touch()
    write(tmp_path, FILES)
    assert contents(tmp_path).keys() == {".gitkeep", *FILES}


def test_a_module_that_is_no_text_counts_as_written_by_a_person(folder: Path) -> None:
    (folder / "test_a.py").write_bytes(b"\xff\xfe")
    with pytest.raises(OverwriteError, match=r"test_a\.py was not generated"):
        compare(folder, FILES)
