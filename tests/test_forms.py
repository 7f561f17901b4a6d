"""No form of code decides what the runtime does: no frame, traceback, reference count, collector
or opcode, and no text of an exception.

Where the next form would be silent, the design is wrong. The exceptions are named, each with the
reason why it cannot make a wrong answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

RUNTIME = Path(__file__).resolve().parent.parent / "runtime"
_LINE = "the user's line in messages and in the nodes of a graph"
_HELD = "what an opaque object holds, which the graph of objects follows"

EXCEPTIONS: dict[str, dict[str, str]] = {
    "__main__.py": {"tracebacks": "what `python -m runtime` shows of a traceback"},
    "errors.py": {"frames": _LINE},
    "trace/provenance.py": {"frames": f"{_LINE}; the modules around it, for nn_module_stack"},
    "trace/error_lines.py": {
        "frames": _LINE,
        "texts of exceptions": "whether a message has the line already",
        "tracebacks": f"{_LINE}; whether an error is the program's own, so that jit runs the call "
        "eagerly: else state is put back, and an eager run without the error warns",
    },
    "aot/calls/graph_writes.py": {
        "tracebacks": "which call of its graph has failed, for the note on what it had written"
    },
    "aot/python_state/closed_over.py": {"frames": _LINE},
    "aot/python_state/entry_hook.py": {
        "frames": "the optimizer that a program makes or zeroes, which a function that is entered "
        "has; the objects that functions of a backward pass have when they begin",
    },
    "aot/python_state/python_hooks.py": {
        "frames": "that of the function that is entered, which sys.monitoring does not give",
        "hooks": "it tells the graph of objects which functions are entered",
    },
    "aot/python_state/code_names.py": {
        "opcodes": "names in code, more than it uses: an unknown instruction counts as all kinds"
    },
    "aot/python_state/summary.py": {"opcodes": _LINE},
    "aot/python_state/object_graph.py": {"the collector": _HELD},
    "aot/python_state/object_kinds.py": {"the collector": _HELD},
    "aot/python_state/program_state.py": {"the collector": _HELD},
    "aot/python_state/switches.py": {
        "the collector": "a program may ask for its thresholds, which a call then asks for, too"
    },
    "aot/capture/global_state.py": {
        "the collector": "it is off during a capture, as its callbacks are no code of the program"
    },
    "trace/torch_checks.py": {
        "frames": "a check of torch's that reads an element. Unrecognized, it is refused"
    },
    "trace/symbol_values.py": {
        "frames": "isinstance(n, int) of a size is true but for torch and sympy, which tell "
        "symbols from numbers by it"
    },
    "trace/random_states.py": {
        "frames": "the user's object for a generator, which ATen shows as another object. "
        "Without it the draw is refused",
        "the collector": "whether a generator that the program made is freed. If not, it is "
        "refused",
    },
    "tape/accumulate.py": {
        "reference counts": "a gradient that nobody else holds is given away, not copied"
    },
    "functionalize/writes.py": {
        "texts of exceptions": "torch's refusals of memory are told from those of values, for "
        "which the program's own call decides"
    },
}


class _Forms(ast.NodeVisitor):
    """The kinds of forms that one module looks at."""

    FRAMES = frozenset(("_getframe", "f_locals", "currentframe", "getouterframes", "stack"))
    HOOKS = frozenset(("setprofile", "settrace", "getprofile", "monitoring"))

    def __init__(self, source: str) -> None:
        self.found: set[str] = set()
        self._errors: list[str] = []
        self._owners: dict[str, str] = {}
        self.visit(ast.parse(source))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr in ("_getframe", "f_locals") or (
            owner == "inspect" and node.attr in self.FRAMES
        ):
            self.found.add("frames")
        if node.attr == "tb_frame":
            self.found.add("tracebacks")
        if owner == "sys" and node.attr in self.HOOKS:
            self.found.add("hooks")
        if node.attr == "getrefcount":
            self.found.add("reference counts")
        if owner == "gc":
            self.found.add("the collector")
        if owner == "dis":
            self.found.add("opcodes")
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        kind = {"gc": "the collector", "dis": "opcodes", "opcode": "opcodes"}.get(node.module or "")
        if kind is not None:
            self.found.add(kind)
        for name in node.names:
            if name.name in self.FRAMES or name.name in self.HOOKS or name.name == "getrefcount":
                self.found.add("frames")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._errors.append(node.name or "")
        self.generic_visit(node)
        self._errors.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        errors = [
            a.arg
            for a in node.args.args
            if a.annotation is not None and "Exception" in ast.unparse(a.annotation)
        ]
        self._errors += errors
        self.generic_visit(node)
        del self._errors[len(self._errors) - len(errors) :]

    def visit_Compare(self, node: ast.Compare) -> None:
        for part in (node.left, *node.comparators):
            if self._is_text(part):
                self.found.add("texts of exceptions")
        self.generic_visit(node)

    def _is_text(self, part: ast.expr) -> bool:
        """Whether ``part`` is ``str(error)``, ``repr(error)`` or ``error.args``."""
        if isinstance(part, ast.Call) and ast.unparse(part.func) in ("str", "repr"):
            return any(isinstance(a, ast.Name) and a.id in self._errors for a in part.args)
        text = ast.unparse(part)
        return any(name and text.startswith(f"{name}.args") for name in self._errors)


def _found() -> dict[str, set[str]]:
    found = {
        path.relative_to(RUNTIME).as_posix(): _Forms(path.read_text()).found
        for path in RUNTIME.rglob("*.py")
    }
    return {file: kinds for file, kinds in found.items() if kinds}


def test_no_form_decides_but_for_named_reasons() -> None:
    named = {file: set(kinds) for file, kinds in EXCEPTIONS.items()}
    assert _found() == named


def _pieces() -> Iterator[tuple[str, str]]:
    yield "import sys\nframe = sys._getframe(1)", "frames"
    yield "x = frame.f_locals['self']", "frames"
    yield "code = error.__traceback__.tb_frame.f_code", "tracebacks"
    yield "import inspect\ninspect.stack()", "frames"
    yield "from sys import _getframe", "frames"
    yield "import gc\ngc.collect()", "the collector"
    yield "from gc import get_objects", "the collector"
    yield "import dis\ndis.get_instructions(f)", "opcodes"
    yield "import sys\nsys.setprofile(f)", "hooks"
    yield "import sys\nsys.getrefcount(x)", "reference counts"
    yield "try: f()\nexcept ValueError as e:\n    if 'x' in str(e): raise", "texts of exceptions"
    yield "try: f()\nexcept ValueError as e:\n    if e.args[0] == 'x': raise", "texts of exceptions"
    yield "def f(error: Exception) -> bool: return 'x' in str(error)", "texts of exceptions"


@pytest.mark.parametrize(("source", "kind"), list(_pieces()))
def test_a_form_is_found(source: str, kind: str) -> None:
    assert _Forms(source).found == {kind}


def test_what_only_shows_an_error_is_none() -> None:
    source = "try: f()\nexcept ValueError as e:\n    raise RuntimeError(str(e)) from e"
    assert _Forms(source).found == set()
