"""Expand a matrix with a drafted row: that of the folder, or the columns of `init --package`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from gen.commands.init import PACKAGE_TEMPLATES, files
from gen.language import validate
from gen.language.spec import Matrix
from gen.packages.drafted_row import Draft, draft
from gen.plan import catalog
from gen.plan.cell_sets import Plan
from gen.plan.expand import expand
from gen.run.project_defaults import declared

_LISTS = ("untested", "covered", "left_out", "failed_imports")
"""What the template of a project lists besides rows."""
__all__ = ["lines_of", "plan_with_draft", "target_name"]


def plan_with_draft(args: argparse.Namespace) -> tuple[Plan, Draft]:
    """Return the row that `gen probe` drafts, and the expanded matrix that has it."""
    drafted = _for_matrix(draft(args.op, args.sample, args.record), args.matrix)
    print(f"  {args.op}: a call works; now its cells", file=sys.stderr, flush=True)
    return _plan_with(drafted, args.matrix), drafted


def target_name(args: argparse.Namespace, drafted: Draft | None) -> str:
    """Return the name of the target: torch for a row that belongs to no matrix yet."""
    if args.target is not None:
        return str(args.target)
    if drafted is not None and not args.matrix.exists():
        return "torch"
    return declared(args.matrix.parent).target


def lines_of(drafted: Draft) -> list[str]:
    """Return the lines of a drafted row, with what it needs elsewhere."""
    lines = ["    ops:", *drafted.row.text.splitlines()]
    if not drafted.line:
        return lines
    return [
        "    # calls.py, beside matrix.yaml, needs these lines:",
        "    #     from gen.packages.sampled_calls import ModuleCall",
        f"    #     import {drafted.row.name.rpartition('.')[0]}",
        f"    #     {drafted.line}",
        *lines,
    ]


def _for_matrix(drafted: Draft, matrix: Path) -> Draft:
    """Return a draft whose row names no columns of `init --package` that this matrix lacks."""
    if not matrix.exists():
        return drafted
    facts = tuple(fact for fact in drafted.row.facts if fact[0] != "not_checks")
    return dataclasses.replace(drafted, row=dataclasses.replace(drafted.row, facts=facts))


def _plan_with(drafted: Draft, matrix: Path) -> Plan:
    """Return an expanded matrix with a drafted row in the family `mine`."""
    if drafted.line:
        _offer_calls(drafted)
    with tempfile.TemporaryDirectory(prefix="matrix-gen-probe-") as folder:
        loaded = _load(drafted, matrix, Path(folder))
        families = loaded.source.data["families"]
        families.setdefault("mine", {"ops": []})["ops"].append(_data(drafted))
        whole = validate.Loaded(Matrix.model_validate(loaded.source.data), loaded.source)
        return expand(whole, catalog.load(Path(".cache/gen")))


def _load(drafted: Draft, matrix: Path, folder: Path) -> validate.Loaded:
    """Return the matrix of the folder. Without one, the columns of `init --package` alone."""
    if matrix.exists():
        return validate.load(matrix)
    words: dict[str, Any] = dict.fromkeys(_LISTS, ())
    words |= {"rows": [drafted.row], "subject": drafted.row.name, "has_old_style": False}
    words |= {"package": drafted.row.name, "helpers": {}, "has_hidden": False}
    name = "matrix.yaml"
    (folder / name).write_text(files(PACKAGE_TEMPLATES, words, [f"{name}.j2"])[name])
    if drafted.line:  # what the row calls is looked up beside the matrix
        (folder / "calls.py").write_text(f"{drafted.line}\n")
    loaded = validate.load(folder / name)
    # the template's own family has the same row, and a row stands in one family
    loaded.source.data["families"].clear()
    return loaded


def _data(drafted: Draft) -> dict[str, Any]:
    """Return a row as the data of a matrix has it."""
    row = drafted.row
    data: dict[str, Any] = {"op": row.name, "samples": list(map(dict, row.samples))}
    if row.reference:
        data["call"] = row.reference
    return data | {key: yaml.safe_load(value) for key, value in row.facts}


def _offer_calls(drafted: Draft) -> None:
    """Make the module `calls`, which the row of a module names, with the one call."""
    calls = type(sys)("calls")
    package = drafted.row.name.partition(".")[0]
    names = {package: importlib.import_module(package)}
    sampled = importlib.import_module("gen.packages.sampled_calls")
    # as `trials` writes it: Scale = ModuleCall(lambda: package.Scale(3))
    last, _, text = drafted.line.partition(" = ")
    setattr(calls, last, eval(text, names | {"ModuleCall": sampled.ModuleCall}))
    sys.modules["calls"] = calls
