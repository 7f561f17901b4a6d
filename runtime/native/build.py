"""Compile the native part: ``python -m runtime native [--force]``.

The file belongs to one version of torch and of Python. It lies in the user's cache folder, and is
used by each later process that finds it there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
from torch.utils import cpp_extension

from . import library

_ERRORS_SHOWN = 30  # lines of a compiler that refuses


class CannotBuild(Exception):
    """Say why there is no native part, and what to do."""


class NoCompiler(CannotBuild):
    """Say what this machine lacks."""


def main(arguments: list[str]) -> int:
    """Build the native part unless it is there. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog=library.COMMAND,
        description=(
            "Compile what compares the guards of jit in C++, for this torch and this Python. "
            f"{library.VARIABLE} names another folder than the user's cache."
        ),
    )
    parser.add_argument("--force", action="store_true", help="compile even if it is there")
    options = parser.parse_args(arguments)
    try:
        file = build(options.force)
    except CannotBuild as error:
        print(f"the native part was not built: {error}", file=sys.stderr)
        print("Without it guards compare in Python, with the same answers.", file=sys.stderr)
        return 1
    print(file)
    return 0


def build(force: bool = False) -> Path:
    """Compile the native part into the folder in use, and return its file.

    A file that is there and loads stays, unless ``force``. ``NoCompiler`` if there is none,
    ``CannotBuild`` if it refuses the source, or if the folder cannot be written to.
    """
    if library.is_off():
        raise CannotBuild(f"{library.VARIABLE}=0 switches it off; unset it")
    place = library.folder()
    if place is None:
        raise CannotBuild(f"this user has no cache folder; name another one in {library.VARIABLE}")
    file = library.file_in(place)
    if not force and file.exists() and library.library().module is not None:
        return file
    compiler = _compiler()
    _say(f"compiling {library.SOURCE.name} for torch {torch.__version__}: 15 to 60 seconds")
    start = time.monotonic()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            compiled = Path(folder) / file.name
            _run([*compiler, *_flags(), str(library.SOURCE), "-o", str(compiled), *_libraries()])
            _try_out(compiled)
            _move(compiled, file)
    except OSError as error:
        raise CannotBuild(f"{place} cannot be written to: {error.strerror}") from error
    library.forget()
    _say(f"built in {time.monotonic() - start:.0f} s")
    return file


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _compiler() -> list[str]:
    """Return the command of the compiler: that of ``CXX``, or ``c++``."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(command[0]) is None:
        raise NoCompiler(
            f"there is no C++ compiler {command[0]}. Install one, such as the package g++ of "
            "Debian or the command line tools of Xcode, or name another in CXX"
        )
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise NoCompiler(
            f"there is no Python.h in {headers}. Install the headers of this Python, such as the "
            "package python3-dev of Debian"
        )
    return command


def _flags() -> list[str]:
    """Return the options of the compiler, for this torch and this Python."""
    headers = [f"-I{path}" for path in cpp_extension.include_paths()]
    abi = int(torch.compiled_with_cxx11_abi())
    shared = ["-shared", "-fPIC"]
    if sys.platform == "darwin":
        # a bundle, which finds the symbols of Python in the process that loads it
        shared = ["-bundle", "-undefined", "dynamic_lookup"]
    return [
        "-std=c++20",
        "-O2",
        "-w",  # warnings of torch's headers
        *shared,
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f'-DRUNTIME_NATIVE_KEY="{library.key()}"',
        f"-I{sysconfig.get_paths()['include']}",
        *headers,
    ]


def _libraries() -> list[str]:
    """Return the options of the linker: torch's libraries, and where they lie."""
    folders = [f"-L{path}" for path in cpp_extension.library_paths()]
    return [*folders, "-ltorch_python", "-ltorch_cpu", "-lc10"]


def _run(command: list[str]) -> None:
    """Run ``command``. Raise ``CannotBuild`` with the beginning of its errors if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        shown = "\n".join(done.stderr.splitlines()[:_ERRORS_SHOWN])
        raise CannotBuild(f"{command[0]} ends with status {done.returncode}:\n{shown}")


def _try_out(file: Path) -> None:
    """Load a new file in a process of its own, and compare something with it."""
    program = (
        "import sys; from pathlib import Path; from runtime.native.library import load; "
        "batch = load(Path(sys.argv[1])).Batch('classes', [sys]); "
        "assert not batch(); batch.note(batch.look()); assert batch()"
    )
    _run([sys.executable, "-c", program, str(file)])


def _move(compiled: Path, file: Path) -> None:
    """Put a file in its place, and its digest last: a process that reads meanwhile does not use
    it."""
    digest = library.digest_beside(file)
    digest.unlink(missing_ok=True)
    unfinished = compiled.with_suffix(".sha256")
    unfinished.write_text(hashlib.sha256(compiled.read_bytes()).hexdigest(), "ascii")
    compiled.chmod(0o644)
    os.replace(compiled, file)
    os.replace(unfinished, digest)
