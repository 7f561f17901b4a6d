"""What the pages, comments and docstrings name is there: files, folders, links, and dotted
names of the runtime."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [
    path
    for folder in ("runtime", "gen", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
ROOTS = (ROOT, ROOT / "runtime", ROOT / "gen")  # a page may leave out the folder that it is about
FILE_NAMES = {
    path.name
    for folder in ("runtime", "gen", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
}
WRITTEN_BY_COMMANDS = (".cache", "report")
OF_THE_READER = {"mypackage", "test_mine.py"}  # the README's example of an op of one's own
OF_TORCH = {"derivatives.yaml"}

_CODE_BLOCK = re.compile(r"^(?: {4}.*|```.*?^```)$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\s]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
_PATH = re.compile(r"(?<![\w./-])((?:[\w-]+/)+[\w-]+\.(?:py|md|yaml))\b")
_DOTTED = re.compile(r"(?<![\w./-])(runtime(?:\.[A-Za-z_]\w*)+)(?![\w./-]*/)")


def test_the_site_leads_to_every_page() -> None:
    index = (ROOT / "docs/index.md").read_text()
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    listed = [
        line for block in blocks for line in block.splitlines() if re.fullmatch(r"[\w/]+", line)
    ]
    pages = [
        str(path.relative_to(ROOT / "docs").with_suffix(""))
        for path in (ROOT / "docs").rglob("*.md")
    ]
    assert sorted([*listed, "index"]) == sorted(pages)


def named_files(page: str) -> Iterator[str]:
    """The files and folders that the prose of a page names. Names with a part in capitals
    stand for any file."""
    for name in _QUOTED.findall(_CODE_BLOCK.sub("", page)):
        is_file = "/" in name or name.endswith((".py", ".md", ".yaml", ".json", ".toml", ".ini"))
        if (
            is_file
            and re.fullmatch(r"[\w./-]+", name)
            and not re.search(r"\b[A-Z]{4,}\b|_[A-Z]{4,}", name.removesuffix("README.md"))
        ):
            yield name


def is_there(name: str) -> bool:
    first = name.partition("/")[0]
    if (
        first in WRITTEN_BY_COMMANDS
        or first in OF_THE_READER
        or name.rpartition("/")[2] in OF_TORCH
    ):
        return True
    return name in FILE_NAMES or any((root / name).exists() for root in ROOTS)


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, an attribute at any depth of one, or an op of the
    namespace ``runtime``."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:-1]:
            found = getattr(found, part, None)
        return (
            length == len(parts)
            or hasattr(found, parts[-1])
            or parts[-1] in getattr(found, "__annotations__", ())
            or _is_op(parts)
        )
    return False


def _is_op(parts: list[str]) -> bool:
    return len(parts) > 1 and hasattr(torch.ops.runtime, parts[1])


def test_a_missing_file_is_noticed() -> None:
    page = "see `seam/levels.py`, `x.y`, `rules/FAMILY.py` and `gone.py`\n\n    `no/prose.py`\n"
    assert list(named_files(page)) == ["seam/levels.py", "gone.py"]
    assert (
        is_there("seam/levels.py")
        and is_there("levels.py")
        and not is_there("gone.py")
        and not is_there("seam/gone.py")
    )
    assert (
        resolves("runtime.seam.levels.Level.call")
        and not resolves("runtime.seam.levels.Level.gone")
        and not resolves("runtime.gone")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    assert [name for name in named_files(page.read_text("utf-8")) if not is_there(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_links_to_pages_that_are_there(page: Path) -> None:
    links = _LINK.findall(_CODE_BLOCK.sub("", page.read_text("utf-8")))
    assert [
        link for link in links if not link.startswith("http") and not (page.parent / link).exists()
    ] == []


@pytest.mark.parametrize("folder", ["runtime", "gen", "benchmarks"])
def test_comments_name_files_that_are_there(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.is_relative_to(ROOT / folder)
        for name in _PATH.findall(path.read_text("utf-8"))
        if not is_there(name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "path",
    [*PAGES, *(ROOT / name for name in ("runtime", "gen", "benchmarks"))],
    ids=lambda p: p.stem,
)
def test_dotted_names_of_the_runtime_resolve(path: Path) -> None:
    texts = [path] if path.is_file() else [p for p in SOURCES if p.is_relative_to(path)]
    found = {
        (str(p.relative_to(ROOT)), name)
        for p in texts
        for name in _DOTTED.findall(p.read_text("utf-8"))
        if not resolves(name)
    }
    assert found == set()


@pytest.mark.parametrize("place", ["matrix/known-torch.yaml", "runtime", "tests/runtime"])
def test_a_finding_that_is_referred_to_has_a_section(place: str) -> None:
    texts = [ROOT / place] if place.endswith(".yaml") else sorted((ROOT / place).rglob("*.py"))
    sections = set(
        re.findall(r"^### (F\d+)\.", (ROOT / "docs/findings.md").read_text("utf-8"), re.MULTILINE)
    )
    named = {
        name
        for path in texts
        for name in re.findall(r"\bfindings(?:\.md)?\W+(F\d+)\b", path.read_text("utf-8"))
    }
    assert named and named <= sections
