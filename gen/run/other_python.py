"""Runs the matrix under another Python, which may have another torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gen.run.results import ResultsError

__all__ = ["Job", "is_python", "results_under"]

_ASK = "import platform, torch; print('is', platform.python_version(), torch.__version__)"
_STDERR = 2  # its descriptor; standard output is for what changed
_ENDED = (0, 1)  # pytest's exit codes of a run that came to its end


@dataclass(frozen=True)
class Job:
    """What to run. ``tests``: the folder of the generated modules. ``select``: an expression for
    ``pytest -k``."""

    target: str
    tier: str
    tests: Path
    workers: int
    select: str = ""


def is_python(name: str) -> bool:
    """Whether ``name`` is a program: the path of one, or a command."""
    path = Path(name)
    if path.is_dir() or path.suffix == ".jsonl":
        return False
    return shutil.which(name) is not None


def results_under(python: str, job: Job, folder: Path) -> Path:
    """Run ``job`` with ``python`` and return its results file, which is in ``folder``. pytest's
    progress goes to standard error. :class:`ResultsError` if it does not come to its end."""
    version, torch = _versions(python)
    words = [job.target, f"torch-{torch}", f"python-{version}", job.tier]
    out = folder / f"results-{re.sub(r'[^A-Za-z0-9._]+', '_', '-'.join(words))}.jsonl"
    print(f"{python}: target {job.target}, torch {torch}, Python {version}", file=sys.stderr)
    select = ["-k", job.select] if job.select else []
    command = [
        *(python, "-m", "pytest", str(job.tests), "-q", "-p", "no:cacheprovider"),
        *("--target", job.target, "--tier", job.tier, "--results", str(out)),
        *("-n", str(job.workers), *select),
    ]
    done = subprocess.run(command, env=_environment(), stdout=_STDERR, check=False)
    if done.returncode not in _ENDED:
        raise ResultsError(f"{python}: the run ended with exit status {done.returncode}")
    return out


def _versions(python: str) -> tuple[str, str]:
    """The versions of a Python and of its torch."""
    asked = subprocess.run(
        [python, "-c", _ASK], env=_environment(), capture_output=True, text=True, check=False
    )
    said = re.search(r"^is (\S+) (\S+)$", asked.stdout, re.MULTILINE)
    if said is None:
        last = (asked.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ResultsError(f"{python}: it is no Python with torch ({last})")
    return said[1], said[2].partition("+")[0]


def _environment() -> dict[str, str]:
    """The environment in which this package and the project's modules are found."""
    places = [os.getcwd(), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
