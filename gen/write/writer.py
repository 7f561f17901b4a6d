"""A set of files -> a directory, all or nothing.

The new directory is built beside the old one, with hard links to unchanged files. Then it takes the
old one's place: in one step if the system can exchange two names, otherwise by two renames. An
interrupted run leaves the old set complete.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from gen.errors import OverwriteError

# of Linux, for renameat2: paths are relative to the working folder, and two names are exchanged
AT_FDCWD = -100
RENAME_EXCHANGE = 2
PATTERN = "test_*.py"


@dataclass(frozen=True)
class Changes:
    """How a directory differs from the modules of the matrix."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]
    # the files that were changed by hand
    edited: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def summary(self) -> str:
        """Return one line, with names if they are few."""
        parts = []
        for word in ("added", "changed", "removed"):
            names: tuple[str, ...] = getattr(self, word)
            part = f"{len(names)} {word}"
            if 0 < len(names) <= 6:
                part += f" ({', '.join(names)})"
            parts.append(part)
        return ", ".join([*parts, f"{len(self.unchanged)} unchanged"])


def compare(
    folder: Path,
    files: Mapping[str, str],
    is_generated: Callable[[str], bool],
    is_edited: Callable[[str], bool],
) -> Changes:
    """Return how `folder` differs from `files`.

    Raises `OverwriteError` if a file that a person wrote has the name of one of them, or if
    `folder` is not one for generated modules."""
    _refuse_what_is_not_ours(folder, is_generated)
    present = _present(folder)
    _refuse_to_overwrite(folder, present, files, is_generated)
    ours = {name: text for name, text in present.items() if is_generated(text)}
    added, changed, unchanged = [], [], []
    for name, text in files.items():
        if name not in ours:
            added.append(name)
        elif ours[name] != text:
            changed.append(name)
        else:
            unchanged.append(name)
    return Changes(
        added=tuple(added),
        changed=tuple(changed),
        removed=tuple(name for name in ours if name not in files),
        unchanged=tuple(unchanged),
        edited=tuple(name for name, text in ours.items() if is_edited(text)),
    )


def _refuse_to_overwrite(
    folder: Path,
    present: Mapping[str, str],
    files: Mapping[str, str],
    is_generated: Callable[[str], bool],
) -> None:
    """Raise OverwriteError if a file that a person wrote has the name of one of `files`."""
    foreign = [name for name, text in present.items() if name in files and not is_generated(text)]
    if foreign:
        raise OverwriteError(
            f"{', '.join(str(folder / name) for name in foreign)} was not generated and would be "
            "overwritten: rename it, or the family"
        )


def _present(folder: Path) -> dict[str, str]:
    """Return the modules in `folder`. A file that is no text counts as one that a person wrote."""
    if not folder.is_dir():
        return {}
    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(folder.glob(PATTERN))
        if path.is_file()
    }


def _refuse_what_is_not_ours(folder: Path, is_generated: Callable[[str], bool]) -> None:
    """`folder` may be absent, empty, or have modules that this tool wrote. Anything else would be
    moved, and perhaps lost."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise OverwriteError(
            f"{folder} is {_kind(folder)}: choose a folder for the modules, "
            "or a name that does not exist yet"
        )
    others = sorted(
        item.name
        for item in folder.iterdir()
        if not item.name.startswith(".") and item.name != "__pycache__"
    )
    if others and not any(map(is_generated, _present(folder).values())):
        shown = ", ".join(others[:3])
        if len(others) > 3:
            shown += " …"
        raise OverwriteError(
            f"{folder} has no generated module, but {shown}: "
            "choose an empty folder, or a name that does not exist yet"
        )


def _kind(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return "a link to nothing"
    if path.is_file():
        return "a file"
    return "a device, a pipe or a socket"


def difference(folder: Path, files: Mapping[str, str], changes: Changes) -> Iterator[str]:
    """Yield the unified diff from the present files to the new ones."""
    for name in (*changes.added, *changes.changed, *changes.removed):
        path = folder / name
        old: list[str] = []
        if path.exists():
            old = path.read_text(encoding="utf-8").splitlines()
        shown = f"{folder.name}/{name}"
        yield from unified_diff(
            old,
            files.get(name, "").splitlines(),
            f"{shown} (as it is)",
            f"{shown} (as generated)",
            lineterm="",
        )


def untracked(folder: Path, names: Iterable[str]) -> list[str]:
    """List files that git does not track; none if there is no repository."""
    command = ["git", "-C", str(folder), "ls-files", "--", "."]
    try:
        listed = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [name for name in names if name not in listed and (folder / name).exists()]


def write(folder: Path, files: Mapping[str, str], changes: Changes) -> None:
    """Write `files` to `folder`. Other files than generated modules stay."""
    # a link to the folder stays, and what it leads to is replaced
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        staging.chmod(0o755)  # mkdtemp makes a folder for its owner alone
        # A changed file is a new one: a hard link would show the change in the old folder too.
        _stage(folder, staging, set(changes.changed) | set(changes.removed))
        for name in (*changes.added, *changes.changed):
            _write_through(staging / name, files[name])
        _take_place(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _stage(folder: Path, staging: Path, left_out: set[str]) -> None:
    """Put links to the files of a folder into `staging`, and copies of its folders."""
    if not folder.is_dir():
        return
    for item in folder.iterdir():
        # Python's bytecode is of the old modules
        if item.name in left_out or item.name == "__pycache__":
            continue
        if item.is_dir():
            shutil.copytree(item, staging / item.name, symlinks=True)
        else:
            _link(item, staging / item.name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a filesystem without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def _write_through(path: Path, text: str) -> None:
    """Write a file and wait until the disk has it, so that no power cut leaves an empty one."""
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _take_place(staging: Path, folder: Path) -> None:
    """Put `staging` in the place of `folder`. Afterwards `staging` is the folder to delete."""
    if not folder.exists():
        staging.rename(folder)
    elif not _exchange(staging, folder):
        _rename_twice(staging, folder)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step (Linux). Returns False if the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    done: int = rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return done == 0


def _rename_twice(staging: Path, folder: Path) -> None:
    """Put `staging` in the place of `folder`, which is not there for a moment between two steps."""
    old = Path(f"{staging}.old")
    folder.rename(old)
    try:
        staging.rename(folder)
    except BaseException:  # a KeyboardInterrupt too
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
