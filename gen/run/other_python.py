"""Run the matrix under another Python, which may have another torch."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gen.package_names import CHECKOUT
from gen.run.results import ResultsError

__all__ = ["Job", "OtherPython", "asked", "is_python"]

_FOLDER = Path(".cache/matrix/diff")
_ASK = "import platform, torch; print('is', platform.python_version(), torch.__version__)"
_STDERR = 2  # its descriptor; standard output is for what changed
_ENDED = (0, 1)  # pytest's exit codes of a run that came to its end
_NO_TESTS = 5  # pytest's exit code of a run that collected nothing


@dataclass(frozen=True)
class Job:
    """The cells that another Python is to run."""

    target: str
    tier: str
    # The folder of the generated modules.
    tests: Path
    workers: int
    # An expression for `pytest -k`.
    select: str = ""

    def check(self) -> None:
        """Raise :class:`ResultsError` if there is nothing to run."""
        if not self.tests.is_dir():
            raise ResultsError(
                f"--tests {self.tests}: no such folder; `python -m gen generate` writes the "
                "modules that run under a Python"
            )
        if next(self.tests.glob("test_*.py"), None) is None:
            raise ResultsError(
                f"--tests {self.tests}: it has no modules test_*.py; `python -m gen generate` "
                "writes them"
            )


def is_python(name: str) -> bool:
    """Return whether ``name`` is a program: the path of one, or a command."""
    path = Path(name)
    if path.is_dir() or path.suffix == ".jsonl":
        return False
    if path.is_file() and not os.access(path, os.X_OK):
        return False
    return shutil.which(name) is not None


@dataclass(frozen=True)
class OtherPython:
    """A Python, and the versions of itself and of its torch."""

    name: str
    version: str
    torch: str

    def results(self, job: Job) -> Path:
        """Return the file for the results of a job.

        It is another one for each Python, even if two have the same versions, and for each
        selection of cells.
        """
        # The path itself: links of two environments may lead to one Python.
        program = os.path.abspath(shutil.which(self.name) or self.name)
        rest = "\0".join((program, self.torch, job.select, str(job.tests.resolve())))
        words = [
            job.target,
            f"torch-{self.torch}",
            f"python-{self.version}",
            job.tier,
            hashlib.blake2b(rest.encode(), digest_size=4).hexdigest(),
        ]
        return _FOLDER / f"results-{re.sub(r'[^A-Za-z0-9._]+', '_', '-'.join(words))}.jsonl"

    def run(self, job: Job) -> Path:
        """Run a job and return its results file. pytest's progress goes to standard error.

        Raises :class:`ResultsError` if the run does not come to its end.
        """
        out = self.results(job)
        out.unlink(missing_ok=True)  # of a run before, which this one may not replace
        print(
            f"{self.name}: target {job.target}, torch {self.torch}, Python {self.version}",
            file=sys.stderr,
        )
        select = ["-k", job.select] if job.select else []
        command = [
            *(self.name, "-m", "pytest", str(job.tests), "-q", "-p", "no:cacheprovider"),
            *("--target", job.target, "--tier", job.tier, "--results", str(out)),
            *("-n", str(job.workers), *select),
        ]
        done = subprocess.run(command, env=_environment(), stdout=_STDERR, check=False)
        if done.returncode == _NO_TESTS or (done.returncode in _ENDED and not out.exists()):
            raise ResultsError(f"{self.name}: no cell ran; {_advice(job)}")
        if done.returncode not in _ENDED:
            raise ResultsError(
                f"{self.name}: the run ended with exit status {done.returncode}; pytest says why "
                "above"
            )
        return out


def _advice(job: Job) -> str:
    """Return advice for a job without cells."""
    if not job.select:
        return f"`python -m gen list` names those of {job.tests}"
    return f"-k {job.select!r} matches none, and `python -m gen list` names those there are"


def asked(name: str) -> OtherPython:
    """Ask a Python for its version and that of its torch. Raises :class:`ResultsError` if it has no
    torch.
    """
    try:
        answer = subprocess.run(
            [name, "-c", _ASK], env=_environment(), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ResultsError(f"{name}: it does not start ({error.strerror})") from error
    versions = re.search(r"^is (\S+) (\S+)$", answer.stdout, re.MULTILINE)
    if versions is None:
        lines = answer.stderr.strip().splitlines()
        # The last line of a traceback names the error.
        reason = lines[-1] if lines else "it says nothing"
        raise ResultsError(f"{name}: it is no Python with torch ({reason})")
    return OtherPython(name, versions[1], versions[2])


def _environment() -> dict[str, str]:
    """Return an environment in which this package and the project's modules can be imported."""
    # An installed wheel lies beside packages of this Python, which are not for the other one.
    places = [os.getcwd(), str(CHECKOUT or ""), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
