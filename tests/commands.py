"""Commands of Python in a folder, as a user would type them.

`python(folder, "-m", "gen", "list")` does in `folder` what `python -m gen list` does there. A new
process would import torch first, which takes more than a second, and the tests run hundreds of
commands. So each command is a fork of one process that has done this and nothing else.

What torch reads of the environment when it is imported is that of the tests. A test whose command
needs another one, or torch not yet imported, starts a process of its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch"])


def python(
    folder: Path,
    *words: str,
    path: Sequence[Path] = (ROOT,),
    environment: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` in ``folder``, and return how it ended and what it printed.

    Args:
        words: ``-m MODULE …``, ``-c CODE …`` or ``SCRIPT …``.
        path: the folders of PYTHONPATH.
        environment: all other variables; without it those of this process, with one thread for
            each op.
        timeout: in seconds.

    Raises:
        TimeoutExpired: the command takes longer. It is killed.
    """
    base = os.environ | {"OMP_NUM_THREADS": "1"} if environment is None else environment
    variables = {**base, "PYTHONPATH": os.pathsep.join(map(str, path))}
    with tempfile.TemporaryDirectory() as prints:
        out, err = Path(prints, "out"), Path(prints, "err")
        process = _PROCESSES.Process(
            target=_command,
            args=(words, folder, variables, [*map(str, path), *_libraries()], prints),
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess(
            words, process.exitcode, out.read_text(), err.read_text()
        )


@functools.cache
def _libraries() -> list[str]:
    """Return where Python looks for modules if no variable names a folder."""
    program = "import json, sys; print(json.dumps(sys.path[1:]))"
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def _command(
    words: tuple[str, ...], folder: Path, variables: dict[str, str], path: list[str], prints: str
) -> None:
    """Be the process of a command."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for number, name in (1, "out"), (2, "err"):
        os.dup2(os.open(Path(prints, name), os.O_WRONLY | os.O_CREAT, 0o600), number)
    status = _status(words, path)
    # as at the end of the interpreter, which a process of multiprocessing does not reach
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _status(words: tuple[str, ...], path: list[str]) -> int:
    """Run the program, and return the status with which it ends."""
    try:
        _run(words, path)
    except SystemExit as exit:
        return _status_of(exit.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _status_of(code: object) -> int:
    """Return the status of ``sys.exit(code)``."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _run(words: tuple[str, ...], path: list[str]) -> None:
    kind, *rest = words
    if kind == "-m":
        sys.argv, sys.path = rest, [os.getcwd(), *path]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path = ["-c", *rest[1:]], ["", *path]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        assert not kind.startswith("-"), f"{kind}: not an option that these commands can have"
        sys.argv, sys.path = list(words), [os.path.dirname(kind), *path]
        runpy.run_path(kind, run_name="__main__")
