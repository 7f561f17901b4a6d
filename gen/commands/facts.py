"""`gen facts`: what the installed torch does otherwise than the version that is written down."""

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
    mistake = _mistake(args)
    if mistake:
        print(f"gen facts: {mistake}", file=sys.stderr)
        return 2
    if args.write:
        return _write()
    names = args.versions or [lock.nearest(lock.installed())]
    old = _read(names[0])
    new = _read(names[1]) if len(names) == 2 else _installed(old)
    found = [*edits(old, new, _families())]
    _show(found, names, args.json)
    return int(bool(found))


def _mistake(args: argparse.Namespace) -> str:
    if len(args.versions) > 2:
        return "two versions can be compared, not more"
    if args.write and args.versions:
        return "--write takes no version: it writes the facts of the installed torch"
    known = lock.versions()
    unknown = next((version for version in args.versions if version not in known), None)
    if unknown is None:
        return ""
    hint = nearest(unknown, known)
    return (
        f"no facts of torch {unknown} are written down, only of {', '.join(known)}"
        f"{f'; did you mean {hint}?' if hint else ''} To write them, install torch {unknown} and "
        "run `python -m gen facts --write`."
    )


def _read(version: str) -> torch_facts.Facts:
    facts = lock.read(version)
    del facts["torch"]
    return {**facts, "ops of OpInfo": _ops(catalog.load(Path(), version))}


def _installed(known: torch_facts.Facts) -> torch_facts.Facts:
    error = torch_facts.import_error()
    if error is not None:
        print(f"the runtime cannot be imported: {error!r}", file=sys.stderr)
        print("what the drop-in replaces is not compared, as it says that itself", file=sys.stderr)
    return {**torch_facts.collect(known), "ops of OpInfo": _ops(catalog.build())}


def _ops(found: catalog.Catalog) -> Mapping[str, str]:
    return {
        name: f"{' '.join(op.dtypes)}; differentiable: {' '.join(op.differentiable)}"
        for name, op in found.ops.items()
    }


def _families() -> Mapping[str, str]:
    try:
        from runtime.rules.record import RECORDS
    except Exception:
        return {}
    return {str(func).split(".")[1]: record.family for func, record in RECORDS.items()}


def _write() -> int:
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


def _show(found: list[Edit], names: list[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(list(map(vars, found)), indent=1, ensure_ascii=False))
        return
    beside = names[1] if len(names) == 2 else f"{lock.installed()}, which is installed,"
    print(f"torch {beside} beside {names[0]}: {len(found)} facts differ")
    for edit in found:
        print(edit)
