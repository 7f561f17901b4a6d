"""One command in a small project with one bad input, in a process of its own: what it printed,
returned and touched."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
LIMIT = 60.0  # seconds after which a command hangs
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
}


@dataclass(frozen=True)
class BadInput:
    """A row of `cases.yaml`. The commands before the last one must succeed."""

    group: str
    what: str
    run: tuple[str, ...]
    says: tuple[str, ...]
    code: int
    edit: Mapping[str, str]
    add: str
    before: str
    full_disk: bool
    beyond_schema: bool

    @property
    def data(self) -> str:
        """The text of the matrix."""
        text = MATRIX
        for old, new in self.edit.items():
            assert old in text, f"{self.what}: the matrix has no {old!r}"
            text = text.replace(old, new)
        return text + self.add


@dataclass(frozen=True)
class Outcome:
    """`code` is None if the command hung. `outside` has the paths that it changed beyond the
    temporary folder."""

    code: int | None
    text: str
    outside: tuple[str, ...]


MATRIX = (HERE / "matrix.yaml").read_text("utf-8")


def bad_inputs() -> list[BadInput]:
    """Every row of `cases.yaml`."""
    groups: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        (HERE / "cases.yaml").read_text("utf-8")
    )
    return [_bad_input(group, row) for group, rows in groups.items() for row in rows]


def _bad_input(group: str, row: dict[str, Any]) -> BadInput:
    run, says = row.pop("run", "gen generate"), row.pop("says")
    found = BadInput(
        group,
        row.pop("what"),
        (run,) if isinstance(run, str) else tuple(run),
        (says,) if isinstance(says, str) else tuple(says),
        row.pop("code", 2),
        row.pop("edit", {}),
        row.pop("add", ""),
        row.pop("before", ""),
        row.pop("full_disk", False),
        row.pop("beyond_schema", False),
    )
    assert not row, f"{found.what}: unknown keys {', '.join(row)}"
    return found


def state(folder: Path, *, but: str = "") -> dict[str, object]:
    """Every path below a folder with its content, links and special files by their kind."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if but and name.split("/")[0] == but:
            continue
        found[name] = (
            f"-> {os.readlink(path)}"
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else path.lstat().st_mode
        )
    return found


def prepare(bad: BadInput, project: Path) -> None:
    """Write the matrix with its mistake, and what else the input is made of."""
    (project / "matrix.yaml").write_text(bad.data, "utf-8")
    if bad.before:
        subprocess.run(["sh", "-ec", bad.before], cwd=project, check=True)


def attempt(
    command: str, project: Path, main: Callable[[str], int], *, full_disk: bool = False
) -> Outcome:
    """Run `main(command)` in a child process in the folder `project`. It may write within the
    folder around that."""
    output, child_output = os.pipe()
    touched, child_touched = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of the threads of the test runner
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        for pipe in (output, touched):
            os.close(pipe)
        _child(command, project, main, child_output, child_touched, full_disk)
    for pipe in (child_output, child_touched):
        os.close(pipe)
    texts = _read({output: b"", touched: b""}, pid)
    ended, status = os.waitpid(pid, 0 if texts is not None else os.WNOHANG)
    if texts is None:
        os.kill(pid, signal.SIGKILL)
        ended or os.waitpid(pid, 0)
        return Outcome(None, f"no end after {LIMIT:g} s", ())
    outside = texts[touched].decode().splitlines()
    return Outcome(
        os.waitstatus_to_exitcode(status),
        texts[output].decode(errors="replace"),
        tuple(dict.fromkeys(outside)),
    )


def _read(texts: dict[int, bytes], pid: int) -> dict[int, bytes] | None:
    """What comes through the pipes until both are closed; None if that takes too long."""
    end, open_ = time.monotonic() + LIMIT, set(texts)
    try:
        while open_:
            ready, _, _ = select.select(list(open_), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            for pipe in ready:
                piece = os.read(pipe, 65536)
                texts[pipe] += piece
                if not piece:
                    open_.discard(pipe)
    finally:
        for pipe in texts:
            os.close(pipe)
    return texts


def _child(
    command: str,
    project: Path,
    main: Callable[[str], int],
    output: int,
    touched: int,
    full_disk: bool,
) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1), os.dup2(output, 2)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, closefd=False)
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        os.chdir(project)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(project))
        _separate(project)
        _watch(project.parent, touched)
        if full_disk:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        code = _run(main, command)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def _run(main: Callable[[str], int], command: str) -> int:
    try:
        return main(command)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1


def _separate(project: Path) -> None:
    """Leave nothing of the pytest around this process that a command could notice."""
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # looking for plug-ins takes a second
    os.environ["TMPDIR"] = tempfile.tempdir = str(project.parent / "temporary")
    warnings.resetwarnings()


def _watch(root: Path, pipe: int) -> None:
    """Write each path beyond `root` that this process or a child of it changes to `pipe`."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            paths = arguments[:1]
        elif event in CHANGES:
            paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
        else:
            return
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):
                real = os.path.realpath(os.fsdecode(path))
                if not real.startswith((f"{root}/", "/dev/", "/proc/")):
                    os.write(pipe, f"{event} {real}\n".encode())

    sys.addaudithook(hook)
