"""Commands that are run in the folder of a project, with packages that no index has."""

import subprocess
from pathlib import Path

from tests import commands
from tests.commands import ROOT


def python(folder: Path, packages: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`. It finds this checkout and what lies in `packages`."""
    return commands.python(folder, *args, path=(ROOT, packages))


def init(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``gen init`` in a folder of packages."""
    return python(folder, folder, "-m", "gen", "init", *args, "--requirement", "the-matrix==1.0")
