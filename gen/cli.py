"""Run the command line: `python -m gen …`, installed as `matrix-gen`.

Exit codes: 0 if all is well, 1 if something is stale or failed, 2 if the input is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from gen.errors import MatrixError, OverwriteError
from gen.plan.cell_sets import Plan
from gen.plan.matrix_plan import (
    PLACES,
    add_matrix_arguments,
    cache_of,
    load_plan,
    write_coverage,
    write_places,
)
from gen.versions import own_version, release

__all__ = ["main"]

# Sub-commands with their own module, imported when used. Each module has
# add_arguments(parser) and run(args).
ELSEWHERE = {
    "init": (
        "gen.commands.init",
        "a new project with a matrix: of one op of your own, or of an installed package",
    ),
    "target": (
        "gen.commands.target",
        "begin a target of your own, check one, or list the words for what one lacks",
    ),
    "list": ("gen.commands.listing", "the cases, filtered by any axis, with counts; runs nothing"),
    "explain": (
        "gen.commands.explain",
        "why a case exists, is excluded, is expected to fail, or was dropped by reduction",
    ),
    "probe": (
        "gen.commands.probe",
        (
            "run an op over dtypes, layouts and transforms; print the YAML that it would need. "
            "A function of a package gets a row"
        ),
    ),
    "record": (
        "gen.commands.record_calls",
        "a new project with a matrix of the ops and functions of torch that a command calls",
    ),
    "script": (
        "gen.commands.script",
        (
            "a stand-alone program of what a cell does to one sample: "
            "actual, expected and why that is right"
        ),
    ),
    "soak": (
        "gen.commands.soak",
        (
            "draw cells beyond the list until the time is over; "
            "shrink what fails and group it by cause"
        ),
    ),
    "soak-programs": (
        "gen.commands.soak_programs",
        (
            "draw programs of views, writes and calls; "
            "compare a compiler with a model of tensors, and shrink what differs"
        ),
    ),
    "run": (
        "gen.commands.run",
        (
            "run cells on many machines, or on this one, with Dask; "
            "a stopped run goes on with --resume"
        ),
    ),
    "watch": (
        "gen.commands.watch",
        "run the cells that a change can affect, whenever a file changes",
    ),
    "bisect": (
        "gen.commands.bisect",
        "find the first commit at which a cell fails; your files stay as they are",
    ),
    "merge": (
        "gen.commands.merge",
        (
            "the results of all shards of a run as one file; "
            "refuses gaps, duplicates and mixtures by name"
        ),
    ),
    "catalog": (
        "gen.commands.write_catalog",
        "write what torch's OpInfo database says of its ops, for matrices that name this version",
    ),
    "facts": (
        "gen.commands.facts",
        "what the installed torch does otherwise than the version that is written down",
    ),
    "lacks": (
        "gen.commands.lacks",
        "the entries of what a device has no kernel for, from the results of a run on it",
    ),
    "durations": (
        "gen.commands.durations",
        "write matrix/durations.json, by which shards and groups are balanced, from results",
    ),
    "diff": (
        "gen.commands.diff",
        "what changed between runs, or between the torches of two Pythons",
    ),
    "doctor": (
        "gen.commands.doctor",
        "what is installed, supported and missing, and what to do about it",
    ),
    "report": ("gen.commands.report", "draw the HTML page of a results file"),
    "coverage": (
        "gen.commands.dispatcher_coverage",
        (
            "count which overloads of torch's dispatcher a run calls, by whom; "
            "the reason for each that it does not"
        ),
    ),
    "audit": (
        "gen.commands.audit",
        "plant faults in the target and count those that the matrix catches",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments).parse_args(arguments)
    # a target of the project has a name that only its matrix knows
    if hasattr(args, "target"):
        from gen.run.project_defaults import declare_targets_of

        declare_targets_of(getattr(args, "matrix", Path("matrix.yaml")).parent)
    try:
        code: int = args.run(args)
    except MatrixError as error:
        print(error, file=sys.stderr)
        count = len(error.problems)
        print(f"{count} mistake{'s' * (count != 1)}; nothing was written", file=sys.stderr)
        return 2
    except OverwriteError as error:
        print(f"{error}; nothing was written", file=sys.stderr)
        return 2
    except OSError as error:
        # `gen list | head`: Python would complain of the pipe once more when it ends
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()
            return 0
        print(
            f"{error.filename or 'a file'}: {error.strerror or error}; nothing was written there",
            file=sys.stderr,
        )
        return 2
    return code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands. Only the command that is asked for gets its arguments."""
    parser = argparse.ArgumentParser(
        prog="matrix-gen",
        description="matrix.yaml -> generated_tests/, and questions about it.",
        epilog=(
            "Exit codes: 0 all is well, 1 something is stale or failed, "
            "2 the input is wrong (every mistake is listed)."
        ),
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"matrix-gen {own_version()}",
        help="show the versions of this package, of torch and of Python",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, text in (
        (
            "generate",
            generate,
            "write the modules whose content changed, remove orphans; all or nothing",
        ),
        (
            "check",
            check,
            (
                "compare the files with the matrix and show the difference; "
                "1 if stale, edited by hand, orphaned or untracked"
            ),
        ),
        (
            "schema",
            schema,
            (
                "write the JSON Schemas, which editors use to complete and check matrix.yaml "
                "and the files that it includes"
            ),
        ),
    ):
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        add_matrix_arguments(command)
        if name != "schema":
            command.add_argument(
                "--out",
                type=Path,
                help="directory of generated modules (default: generated_tests beside the matrix)",
            )
        if name == "generate":
            command.add_argument(
                "--every",
                action="store_true",
                help="also the cells that reduction drops, as tier `all` (needs --out)",
            )
        if name == "check":
            command.add_argument(
                "--torch",
                nargs="+",
                type=release,
                default=(),
                metavar="VERSION",
                help="every condition `torch:` has to hold for one of these versions",
            )
        command.set_defaults(run=run)
    # A module is imported only if its command is asked for, so that `--help` stays fast.
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, text) in ELSEWHERE.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == asked:
            implementation = importlib.import_module(module)
            implementation.add_arguments(command)
            command.set_defaults(run=implementation.run)
    return parser


def generate(args: argparse.Namespace) -> int:
    """Write the changed modules, and print which ones changed."""
    from gen.write import render, writer

    if args.every and args.out is None:
        print(
            "generate --every: --out says where; generated_tests has the cells of three tiers",
            file=sys.stderr,
        )
        return 2
    # Mistakes of the matrix raise here, before anything is written.
    folder = _folder(args)
    plan = load_plan(args.matrix)
    _warn_of_outside(plan)
    _warn_of_empty_families(plan)
    files = render.modules(plan, progress=_progress, every=args.every)
    changes = writer.compare(folder, files, render.is_generated, render.is_edited)
    if changes:
        writer.write(folder, files, changes)
    # The report reads these, and has no matrix to expand.
    write_coverage(plan, cache_of(args.matrix) / "coverage.json")
    write_places(plan, cache_of(args.matrix) / PLACES)
    if changes.edited:
        print(f"edited by hand, and written anew: {', '.join(changes.edited)}", file=sys.stderr)
    counts = {name: tier.cells for name, tier in plan.tiers.items()}
    if args.every:
        counts["all"] = sum(mask.bit_count() for mask in plan.valid)
    cells = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"{folder.name}: {changes.summary()}; cases: {cells}")
    return 0


def _warn_of_outside(plan: Plan) -> None:
    """Name the files of the matrix that a copy of this folder would lack."""
    files = plan.loaded.source.files
    outside = [name for name in files if not Path(name).resolve().is_relative_to(Path.cwd())]
    if outside:
        print(f"included from outside of this folder: {', '.join(outside)}", file=sys.stderr)


def _warn_of_empty_families(plan: Plan) -> None:
    """Name the families of which no module is written."""
    families = {op.family for op in plan.ops}
    with_cases = {op.family for op, mask in zip(plan.ops, plan.valid, strict=True) if mask}
    if empty := sorted(families - with_cases):
        print(
            (
                f"no case is left of {', '.join(empty)}: "
                "its dtypes, checks or the section exclude leave none"
            ),
            file=sys.stderr,
        )


def check(args: argparse.Namespace) -> int:
    """Show how the directory differs from the matrix, without writing."""
    from gen.write import render, writer

    folder = _folder(args)
    files = render.modules(load_plan(args.matrix, args.torch))
    changes = writer.compare(folder, files, render.is_generated, render.is_edited)
    # The difference goes to standard output, and what to do about it to standard error.
    for line in writer.difference(folder, files, changes):
        print(line)
    faults = []
    edited = [name for name in changes.edited if name not in changes.removed]
    if edited:
        faults.append(f"edited by hand: {', '.join(edited)}")
    if changes.removed:
        faults.append(
            f"orphaned: {', '.join(changes.removed)}: no family of {args.matrix} makes it; "
            "`make generate` removes it"
        )
    if changes:
        faults.append(f"stale: {changes.summary()}; run `make generate`")
    untracked = writer.untracked(folder, files)
    if untracked:
        faults.append(f"not known to git: {', '.join(untracked)}; run `git add {folder.name}`")
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(f"{folder.name} is what {args.matrix} says ({len(files)} modules)")
    return int(bool(faults))


def schema(args: argparse.Namespace) -> int:
    """Write the JSON Schemas into the folder of the matrix."""
    import json

    from gen.files import replace
    from gen.language.spec import json_schemas

    for name, content in json_schemas().items():
        path = args.matrix.resolve().parent / name
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        current = path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text
        if not current:
            replace(path, text)
        print(f"{name} is up to date" if current else f"wrote {name}")
    return 0


def _progress(families: list[str]) -> Iterable[str]:
    """Return a progress bar on a terminal, and nothing elsewhere, where it would fill a log."""
    if not sys.stderr.isatty():
        return families
    from rich.console import Console
    from rich.progress import track

    return track(families, description="generating", console=Console(stderr=True), transient=True)


def _folder(args: argparse.Namespace) -> Path:
    """Return the directory of generated modules."""
    out: Path | None = args.out
    return out or args.matrix.resolve().parent / "generated_tests"
