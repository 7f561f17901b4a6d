"""Expand a matrix with a drafted row: that of the folder, or the columns of `init --package`."""

from __future__ import annotations

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
from gen.packages.drafted_row import Draft
from gen.plan import catalog
from gen.plan.expand import Plan, expand

__all__ = ["for_matrix", "plan_with"]


def for_matrix(draft: Draft, matrix: Path) -> Draft:
    """Return a draft whose row names no columns of `init --package` that this matrix lacks."""
    if not matrix.exists():
        return draft
    facts = tuple(fact for fact in draft.row.facts if fact[0] != "not_checks")
    return dataclasses.replace(draft, row=dataclasses.replace(draft.row, facts=facts))


def plan_with(draft: Draft, matrix: Path) -> Plan:
    """Return an expanded matrix with a drafted row in the family `mine`."""
    if draft.line:
        _offer_calls(draft)
    with tempfile.TemporaryDirectory(prefix="matrix-gen-probe-") as folder:
        loaded = _load(draft, matrix, Path(folder))
        families = loaded.source.data["families"]
        families.setdefault("mine", {"ops": []})["ops"].append(_data(draft))
        whole = validate.Loaded(Matrix.model_validate(loaded.source.data), loaded.source)
        return expand(whole, catalog.load(Path(".cache/gen")))


def _load(draft: Draft, matrix: Path, folder: Path) -> validate.Loaded:
    """Return the matrix of the folder. Without one, the columns of `init --package` alone."""
    if matrix.exists():
        return validate.load(matrix)
    words: dict[str, Any] = dict.fromkeys(("untested", "left_out", "failed_imports"), ())
    words |= {"rows": [draft.row], "subject": draft.row.name, "has_old_style": False}
    words |= {"package": draft.row.name, "has_modules": False}
    name = "matrix.yaml"
    (folder / name).write_text(files(PACKAGE_TEMPLATES, words, [f"{name}.j2"])[name])
    if draft.line:  # what the row calls is looked up beside the matrix
        (folder / "calls.py").write_text(f"{draft.line}\n")
    loaded = validate.load(folder / name)
    loaded.source.data["families"].clear()
    return loaded


def _data(draft: Draft) -> dict[str, Any]:
    """Return a row as the data of a matrix has it."""
    row = draft.row
    data: dict[str, Any] = {"op": row.name, "samples": [dict(each) for each in row.samples]}
    if row.reference:
        data["call"] = row.reference
    return data | {key: yaml.safe_load(value) for key, value in row.facts}


def _offer_calls(draft: Draft) -> None:
    """Make the module `calls`, which the row of a module names, with the one call."""
    calls = type(sys)("calls")
    package = draft.row.name.partition(".")[0]
    names = {package: importlib.import_module(package)}
    sampled = importlib.import_module("gen.packages.sampled_calls")
    last, _, text = draft.line.partition(" = ")
    setattr(calls, last, eval(text, names | {"ModuleCall": sampled.ModuleCall}))
    sys.modules["calls"] = calls
