"""Where files lie and how long they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST = 500  # lines of a file
LONGEST_FUNCTION = 80  # lines of a function, without its docstring
FOLDERS = ("benchmarks", "examples", "gen", "runtime", "tests")


def folders(path: Path) -> set[str]:
    return {p.name for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))}


def test_each_folder_of_the_runtime_has_one_of_tests() -> None:
    assert folders(ROOT / "tests/runtime") == folders(ROOT / "runtime")


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_short_enough_to_read_at_one_go(folder: str) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Name and length of each function of a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            yield (
                node.name,
                (node.end_lineno or 0)
                - node.lineno
                + 1
                - (0 if text is None else len(text.splitlines())),
            )


def test_a_docstring_does_not_make_a_function_long() -> None:
    assert list(
        functions('def f(\n    x,\n):\n    """A line.\n\n    Another.\n    """\n    return x\n')
    ) == [("f", 4)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_functions_do_one_thing(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}, {lines} lines"
        for path in (ROOT / folder).rglob("*.py")
        for name, lines in functions(path.read_text())
        if lines > LONGEST_FUNCTION
    ]
    assert found == []
