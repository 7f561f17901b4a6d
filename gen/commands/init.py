"""Run `gen init`: write a project with a matrix, for a new package or for an installed one."""

from __future__ import annotations

import argparse
import json
import keyword
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gen.errors import OverwriteError, nearest
from gen.package_names import DISTRIBUTION
from gen.plan.matrix_plan import load_plan
from gen.write import render, writer

if TYPE_CHECKING:  # which imports torch
    from gen.packages.package_scan import Entry, Scan
    from gen.packages.trials import Trial

TEMPLATES = Path(__file__).parents[1] / "templates" / "project"
PACKAGE_TEMPLATES = TEMPLATES.parent / "package"
_PLACES = {
    "gitignore": ".gitignore",
    "gitlab-ci.yml": ".gitlab-ci.yml",
    "pre-commit-config.yaml": ".pre-commit-config.yaml",
    "workflow.yml": ".github/workflows/matrix.yml",
}
"""The places of files whose template has another name."""
SHARED = (
    "Makefile.j2",
    "gitignore.j2",
    "gitlab-ci.yml.j2",
    "pre-commit-config.yaml.j2",
    "requirements.txt.j2",
    "tox.ini.j2",
    "workflow.yml.j2",
)
"""The templates of both kinds of project."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen init`."""
    parser.add_argument("folder", type=Path, help="the folder of the new project; absent or empty")
    parser.add_argument(
        "--package",
        metavar="NAME",
        help=(
            "test the functions of this installed package: its Functions, ops, modules and "
            "functions of tensors (default: write a package with one op)"
        ),
    )
    parser.add_argument(
        "--pick",
        metavar="A,B",
        help="with --package: only these functions, by name or by the end of a name",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --package: all functions that it has"
    )
    add_requirement_argument(parser)
    parser.epilog = "Then: cd FOLDER && make matrix && make test"


def add_requirement_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command that writes a project."""
    parser.add_argument(
        "--requirement",
        metavar="TEXT",
        help=(
            f"how requirements.txt names {DISTRIBUTION} (default: "
            "as it is installed here, from an index, a repository or a folder)"
        ),
    )


def run(args: argparse.Namespace) -> int:
    """Write the project and its generated modules, all or nothing."""
    require_empty(args.folder)
    if args.package is not None:
        return _run_for_package(args)
    if args.pick or args.yes:
        print("init: --pick and --yes need --package NAME", file=sys.stderr)
        return 2
    folder: Path = args.folder
    package = folder.resolve().name.replace("-", "_")
    if refusal := refusal_of_name(package):
        print(
            f"init: {refusal}; choose another folder, "
            f"or test what is installed by --package {package}",
            file=sys.stderr,
        )
        return 2
    words = {"package": package, "targets": "torch, runtime"} | versions(args.requirement)
    write_project(folder, files(TEMPLATES, words))
    print(f"{folder}: a project with one op. Next: cd {folder} && make matrix && make test")
    return 0


def refusal_of_name(package: str) -> str:
    """Return why a new package cannot have a name. Empty if it can."""
    if not package.isidentifier() or keyword.iskeyword(package):
        return f"{package!r} is no name for a package"
    if package in sys.stdlib_module_names or metadata.packages_distributions().get(package):
        return f"a package {package!r} is installed already"
    return ""


def _run_for_package(args: argparse.Namespace) -> int:
    """Write a project that tests an installed package."""
    from gen.packages.project import words
    from gen.packages.subprocesses import PackageError, scan_package, try_entries

    package: str = args.package
    try:
        scan = scan_package(package)
        chosen = choose(scan, args.pick, every=args.yes)
    except (PackageError, ChoiceError) as error:
        print(f"init: --package {package}: {error}{_other_name(package)}", file=sys.stderr)
        return 2
    entries = sorted(chosen, key=lambda entry: entry.rank)  # as they are tried
    trials = []
    for trial in try_entries(package, entries):
        print(f"  {trial.name}: {_word(trial)}", file=sys.stderr, flush=True)
        trials.append(trial)
    known = words(scan, entries, trials)
    if not known["rows"]:
        print(
            f"init: --package {package}: no guess of arguments worked for any function; "
            "write samples by hand (docs/matrix.md)",
            file=sys.stderr,
        )
        return 2
    known |= {"package": package, "package_requirement": _required(package)}
    texts = files(TEMPLATES, known | versions(args.requirement), SHARED)
    texts |= files(PACKAGE_TEMPLATES, known | versions(args.requirement))
    write_project(args.folder, texts)
    print(
        f"{args.folder}: {len(known['rows'])} functions of {package}, "
        f"{len(known['untested'])} not tested yet. Next: cd {args.folder} && make matrix"
    )
    return 0


def _other_name(name: str) -> str:
    """Return how a distribution is imported, if its modules have another name than it has."""
    distributions = metadata.packages_distributions()
    # pip takes `-` for `_`, and large letters for small ones.
    wanted = name.lower().replace("-", "_")
    modules = []
    for module, names in distributions.items():
        if wanted in [each.lower().replace("-", "_") for each in names]:
            modules.append(module)
    if not modules or name in modules:
        return ""
    others = ", ".join(f"--package {module}" for module in sorted(modules))
    return f"; what pip calls {name} is {others}"


def _word(trial: Trial) -> str:
    """Return what the terminal says of a trial."""
    if trial.reason_for_no_row:
        return trial.reason_for_no_row
    return "; ".join(["works", *(each for each in trial.remarks if "backward pass" in each)])


def _required(package: str) -> str:
    """Return the line of requirements.txt for the package under test."""
    names = metadata.packages_distributions().get(package)
    if not names:
        return f"# {package}: it belongs to no installed distribution; say here how pip gets it"
    return f"{names[0]}=={metadata.version(names[0])}"


def versions(requirement_text: str | None) -> dict[str, Any]:
    """Return what the templates of every project say of its environment."""
    return {
        "requirement": requirement_text or requirement(),
        "torch": metadata.version("torch").partition("+")[0],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def write_project(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files of a project and its generated modules, all or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The project is written to a folder of another name, which takes the place of the empty one at
    # once.
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for path, text in texts.items():
            (staging / path).parent.mkdir(parents=True, exist_ok=True)
            (staging / path).write_text(text, encoding="utf-8")
        # a project whose matrix has a mistake is not written at all
        modules = render.modules(load_plan(staging / "matrix.yaml"))
        generated = staging / "generated_tests"
        writer.write(
            generated,
            modules,
            writer.compare(generated, modules, render.is_generated, render.is_edited),
        )
        staging.chmod(0o755)  # `mkdtemp` makes a folder that only its owner may read
        staging.replace(folder)  # an empty folder is replaced
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def files(
    templates: Path, words: Mapping[str, Any], names: Sequence[str] | None = None
) -> dict[str, str]:
    """Return the files of a new project: relative path -> text.

    ``names``: only these templates.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(templates), undefined=StrictUndefined, keep_trailing_newline=True
    )
    texts = {}
    for name in names or sorted(environment.list_templates(extensions=["j2"])):
        path = name.removesuffix(".j2")
        place = _PLACES.get(path, path.replace("package/", f"{words['package']}/", 1))
        texts[place] = environment.get_template(name).render(words)
    return texts


def requirement() -> str:
    """Return how pip installs this distribution as it is installed here (PEP 610)."""
    distribution = metadata.distribution(DISTRIBUTION)
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin:
        return f"{DISTRIBUTION}=={distribution.version}"
    if "vcs_info" in origin:
        repository = origin["vcs_info"]
        # the commit, since a branch moves on
        return f"{DISTRIBUTION} @ {repository['vcs']}+{origin['url']}@{repository['commit_id']}"
    return f"{DISTRIBUTION} @ {origin['url']}"


_MOST_NAMES = 3  # of the files in a folder that is not empty


def require_empty(folder: Path) -> None:
    """Raise OverwriteError unless the folder is absent or empty."""
    # A link that leads nowhere is something too.
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise OverwriteError(f"{folder} is no folder: choose a name that does not exist yet")
    names = sorted(os.listdir(folder))
    if not names:
        return
    shown = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown += " …"
    raise OverwriteError(f"{folder} has {shown}: choose an empty folder, or a new name")


class ChoiceError(Exception):
    """Nothing can be chosen."""


def choose(scan: Scan, pick: str | None, *, every: bool) -> list[Entry]:
    """Return the entries of a package to test.

    ``pick``: names or ends of names, with commas between them. ``every``: all entries. Without
    both, a list with numbers asks on the terminal.
    """
    from gen.packages.package_scan import KINDS

    for each in scan.failed_imports:
        print(f"  {each.module} does not import: {each.error}", file=sys.stderr)
    if not scan.entries:
        kinds = ", ".join(KINDS.values())
        raise ChoiceError(f"it has nothing to test; looked for {kinds}")
    if pick is not None:
        return _named(scan.entries, pick.split(","))
    if every:
        return list(scan.entries)
    if not sys.stdin.isatty():
        raise ChoiceError(
            f"it has {len(scan.entries)} functions; choose some by --pick A,B or all by --yes"
        )
    return _asked(scan.entries)


def _named(entries: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries whose name is, or ends with, one of the names."""
    chosen: dict[str, Entry] = {}
    for name in map(str.strip, names):
        fit = [entry for entry in entries if f".{entry.name}".endswith(f".{name}")]
        if not fit:
            near = nearest(name, [entry.name.rpartition(".")[2] for entry in entries])
            hint = f" (nearest: {near})" if near else ""
            raise ChoiceError(f"--pick: it has no {name!r}{hint}")
        for entry in fit:
            chosen[entry.name] = entry
    return list(chosen.values())


def _asked(entries: Sequence[Entry]) -> list[Entry]:
    """Show the entries with numbers, and return those that are chosen."""
    from gen.packages.package_scan import KINDS

    for number, entry in enumerate(entries, 1):
        print(f"{number:4}  {entry.name}  ({KINDS[entry.kind]})")
    answer = input("Numbers to test, such as 1 3 4 (all: empty): ").replace(",", " ").split()
    known = {str(number): entry for number, entry in enumerate(entries, 1)}
    for word in answer:
        if word not in known:
            raise ChoiceError(f"there is no number {word}")
    return [known[word] for word in answer] or list(entries)
