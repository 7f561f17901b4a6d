"""Where files lie and how much is in them. `make house` shows more about how they read."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.house import (
    Figures,
    Source,
    figures_of,
    fragments,
    modules_per_folder,
    read_sources,
    repeated_file_names,
    statements_without_docstrings,
)

ROOT = Path(__file__).parent.parent
LONGEST_FILE = 380  # statements
LONGEST_FUNCTION = 80  # statements, with those of the functions inside it
FULLEST_FOLDER = 25  # modules
MOST_FRAGMENTS = 10
MOST_REPEATED_NAMES = 8
FOLDERS = ("benchmarks", "examples", "gen", "programs", "runtime", "tests", "tools")
PACKAGES = ("runtime", "gen", "programs")


class Limits(NamedTuple):
    """What a figure of `make house` may be at most. A limit only gets lower."""

    figure: Callable[[Figures], float]
    runtime: float
    gen: float


LIMITS: dict[str, Limits] = {
    "functions of complexity over 15": Limits(lambda f: f.functions.over_15, 0, 0),
    "percent of functions of complexity over 10": Limits(
        lambda f: f.functions.percent_over_10, 1.45, 0.76
    ),
    "complexity per line of functions": Limits(
        lambda f: f.functions.complexity_per_line, 0.335, 0.335
    ),
    "conditional expressions per 1,000 lines": Limits(
        lambda f: f.per_lines(1000, f.syntax.conditionals), 6.5, 9.0
    ),
    "conditional expressions inside of others": Limits(
        lambda f: f.syntax.nested_conditionals, 0, 0
    ),
    "comprehensions per 1,000 lines": Limits(
        lambda f: f.per_lines(1000, f.syntax.comprehensions), 24.5, 31.5
    ),
    "uses of Any per 1,000 lines": Limits(
        lambda f: f.per_lines(1000, f.syntax.any_names), 29.7, 22
    ),
    "percent of lines over 100 columns": Limits(lambda f: f.text.percent_wide, 0.05, 0.02),
}


@cache  # several claims read the same modules
def sources_of(*names: str) -> list[Source]:
    return read_sources(ROOT / name for name in names)


def folders(path: Path) -> set[str]:
    return {p.name for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))}


def test_each_folder_of_the_runtime_has_one_of_tests() -> None:
    assert folders(ROOT / "tests/runtime") == folders(ROOT / "runtime")


def long_files(sources: list[Source], limit: int = LONGEST_FILE) -> dict[str, int]:
    """Map each file with too many statements to their number."""
    counts = {str(source.path): statements_without_docstrings(source.tree) for source in sources}
    return {path: count for path, count in counts.items() if count > limit}


def long_functions(sources: list[Source], limit: int = LONGEST_FUNCTION) -> list[str]:
    """List each function with too many statements, with its place and their number."""
    return [
        f"{function.path}:{function.node.lineno} {function.node.name}: {function.statements}"
        for source in sources
        for function in source.functions
        if function.statements > limit
    ]


def full_folders(sources: list[Source], limit: int = FULLEST_FOLDER) -> dict[str, int]:
    """Map each folder with too many modules to their number."""
    counts = modules_per_folder(sources)
    return {str(folder): count for folder, count in counts.items() if count > limit}


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_short_enough_to_read_at_one_go(folder: str) -> None:
    assert long_files(sources_of(folder)) == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_functions_do_one_thing(folder: str) -> None:
    assert long_functions(sources_of(folder)) == []


@cache
def figures_of_package(name: str) -> Figures:
    return figures_of(sources_of(name))


@pytest.mark.parametrize("package", ["runtime", "gen"])
@pytest.mark.parametrize("figure", LIMITS)
def test_the_code_reads_no_worse_than_it_did(figure: str, package: str) -> None:
    limits = LIMITS[figure]
    assert limits.figure(figures_of_package(package)) <= getattr(limits, package)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_has_few_enough_modules_to_know_them_all(package: str) -> None:
    assert full_folders(sources_of(package)) == {}


def test_few_short_modules_serve_one_module_alone() -> None:
    listed = fragments(sources_of("runtime", "gen"), ROOT)
    assert len(listed) <= MOST_FRAGMENTS, "\n".join(map(str, listed))


def test_few_files_share_their_name_with_another() -> None:
    names = repeated_file_names(sources_of("runtime", "gen"))
    assert len(names) <= MOST_REPEATED_NAMES, list(names)


_WHERE_TO_START = re.compile(r"import.*Start\s+with", re.S)


def silent_packages(sources: list[Source]) -> list[str]:
    """List the packages whose docstring does not say what they import and where to start."""
    packages = [source for source in sources if source.path.name == "__init__.py"]
    texts = {str(one.path): ast.get_docstring(one.tree) or "" for one in packages}
    return [path for path, text in texts.items() if not _WHERE_TO_START.search(text)]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_imports_and_where_to_start_reading(package: str) -> None:
    assert silent_packages(sources_of(package)) == []


# ------------------------------------------------------------------- the claims above can fail


DOCUMENTED = '''\
"""A module."""


class Price:
    """A class."""

    def total(self):
        """A line.

        Another.
        """
        return 1
'''


def sources_in(folder: Path, **texts: str) -> list[Source]:
    """Write modules into a folder and read them: `price="a = 1"` is `price.py`."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return read_sources([folder])


def test_a_statement_too_many_makes_a_file_long(tmp_path: Path) -> None:
    sources = sources_in(tmp_path, price="a = 1\nif a: a = 2\n")
    assert long_files(sources, limit=3) == {}
    assert long_files(sources, limit=2) == {str(tmp_path / "price.py"): 3}


def test_a_statement_too_many_makes_a_function_long(tmp_path: Path) -> None:
    sources = sources_in(tmp_path, price="a = 1\ndef f(\n    x,\n):\n    x += 1\n    return x\n")
    assert long_functions(sources, limit=2) == []
    assert long_functions(sources, limit=1) == [f"{tmp_path / 'price.py'}:2 f: 2"]


def test_statements_of_a_nested_function_count_for_both_functions(tmp_path: Path) -> None:
    sources = sources_in(
        tmp_path, price="def f():\n    def g():\n        a = 1\n        return a\n    return g\n"
    )
    assert {f.node.name: f.statements for f in sources[0].functions} == {"f": 4, "g": 2}


def test_docstrings_make_neither_files_nor_functions_long(tmp_path: Path) -> None:
    sources = sources_in(tmp_path, price=DOCUMENTED)
    assert long_files(sources, limit=0) == {str(tmp_path / "price.py"): 3}
    assert [f.statements for f in sources[0].functions] == [1]


WORSE: dict[str, str] = {
    "functions of complexity over 15": "def f(x):\n" + "    if x: x += 1\n" * 15,
    "percent of functions of complexity over 10": "def f(x):\n" + "    if x: x += 1\n" * 10,
    "complexity per line of functions": "def f(x):\n    return x if x else x and x or x\n",
    "conditional expressions per 1,000 lines": "a = 1 if b else 2\n",
    "conditional expressions inside of others": "a = 1 if b else 2 if c else 3\n",
    "comprehensions per 1,000 lines": "a = [b for b in c]\n",
    "uses of Any per 1,000 lines": "a: Any = 1\n",
    "percent of lines over 100 columns": f"a = {'1' * 100}\n",
}


@pytest.mark.parametrize("figure", LIMITS)
def test_code_that_reads_worse_is_over_a_limit(figure: str, tmp_path: Path) -> None:
    limits = LIMITS[figure]
    found = limits.figure(figures_of(sources_in(tmp_path, price=WORSE[figure])))
    assert found > limits.runtime and found > limits.gen


def test_a_module_too_many_makes_a_folder_full(tmp_path: Path) -> None:
    sources = sources_in(tmp_path, __init__="a = 1", price="a = 1", tax="a = 1")
    assert full_folders(sources, limit=2) == {}
    assert full_folders(sources, limit=1) == {str(tmp_path): 2}


def test_fragments_and_repeated_names_are_seen(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/tax.py").write_text("a = 1\n")
    sources = sources_in(tmp_path, price="import tax\n", tax="a = 1\n")
    assert [each.module for each in fragments(sources, tmp_path)] == ["tax"]
    assert list(repeated_file_names(sources)) == ["tax.py"]


def test_a_package_that_says_nothing_is_found(tmp_path: Path) -> None:
    sources = sources_in(tmp_path, __init__='"""Prices."""\n', price="a = 1\n")
    assert silent_packages(sources) == [str(tmp_path / "__init__.py")]
    sources = sources_in(
        tmp_path, __init__='"""Prices. It imports nothing. Start with ``price``."""\n'
    )
    assert silent_packages(sources) == []
