"""Run `gen facts`: print what the installed torch does otherwise than the version that is written
down.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from gen.errors import nearest
from gen.facts import torch_facts
from gen.facts.torch_facts import Edit, edits
from gen.facts.without_runtime import lock
from gen.files import replace
from gen.plan import catalog

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen facts`."""
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="VERSION",
        help="compare two written versions, or the installed torch with one (default: the nearest)",
    )
    parser.add_argument(
        "--write", action="store_true", help="write the facts of the installed torch down"
    )
    parser.add_argument("--json", action="store_true", help="print the edits as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the facts that differ, or write them down. Return 1 if some differ."""
    mistake = _mistake(args)
    if mistake:
        print(f"gen facts: {mistake}", file=sys.stderr)
        return 2
    if args.write:
        return _write()
    names = args.versions or [lock.nearest(lock.installed())]
    old = _read(names[0])
    new_facts = _read(names[1]) if len(names) == 2 else _installed(old)
    differing_facts = [*edits(old, new_facts, _families())]
    _show(differing_facts, names, args.json)
    return int(bool(differing_facts))


def _mistake(args: argparse.Namespace) -> str:
    """Return what is wrong with the arguments. Empty if nothing is."""
    if len(args.versions) > 2:
        return "two versions can be compared, not more"
    if args.write and args.versions:
        return "--write takes no version: it writes the facts of the installed torch"
    known_versions = lock.versions()
    unknown = next((version for version in args.versions if version not in known_versions), None)
    if unknown is None:
        return ""
    hint = nearest(unknown, known_versions)
    return (
        f"no facts of torch {unknown} are written down, only of {', '.join(known_versions)}"
        f"{f'; did you mean {hint}?' if hint else ''} To write them, install torch {unknown} and "
        "run `python -m gen facts --write`."
    )


def _read(version: str) -> torch_facts.Facts:
    """Return the written facts of a version, with the ops of its catalog."""
    facts = lock.read(version)
    # that the versions differ is no news
    del facts["torch"]
    return {**facts, "ops of OpInfo": _ops(catalog.load(Path(), version))}


def _installed(known_facts: torch_facts.Facts) -> torch_facts.Facts:
    """Return the facts of the installed torch. `known_facts`: those that it is compared with."""
    error = torch_facts.import_error()
    if error is not None:
        print(f"the runtime cannot be imported: {error!r}", file=sys.stderr)
        print("what the drop-in replaces is not compared, as it says that itself", file=sys.stderr)
    return {**torch_facts.collect(known_facts), "ops of OpInfo": _ops(catalog.build())}


def _ops(stored_catalog: catalog.Catalog) -> Mapping[str, str]:
    """Return what a catalog says of each op, as a fact: the dtypes that it takes."""
    facts = {}
    for name, op in stored_catalog.ops.items():
        facts[name] = f"{' '.join(op.dtypes)}; differentiable: {' '.join(op.differentiable)}"
    return facts


def _families() -> Mapping[str, str]:
    """Return the family of each op of the runtime. Empty if the runtime cannot be imported."""
    try:
        from runtime.rules.record import RECORDS
    except Exception:  # whatever the import raises: a family is only an addition to the facts
        return {}
    return {str(func).split(".")[1]: record.family for func, record in RECORDS.items()}


def _write() -> int:
    """Write down the facts of the installed torch. Return the exit code."""
    error = torch_facts.import_error()
    if error is not None:  # its records and names say what to ask
        print(f"gen facts: the runtime cannot be imported: {error!r}", file=sys.stderr)
        print("nothing was written", file=sys.stderr)
        return 2
    version = lock.installed()
    path, facts = lock.path_of(version), {"torch": version, **torch_facts.collect()}
    replace(path, json.dumps(facts, indent=0, ensure_ascii=False) + "\n")
    stored = catalog.stored_at(version)
    catalog.write(catalog.build(), stored)
    print(f"{path}\n{stored}")
    return 0


def _show(edits_to_show: list[Edit], names: list[str], as_json: bool) -> None:
    """Print the facts that differ, as lines or as JSON."""
    if as_json:
        print(json.dumps(list(map(vars, edits_to_show)), indent=1, ensure_ascii=False))
        return
    compared_version = names[1] if len(names) == 2 else f"{lock.installed()}, which is installed,"
    print(f"torch {compared_version} beside {names[0]}: {len(edits_to_show)} facts differ")
    for edit in edits_to_show:
        print(edit)
