"""Each public function and class of torch is called by a row of the matrix, or stands in
``uncalled_names.yaml`` under a reason.

A new torch with a new name fails here, and so does a reason for a name that a row calls.

Inside: gen.samples.opinfo. No command lists the functions that a row calls behind its samples.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gen.samples import opinfo

ROOT = Path(__file__).resolve().parents[3]
LISTED = Path(__file__).parent / "uncalled_names.yaml"
OF_TORCH = "2.13.0"  # the version in matrix.yaml, whose names these are
PROGRAMS = (
    *ROOT.glob("programs/**/*.py"),
    *ROOT.glob("gen/checks/training*.py"),
    *ROOT.glob("gen/targets/torch_target.py"),
)
MODULES = (
    "torch", "torch.nn", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special",
    "torch.signal.windows", "torch.sparse", "torch.nn.init", "torch.nn.utils", "torch.nn.utils.rnn",
    "torch.nn.utils.parametrizations", "torch.nn.utils.parametrize", "torch.nn.utils.prune",
    "torch.nn.utils.stateless", "torch.nn.utils.fusion", "torch.optim", "torch.optim.lr_scheduler",
    "torch.optim.swa_utils", "torch.utils.data", "torch.func", "torch.distributions",
    "torch.autograd.functional", "torch.autograd.forward_ad", "torch.utils.checkpoint",
)  # fmt: skip
"""The modules whose names a user calls."""


def public(module: str) -> Iterator[str]:
    """Yield the public functions and classes of a module, each with its full name."""
    namespace = importlib.import_module(module)
    # ``torch.__all__`` leaves out what is made in C++
    names = dir(namespace) if module == "torch" else getattr(namespace, "__all__", dir(namespace))
    for name in sorted(set(names)):
        value = getattr(namespace, name, None)
        home = str(getattr(value, "__module__", None) or "torch")
        if not name.startswith("_") and callable(value) and home.startswith("torch"):
            yield f"{module}.{name}"


def called_by_rows() -> set[str]:
    """Return the names of the rows, and what torch's database says are other names of them."""
    found: set[str] = set()
    for path in ROOT.glob("generated_tests/test_*.py"):
        found |= set(
            re.findall(r'^    op\("(torch\.[^"]+)"', path.read_text("utf-8"), re.MULTILINE)
        )
    for name in list(found):
        info = opinfo.lookup(name)
        if info is not None:
            found |= {
                f"torch.{one}" for one in (info.name, *(alias.name for alias in info.aliases))
            }
    # torch.std.unbiased is a row of torch.std
    return found | {name.rsplit(".", 1)[0] for name in found}


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return what the names of a file stand for that it imports from torch."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # `import torch.nn.utils` binds the name torch
            names |= {one.asname: one.name for one in node.names if one.asname}
            names |= {one.name.split(".")[0]: one.name.split(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return {name: path for name, path in names.items() if path.startswith("torch")}


def _dotted(node: ast.expr) -> str:
    """Return the text of a chain of attributes, such as ``nn.init.eye_``, or nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (begin := _dotted(node.value)):
        return f"{begin}.{node.attr}"
    return ""


def called_by_programs() -> set[str]:
    """Return the names of torch that the programs of the matrix name."""
    found: set[str] = set()
    for path in PROGRAMS:
        tree = ast.parse(path.read_text("utf-8"))
        imported = _imported(tree)
        for node in ast.walk(tree):
            first, _, rest = (
                _dotted(node).partition(".") if isinstance(node, ast.expr) else ("",) * 3
            )
            if first in imported:
                found.add(f"{imported[first]}.{rest}".rstrip("."))
    return found


def _value(name: str) -> Any:
    """Return the object of a full name, or None."""
    parts = name.split(".")
    value: Any = torch
    for part in parts[1:]:
        value = getattr(value, part, None)
    return value


@cache
def uncalled() -> frozenset[str]:
    """Return the public names that no row calls, under this or another name of the object."""
    names = called_by_rows() | called_by_programs()
    objects = {id(_value(name)) for name in names}
    return frozenset(
        name
        for module in MODULES
        for name in public(module)
        # sin_ is the in-place variant of a row
        if name not in names and name.rstrip("_") not in names and id(_value(name)) not in objects
    )


@cache
def listed() -> dict[str, list[str]]:
    """Return the names that stand under a reason."""
    groups = yaml.safe_load(LISTED.read_text("utf-8"))
    return {group["reason"]: group["names"] for group in groups}


of_this_torch = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != OF_TORCH, reason=f"the names are those of {OF_TORCH}"
)


@of_this_torch
def test_a_public_name_is_called_by_a_row_or_has_a_reason() -> None:
    known = {name for names in listed().values() for name in names}
    assert sorted(uncalled() - known) == [], "write a row, or a reason in uncalled_names.yaml"


@of_this_torch
def test_no_reason_is_given_for_a_name_that_a_row_calls() -> None:
    known = {name for names in listed().values() for name in names}
    assert sorted(known - uncalled()) == [], "take these out of uncalled_names.yaml"


def test_each_name_stands_under_one_reason() -> None:
    names = [name for group in listed().values() for name in group]
    assert len(names) == len(set(names))
    assert all(len(reason) > 15 for reason in listed())
