"""The device of `examples/slate` works right, and holds the first level of the matrix."""

from __future__ import annotations

from pathlib import Path

from tests.commands import ROOT, python

PATH = [ROOT / "examples/slate", ROOT]


def test_the_claims_of_on_slate_hold_in_a_process_that_has_the_device() -> None:
    file = Path(__file__).with_name("on_slate.py")
    words = ["-q", "--noconftest", "-p", "no:cacheprovider", str(file)]
    done = python(ROOT, "-m", "pytest", *words, path=PATH)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "passed" in done.stdout


def test_the_device_holds_the_level_of_registration(tmp_path: Path) -> None:
    words = ["generated_tests/test_registration.py", "--device", "slate", "--backend", "slate"]
    words += ["--target", "torch", "--level", "1", "-q", "-p", "no:cacheprovider"]
    words += ["--results", str(tmp_path / "results.jsonl")]
    done = python(ROOT, "-m", "pytest", *words, path=PATH)
    assert "level 1, registration: 5 passed" in done.stdout, done.stdout[-4000:]
