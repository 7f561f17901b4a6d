"""`python -m runtime native` builds the native part once. Any other file is not used."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from runtime import jit
from runtime.__main__ import main
from runtime.native import library as native


@pytest.fixture
def folder(native_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder with the native part, which is in use."""
    copied = tmp_path / "native"
    copied.mkdir()
    file = native.file_in(native_folder)
    for path in (file, native.digest_beside(file)):
        shutil.copy(path, copied)
    monkeypatch.setenv(native.VARIABLE, str(copied))
    return copied


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in use without the native part."""
    monkeypatch.setenv(native.VARIABLE, str(tmp_path / "none"))
    return tmp_path / "none"


def guards() -> str:
    """What a report says of the guards of a function that is called twice."""
    f = jit(lambda x: x * 2)
    for _ in range(2):
        assert f(torch.ones(2)).tolist() == [2.0, 2.0]
    lines = str(jit.explain(f)).splitlines()
    return next(line for line in lines if line.startswith("guards compare"))


def test_a_report_says_where_guards_compare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert guards() == "guards compare in C++"
    monkeypatch.setenv(native.VARIABLE, "0")
    assert guards() == "guards compare in Python: RUNTIME_NATIVE=0 in the environment"


def test_without_the_command_guards_compare_in_python(empty: Path) -> None:
    assert guards().endswith("in Python: `python -m runtime native` builds the native part")
    assert not empty.exists()


def test_the_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert native.folder() == Path("/caches/torch-transform-matrix")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert native.folder() == Path("/home/somebody/.cache/torch-transform-matrix")


def test_a_user_without_a_cache_folder_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "nowhere")
    assert "this user has no cache folder; RUNTIME_NATIVE names another" in guards()
    assert main(["native"]) == 1
    assert "name another one in RUNTIME_NATIVE" in capsys.readouterr().err


def test_what_is_built_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = native.file_in(folder)
    before = file.stat().st_mtime_ns
    assert main(["native"]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert file.stat().st_mtime_ns == before


def test_no_compiler_is_an_error_that_says_what_to_do(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    assert main(["native"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "there is no C++ compiler no-such-compiler" in shown.err
    assert "guards compare in Python, with the same answers" in shown.err


def test_no_headers_of_python_are_an_error_that_says_what_to_do(
    empty: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert main(["native"]) == 1
    assert f"there is no Python.h in {tmp_path}" in capsys.readouterr().err


def test_what_the_compiler_says_is_shown(
    empty: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'batches.cpp:1: it is wrong' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert main(["native"]) == 1
    shown = capsys.readouterr().err
    assert "ends with status 3:\nbatches.cpp:1: it is wrong" in shown
    assert list(empty.iterdir()) == []


def test_a_file_that_does_not_work_is_not_kept(
    empty: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiler = tmp_path / "compiler"
    # writes its arguments where the library should be
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; echo "$@" > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert main(["native"]) == 1
    assert "ImportError" in capsys.readouterr().err
    assert list(empty.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(native.VARIABLE, str(tmp_path / "file"))
    monkeypatch.setenv("CXX", sys.executable)
    assert main(["native"]) == 1
    assert "cannot be written to" in capsys.readouterr().err


def test_nothing_is_built_where_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(native.VARIABLE, "0")
    assert main(["native", "--force"]) == 1
    assert "RUNTIME_NATIVE=0 switches it off" in capsys.readouterr().err


def _cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def _no_library(file: Path) -> None:
    file.write_text("no library")
    native.digest_beside(file).write_text(hashlib.sha256(b"no library").hexdigest())


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (_cut_off, "its digest is not that of the file that was built"),
    "without a digest": (lambda file: native.digest_beside(file).unlink(), "its digest"),
    "no library": (_no_library, "file too short|invalid ELF header|not a mach-o"),
    "open to others": (lambda file: file.chmod(0o666), "other users may write to it"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_warning_and_python_compares(folder: Path, damage: str) -> None:
    change, text = DAMAGE[damage]
    change(native.file_in(folder))
    with pytest.warns(UserWarning, match=f"the native part .* is not used: .*({text})"):
        assert "in Python" in guards()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f"in Python: {native.file_in(folder)} is not used" in guards()


def test_a_file_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = native.file_in(folder).stat().st_uid
    if owner == 0:  # what root has built, all may use
        if os.getuid() != 0:
            pytest.skip("the file is root's, and this user cannot give it away")
        os.chown(native.file_in(folder), 12345, -1)
    monkeypatch.setattr(os, "getuid", lambda: owner + 54321)
    with pytest.warns(UserWarning, match="another user owns it"):
        assert "in Python" in guards()


def test_a_file_for_another_source_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = native.file_in(folder)
    monkeypatch.setattr(native, "key", lambda: "f" * 64)
    renamed = native.file_in(folder)
    assert renamed != built
    assert "builds the native part" in guards()
    native.forget()
    built.rename(renamed)
    native.digest_beside(built).rename(native.digest_beside(renamed))
    with pytest.warns(UserWarning, match="built for another source, torch or Python"):
        assert "in Python" in guards()


def test_another_process_uses_what_was_built(folder: Path) -> None:
    program = (
        "import torch; from runtime import jit\n"
        "f = jit(torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3))))\n"
        "for _ in range(3): f(torch.ones(2))\n"
        "print(str(jit.explain(f)).splitlines()[-1])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "guards compare in C++\n"
