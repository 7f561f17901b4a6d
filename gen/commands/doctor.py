"""Run `gen doctor`: what this package needs, what of it is here, and what to do about the rest.

    python       3.11.7              ok
    torch        2.13.0              ok
    numpy        not installed       missing   pip install 'numpy'

It imports Python's library and `packaging` alone. So it answers where torch does not import, and
where a package that the other commands need is missing. What torch and the runtime do is asked in
another process, which may die.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from gen.package_names import CHECKOUT, DISTRIBUTION, GENERATOR, RUNTIME
from gen.versions import own_version

__all__ = ["Finding", "add_arguments", "findings", "run"]

OK, MISSING, UNSUPPORTED, OPTIONAL = "ok", "missing", "unsupported", "optional"
_EXTRAS = {
    "cluster": "`matrix-gen run --cluster`",
    "onnx": "ONNX files of exported programs",
    "privacy": "what privacy a training by `examples/dp_sgd.py` has spent",
}
"""What the optional packages of users are for. Those of the checkout alone are not named."""
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300  # until a program has answered
_FACTS = Path(__file__).parents[2] / "runtime/facts/locks"
_PROBES = {
    ("commands",): f"import {GENERATOR}.cli; print('they import')",
    ("torch", "devices"): (
        "import torch; print(torch.__version__); names = ['cuda', 'mps', 'xpu']; "
        "print('cpu', *[name for name in names if getattr(torch, name).is_available()])"
    ),
    ("runtime", "native guards"): (
        f"import torch; from {RUNTIME}.func import grad, vmap; "
        f"from {RUNTIME}.native.library import library; "
        "x = vmap(grad(lambda x: x.sin()))(torch.zeros(3)); "
        "assert x.tolist() == [1.0, 1.0, 1.0], x; "
        "print('grad and vmap work'); print(library().describe())"
    ),
}
"""Programs that answer in their last lines, a line for each name."""


@dataclass(frozen=True)
class Finding:
    """The result of one question of the doctor."""

    what: str
    # A version, or a fact.
    found: str
    # "ok", "missing", "unsupported", or "optional" for something that need not be here.
    state: str = OK
    # Empty if all is ok.
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen doctor`: it has none."""
    parser.epilog = "Exit code 1 if something is missing or of a version that is not supported."


def run(args: argparse.Namespace | None = None) -> int:
    """Print what was found, and return 1 if something that is needed is missing."""
    print(f"matrix-gen {own_version()} {CHECKOUT or Path(__file__).parents[2]}")
    found = list(findings())
    width = max(len(finding.what) for finding in found)
    for finding in found:
        line = f"  {finding.state:11}  {finding.what:{width}}  {finding.found}"
        if finding.advice:
            line += f" -> {finding.advice}"
        print(line)
    faults = [finding.what for finding in found if finding.state in (MISSING, UNSUPPORTED)]
    if faults:
        print(f"to mend: {', '.join(faults)}")
        return 1
    print("all that is needed is here")
    return 0


def findings() -> Iterator[Finding]:
    """Yield what was looked for, the ground first: Python, packages, torch, the runtime, tools."""
    try:
        wanted = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield Finding("installation", "none", MISSING, "run `pip install -e .` in the checkout")
        return
    yield _python(SpecifierSet(wanted["Requires-Python"]))
    required = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    for requirement in required:
        # one with a marker belongs to an extra, which `_extras` looks for
        if requirement.marker is None:
            yield _package(requirement)
    yield from _extras(required)
    yield from _of_programs()
    yield _compiler()
    yield _project()


def _python(supported: SpecifierSet) -> Finding:
    version = platform.python_version()
    if supported.contains(version, prereleases=True):
        return Finding("python", version)
    return Finding("python", version, UNSUPPORTED, f"make an environment of Python {supported}")


def _package(requirement: Requirement) -> Finding:
    """Return whether a package that is always needed is here, in a version that will do."""
    version = _installed(requirement.name)
    advice = f"run `pip install '{requirement.name}{requirement.specifier}'`"
    if version is None:
        return Finding(requirement.name, "not installed", MISSING, advice)
    if not requirement.specifier.contains(version, prereleases=True):
        return Finding(requirement.name, version, UNSUPPORTED, advice)
    return Finding(requirement.name, version)


def _installed(name: str) -> str | None:
    """Return the version of a package. It is not imported, as a broken one may end the process."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _extras(required: list[Requirement]) -> Iterator[Finding]:
    """Yield the groups of optional packages, with those that are missing."""
    for extra, purpose in _EXTRAS.items():
        missing = []
        for requirement in required:
            marker = requirement.marker
            is_of_extra = marker is not None and marker.evaluate({"extra": extra})
            if is_of_extra and _installed(requirement.name) is None:
                missing.append(requirement.name)
        if missing:
            advice = f"for {purpose}: run `pip install '{DISTRIBUTION}[{extra}]'`"
            yield Finding(f"[{extra}]", f"without {', '.join(missing)}", OPTIONAL, advice)
        else:
            yield Finding(f"[{extra}]", "installed")


def _of_programs() -> Iterator[Finding]:
    """Yield what torch and the runtime answer. Each is asked only if those before have answered."""
    for names, program in _PROBES.items():
        answers = _ask(program, len(names))
        if isinstance(answers, Failure):
            yield Finding(names[0], answers.reason, MISSING, answers.advice)
            return
        for what, answer in zip(names, answers, strict=True):
            yield _judged(what, answer)


def _judged(what: str, answer: str) -> Finding:
    """Return the finding of an answer, by what it is about."""
    if what == "torch":
        # what is behind the plus says how torch was built: 2.13.0+cpu
        return _facts(answer.partition("+")[0])
    if what == "native guards" and not answer.startswith("in C++"):
        advice = f"for shorter calls of jit: run `python -m {RUNTIME} native`"
        return Finding(what, answer.partition(":")[0], OPTIONAL, advice)
    return Finding(what, answer)


def _facts(version: str) -> Finding:
    """Return whether the runtime knows the facts of this version of torch."""
    known = sorted(path.stem.removeprefix("torch-") for path in _FACTS.glob("torch-*.json"))
    if version in known:
        return Finding("facts of torch", f"{version}, which the runtime was tested with")
    return Finding(
        "facts of torch",
        f"none for {version}",
        OPTIONAL,
        f"run `matrix-gen facts`, which says what differs; tested: {', '.join(known)}",
    )


@dataclass(frozen=True)
class Failure:
    """Why a program has not answered, and how to learn more."""

    reason: str
    advice: str


def _ask(program: str, lines: int) -> list[str] | Failure:
    """Return the last lines that a program prints."""
    again = f"see all of it: python -c {shlex.quote(program)}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Failure(f"no answer in {_SECONDS} seconds", again)
    # the last lines, since an import may print something before them
    if done.returncode == 0:
        return done.stdout.splitlines()[-lines:]
    # the last line of a traceback is the error itself
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return Failure(said[-1], again)


def _compiler() -> Finding:
    """Return whether there is a compiler of C++, which Inductor and the native part need."""
    path = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if path is not None:
        return Finding("C++ compiler", path)
    advice = "for the targets dynamo and inductor and for native guards: install g++ or clang++"
    return Finding("C++ compiler", "none", OPTIONAL, advice)


def _project() -> Finding:
    """Return whether the current folder has a matrix."""
    if Path("matrix.yaml").is_file():
        return Finding("matrix.yaml", "in this folder")
    advice = "run `matrix-gen init FOLDER`, or go to the folder of a project"
    return Finding("matrix.yaml", "not in this folder", OPTIONAL, advice)
