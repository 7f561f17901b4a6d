"""Run `gen init`: write a new project with a matrix for somebody's own package."""

from __future__ import annotations

import argparse
import json
import keyword
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from gen.errors import OverwriteError
from gen.plan.matrix_plan import load_plan
from gen.write import render, writer

DISTRIBUTION = "torch-transform-matrix"
TEMPLATES = Path(__file__).parents[1] / "templates" / "project"
_PLACES = {"gitignore": ".gitignore", "workflow.yml": ".github/workflows/matrix.yml"}
"""The places of files whose template has another name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen init`."""
    parser.add_argument("folder", type=Path, help="the folder of the new project; absent or empty")
    parser.add_argument(
        "--package",
        metavar="NAME",
        help="the package with the ops (default: the name of the folder)",
    )
    parser.add_argument(
        "--requirement",
        metavar="TEXT",
        help=(
            f"how requirements.txt names {DISTRIBUTION} (default: "
            "as it is installed here, from an index, a repository or a folder)"
        ),
    )
    parser.epilog = "Then: cd FOLDER && make matrix && make test"


def run(args: argparse.Namespace) -> int:
    """Write the project and its generated modules, all or nothing."""
    folder: Path = args.folder
    package = args.package or folder.resolve().name.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package):
        print(
            f"init: {package!r} is no name for a package; choose one with --package",
            file=sys.stderr,
        )
        return 2
    if package in sys.stdlib_module_names or metadata.packages_distributions().get(package):
        print(
            f"init: a package {package!r} is installed already; choose another name with --package",
            file=sys.stderr,
        )
        return 2
    _require_empty(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The project is written to a folder of another name, which takes the place of the empty one at
    # once.
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for path, text in files(package, args.requirement or requirement()).items():
            (staging / path).parent.mkdir(parents=True, exist_ok=True)
            (staging / path).write_text(text, encoding="utf-8")
        modules = render.modules(load_plan(staging / "matrix.yaml"))
        generated = staging / "generated_tests"
        writer.write(
            generated,
            modules,
            writer.compare(generated, modules, render.is_generated, render.is_edited),
        )
        staging.chmod(0o755)
        staging.replace(folder)  # an empty folder is replaced
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    print(f"{folder}: a project with one op. Next: cd {folder} && make matrix && make test")
    return 0


def files(package: str, required: str) -> dict[str, str]:
    """Return the files of a new project: relative path -> text.

    ``required``: the line of requirements.txt for this distribution.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True
    )
    words = {
        "package": package,
        "requirement": required,
        "torch": metadata.version("torch").partition("+")[0],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    texts = {}
    for name in sorted(environment.list_templates(extensions=["j2"])):
        path = name.removesuffix(".j2")
        place = _PLACES.get(path, path.replace("package/", f"{package}/", 1))
        texts[place] = environment.get_template(name).render(words)
    return texts


def requirement() -> str:
    """Return how pip installs this distribution as it is installed here (PEP 610)."""
    distribution = metadata.distribution(DISTRIBUTION)
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin:
        return f"{DISTRIBUTION}=={distribution.version}"
    if "vcs_info" in origin:
        return (
            f"{DISTRIBUTION} @ "
            f"{origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"
        )
    return f"{DISTRIBUTION} @ {origin['url']}"


def _require_empty(folder: Path) -> None:
    """Raise OverwriteError unless the folder is absent or empty."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OverwriteError(f"{folder} is no folder: choose a name that does not exist yet")
    if folder.is_dir() and (there := sorted(p.name for p in folder.iterdir())):
        raise OverwriteError(
            f"{folder} has {', '.join(there[:3])}{' …' if there[3:] else ''}: "
            "choose an empty folder, or a new name"
        )
