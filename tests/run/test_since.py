"""`pytest --since` runs the cells that a change can affect, and never too few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_cells_that_a_change_can_affect_run() -> None:
    # in a process of its own: the tests fork theirs for each cell, and this one may be large
    cases = Path(__file__).with_name("since_cases.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)],
        cwd=cases.parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert " passed" in done.stdout
