"""The device that the matrix is tried on works right. Its claims stand in `on_shelf.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_claims_of_on_shelf_hold_in_a_process_that_has_the_device() -> None:
    file = Path(__file__).with_name("on_shelf.py")
    # torch's engine counts devices when it starts, as it does in the tests' conftest
    words = ["-q", "--noconftest", "-p", "no:cacheprovider", str(file)]
    command = [sys.executable, "-m", "pytest", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "passed" in run.stdout
