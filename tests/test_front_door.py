"""Tests of what a package does import public names alone, so that they hold for any inside.

A test of an inside lies in a folder `inside`. Its docstring says which inside, and why no public
name shows the same."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Whose tests are about behaviour. The other folders of tests have tests of insides as well.
GEN_FOLDERS = (
    *("bad_inputs", "checks", "gen", "grammar", "reference", "report", "reports", "run", "scripts"),
    "targets",
)
FOLDERS = (
    *("autograd", "checkpoint", "dropin", "expanded_weights", "export", "facts", "func"),
    *("functionalize", "jit", "per_sample", "rules", "seam", "session", "tape", "trace"),
    *("aot/cache", "aot/calls", "aot/capture", "aot/control_flow", "aot/fuzzer", "aot/partition"),
    *("aot/compilers", "aot/python_state"),
)
_PACKAGES = ("autograd", "checkpoint", "expanded_weights", "export", "func", "jit", "per_sample")
PUBLIC = {
    "runtime",
    *(f"runtime.{name}" for name in _PACKAGES),
    "runtime.aot",
    "runtime.dropin",
    "runtime.errors",
    "runtime.extend",
    "runtime.rules",
    # the modules of torch.autograd
    *(f"runtime.autograd.{name}" for name in ("forward_ad", "function", "functional")),
    *(f"runtime.autograd.{name}" for name in ("gradcheck", "graph")),
    # what docs/api/gen.md describes
    *("gen", "gen.checks", "gen.cli", "gen.errors", "gen.grammar", "gen.language.axes"),
    *("gen.outcomes", "gen.reference", "gen.run.results", "gen.targets"),
    *(f"gen.targets.{name}" for name in ("faults", "parts", "protocol")),
    *(f"gen.targets.{name}_target" for name in ("compiled", "runtime", "torch")),
}
# docs/rules.md and the message of MissingRule name these
NAMED = {
    f"runtime.func.batch.{name}"
    for name in ("current_fallback_policy", "fallback_policy", "fallbacks", "set_fallback_policy")
}
_PATH = re.compile(r"(runtime|gen)(\.\w+)+")


def is_public(module: str, name: str) -> bool:
    """Return whether users may write `from module import name`."""
    path = f"{module}.{name}"
    if path in PUBLIC or path in NAMED:
        return True
    if module not in PUBLIC or name.startswith("_"):
        return False
    return name in getattr(importlib.import_module(module), "__all__", (name,))


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the path of each name of this project that a module imports, also by a
    text that monkeypatch or importlib gets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, text) for text in _texts(node))


def _texts(call: ast.Call) -> Iterator[str]:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if called in ("import_module", "setattr", "delattr") and call.args:
        first = call.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def private_imports(path: Path) -> list[str]:
    """List what a test imports of the inside, with its place."""
    found = []
    for line, name in imported(ast.parse(path.read_text("utf-8"))):
        module, _, last = name.rpartition(".")
        if _PATH.fullmatch(name) and not is_public(module, last):
            found.append(f"{path}:{line} {name}")
    return found


@pytest.mark.parametrize("folder", [*(f"runtime/{name}" for name in FOLDERS), *GEN_FOLDERS])
def test_tests_of_behaviour_import_public_names(folder: str) -> None:
    files = [p for p in (ROOT / "tests" / folder).rglob("*.py") if "inside" not in p.parts]
    assert files and [name for path in files for name in private_imports(path)] == []


INSIDE = sorted((ROOT / "tests").rglob("inside/*.py"))


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_test_of_an_inside_says_which_and_why(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    _, found, reason = text.partition("\nInside: ")
    assert found and len(reason.split()) > 8


# ------------------------------------------------------------------- the claims above can fail


@pytest.mark.parametrize(
    "line",
    [
        "from runtime.jit.steps import Steps",
        "from runtime.jit import steps",
        "from runtime.jit import _MODULES",
        "import runtime.tape.engine",
        "importlib.import_module('runtime.func.trees')",
        "monkeypatch.setattr('runtime.huge_pages.LARGE', 1)",
        "from gen.samples.opinfo import drawn",
        "from gen.checks.tables import Cells",
        "from gen.targets.torch_target import _LOOP",
    ],
)
def test_a_name_of_the_inside_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(f"import torch\n{line}\n")
    (found,) = private_imports(tmp_path / "test_a.py")
    assert found.startswith(f"{tmp_path / 'test_a.py'}:2 ")


@pytest.mark.parametrize(
    "line",
    [
        "import runtime",
        "from runtime import aot, jit, tensor",
        "import runtime.checkpoint",
        "from runtime.autograd import forward_ad",
        "from runtime.func.batch import fallbacks",
        "from torch._C import _functions",
        "from gen.checks import Case, cases",
        "from gen import cli",
        "from gen.targets.torch_target import TorchTarget",
        "monkeypatch.setattr('torch.rand', None)",
    ],
)
def test_a_public_name_is_none_of_the_inside(line: str, tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(line)
    assert private_imports(tmp_path / "test_a.py") == []
