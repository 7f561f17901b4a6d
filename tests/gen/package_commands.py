"""Commands that are run in the folder of a project, with packages that no index has."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(folder: Path, packages: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`. It finds this checkout and what lies in `packages`."""
    path = os.pathsep.join((str(ROOT), str(packages)))
    return subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


def init(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``gen init`` in a folder of packages."""
    return python(folder, folder, "-m", "gen", "init", *args, "--requirement", "the-matrix==1.0")
