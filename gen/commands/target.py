"""Run `gen target`: begin a target of your own, check one, or list the words for what one lacks."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from gen.commands.init import (
    TEMPLATES,
    add_requirement_argument,
    files,
    refusal_of_name,
    require_empty,
    versions,
    write_project,
)
from gen.devices.device import DeviceError, declare
from gen.package_names import DISTRIBUTION
from gen.plan.matrix_plan import add_matrix_arguments
from gen.run.project_defaults import declared, devices_of
from gen.targets import names
from gen.targets.lacking_words import page

__all__ = ["KINDS", "add_arguments", "run"]


@dataclass(frozen=True)
class Kind:
    """A kind of target, and what its README says."""

    help: str
    about: str
    module: str  # of the implementation, in the package
    implementation_is: str
    called: str  # what calls of the target come to
    steps: tuple[str, ...]

    @property
    def words(self) -> dict[str, object]:
        """Return what the templates ask of a kind."""
        return {
            "about": self.about,
            "module": self.module,
            "implementation": f"{self.module}.py",
            "implementation_is": self.implementation_is,
            "called": self.called,
            "steps": self.steps,
        }


KINDS: dict[str, Kind] = {
    "device": Kind(
        "torch's ops on a device of yours",
        "The device has its memory on the host, and runs torch's CPU kernels there. So the first "
        "cells pass before you have written a kernel.",
        "backend",
        "the device: registration, memory, copies, kernels",
        "the device",
        (
            "Put your memory in the place of `_allocated`, and your copies in that of `_copied`. "
            "Level 1 shows whether copies are right.",
            "Replace the lines of `KERNELS` one by one. `pytest generated_tests --level 3` runs "
            "one level of `matrix.yaml`, and names the op to write next.",
            "Add rows: a cell of an op without a kernel fails with NotImplementedError. "
            "`matrix-gen lacks` makes entries of these.",
        ),
    ),
    "library": Kind(
        "a library like torch, whose tensors are a subclass of torch's",
        "A tensor of the library holds one of torch, and its ops run torch's kernels. So the first "
        "cells pass before you have written a kernel.",
        "tensors",
        "the library: its tensors, and what their ops do",
        "the library",
        (
            "Put what your library holds in the place of `Boxed.inner`.",
            "Write your kernels into `KERNELS`, or call your library in `__torch_dispatch__`.",
            "Remove words of `lacks`, such as `trace`, and see what their cells say.",
        ),
    ),
    "framework": Kind(
        "another framework such as JAX, tinygrad or MLX, by adapters",
        "The framework is NumPy, until you put yours in its place. NumPy takes no derivatives, so "
        "the cells of these are lacking.",
        "adapter",
        "the framework: its arrays, two conversions, its ops by their names in the matrix",
        "the framework",
        (
            "Put the arrays of your framework in the place of NumPy's, in `to_framework` and "
            "`to_torch`.",
            "Write its ops into `OPS`. A cell of an op that is not there is lacking.",
            "Write `vjp`, `jvp`, `jit` and others in `target.py`, each as the framework has it, "
            "and remove its word of `lacks`.",
        ),
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `gen target`."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_init(commands.add_parser("init", help="a new package with a target, and a matrix of it"))
    _add_check(commands.add_parser("check", help="does a target fulfil the protocol?"))
    words = commands.add_parser("words", help="the words for what a target lacks, as a table")
    words.set_defaults(action=_words)


def _add_init(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gen target init`."""
    parser.description = "Write a package with a target, a matrix that uses it, and its tests."
    parser.add_argument("folder", type=Path, help="the folder of the new package; absent or empty")
    kinds = "; ".join(f"{name}: {kind.help}" for name, kind in KINDS.items())
    parser.add_argument("--kind", choices=KINDS, required=True, help=kinds)
    add_requirement_argument(parser)
    parser.epilog = "Then: cd FOLDER && make matrix && make test"
    parser.set_defaults(action=_init)


def _add_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gen target check`."""
    parser.description = (
        "Run small cells through each member of a target, and look at what it takes and returns."
    )
    parser.add_argument("target", metavar="NAME", help="a target, as --target names it")
    add_matrix_arguments(parser)
    parser.add_argument("--device", default="cpu", help="where the target runs (default cpu)")
    parser.add_argument(
        "--backend", metavar="MODULE", help="what registers the device when imported"
    )
    parser.epilog = (
        "Exit codes: 0 it does, 1 a member is faulty or `lacks` has a text that is no word, "
        "2 there is no such target."
    )
    parser.set_defaults(action=_check)


def run(args: argparse.Namespace) -> int:
    """Run one of the commands. Return its exit code."""
    code: int = args.action(args)
    return code


def _init(args: argparse.Namespace) -> int:
    """Write the package and its generated modules, all or nothing."""
    require_empty(args.folder)
    folder: Path = args.folder
    package = folder.resolve().name.replace("-", "_")
    refusal = refusal_of_name(package)
    if package in names():
        refusal = f"a target {package!r} is there already"
    if refusal:
        print(f"target init: {refusal}; choose another folder", file=sys.stderr)
        return 2
    templates = TEMPLATES.parent / "target"
    words = {"package": package, "kind": args.kind, "target": package}
    words |= KINDS[args.kind].words | versions(args.requirement)
    if args.kind == "device":
        words["device"] = package
    shared = ("Makefile.j2", "gitignore.j2", "requirements.txt.j2")
    texts = files(TEMPLATES, words, shared)
    texts |= files(templates / "common", words) | files(templates / args.kind, words)
    write_project(folder, texts)
    print(
        f"{folder}: a target of kind {args.kind}. Next: cd {folder} && make matrix && make test; "
        f"where {DISTRIBUTION} is installed, `pytest generated_tests` runs at once"
    )
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print what is so of each member and of each word. Return the exit code."""
    from gen.conformance.check_report import report

    declare(devices_of(declared(args.matrix.parent), args.device, args.backend))
    try:
        return report(args.target, args.device, args.matrix)
    except DeviceError as error:
        print(f"target check: --device {args.device}: {error}", file=sys.stderr)
        return 2
    except LookupError as error:
        print(f"target check: {error.args[0]}", file=sys.stderr)
        return 2


def _words(args: argparse.Namespace) -> int:
    """Print the table of words."""
    print(page(), end="")
    return 0
