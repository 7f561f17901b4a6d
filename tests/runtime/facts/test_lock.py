"""A version of torch has facts of its own, or those of the nearest older one."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORT = """
import sys, warnings, torch
torch.__version__ = sys.argv[1]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import runtime
print([str(w.message) for w in caught if "nobody has run" in str(w.message)])
"""


def imported_with(version: str) -> subprocess.CompletedProcess[str]:
    """What it says to import the runtime where torch has another version."""
    command = [sys.executable, "-c", IMPORT, version]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("version", ["99.0.1+cpu", "2.100.0"])
def test_a_torch_that_nobody_has_run_is_named(version: str) -> None:
    """Versions are compared by numbers: 2.100 is later than 2.15."""
    told = imported_with(version).stdout
    assert f"torch {version.partition('+')[0]}: it takes that for 2." in told
    assert "python -m gen facts" in told


def test_an_older_torch_than_all_that_are_supported_is_refused() -> None:
    error = imported_with("2.9.1").stderr
    assert "ImportError: the runtime supports torch 2.12" in error
    assert error.rstrip().endswith("and later, not 2.9.1")


def test_a_build_between_two_versions_has_the_facts_of_the_older_one() -> None:
    """Nothing is said of it, and all records find their facts."""
    assert imported_with("2.13.7").stdout == "[]\n"
