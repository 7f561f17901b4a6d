"""What the pages, comments and docstrings name is there: files, folders, links, modules, and dotted
names of the packages."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PACKAGES = ("runtime", "gen", "programs", "benchmarks", "examples", "tools")
SOURCES = [path for folder in PACKAGES for path in sorted((ROOT / folder).rglob("*.py"))]
ROOTS = (ROOT, ROOT / "runtime", ROOT / "gen")  # `seam/levels.py` is runtime/seam/levels.py
SPEAKS_OF = {
    "aot": ("runtime/aot", "runtime/aot/compilers", "runtime/trace"),
    "autograd": ("runtime/autograd", "runtime/tape"),
    "dropin": ("runtime/dropin",),
    "per_sample": ("runtime/per_sample",),
    "rules": ("runtime/rules", "runtime/rules/samples"),
}
"""The folders that a page may leave out before a file, beside :data:`ROOTS`."""
WRITTEN_BY_COMMANDS = {".cache", "report", "findings.json", "rows.yaml"}
OF_READERS = {
    "mydevice": "the package that bring_up.md writes",
    "sketch": "the package that tutorial.md writes",
}
"""Files and packages that are examples of what a reader may have."""
OF_TORCH = {"derivatives.yaml"}

_CODE_BLOCK = re.compile(r"^(?: {4}[^\n]*|```.*?^```)$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\s]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
_PATH = re.compile(r"(?<![\w./-])((?:[\w-]+/)+[\w-]+\.(?:py|md|yaml))(?!\w|\.\w)")
_QUOTED_FILE = re.compile(r"``([\w-]+\.py)``")
_DOTTED = re.compile(r"(?<![\w./-])((?:runtime|gen)(?:\.[A-Za-z_]\w*)+)(?![\w./-]*/)")
_RELATIVE = re.compile(r":(?:mod|class|func|meth|data|exc):`~?(\.+)([a-z_]\w*)[\w.]*`")


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


def missing_files(page: str, folders: Sequence[Path] = ()) -> list[str]:
    """List the files and folders that a page names and that are not there.

    `folders`: those that the page speaks of. A name without a folder may also stand beside a file
    of the same line, or beside the one that was named last: `jit/entry.py`, `jitted.py`.
    """
    missing = []
    beside: list[Path] = []
    for line in _CODE_BLOCK.sub("", page).splitlines():
        beside = beside[-1:]
        for name in named_files(line):
            found = place_of(name, (*ROOTS, *folders, *beside))
            if found is not None:
                beside.append(found if found.is_dir() else found.parent)
            elif not is_elsewhere(name):
                missing.append(name)
    return missing


def place_of(name: str, folders: Iterable[Path]) -> Path | None:
    """Return the first of `folders` with that file, without what a command has left in the
    project's own."""
    written = name.split("/")[0] in WRITTEN_BY_COMMANDS
    places = (folder / name for folder in folders if not (written and folder == ROOT))
    return next((place for place in places if place.exists()), None)


def is_elsewhere(name: str) -> bool:
    """Whether a file is none of this project's: a command writes it, a reader has it, or torch."""
    parts = name.split("/")
    ends = {parts[0], parts[-1]}
    return not ends.isdisjoint(WRITTEN_BY_COMMANDS | OF_READERS.keys() | OF_TORCH)


def names_of_source(text: str) -> list[str]:
    """The files that the comments and docstrings of a module name."""
    return [*_PATH.findall(text), *_QUOTED_FILE.findall(text)]


def missing_modules(text: str, path: Path) -> list[str]:
    """List the modules that roles such as ``:mod:`.levels``` in `path` name and that are not there.

    A role of a class or a function names a module, too, if a dot and more follow.
    """
    missing = []
    for dots, name in _RELATIVE.findall(text):
        folder = path.parents[len(dots) - 1]
        if not (folder / name).is_dir() and not (folder / f"{name}.py").exists():
            missing.append(f"{dots}{name}")
    return missing


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
    return len(parts) > 1 and hasattr(torch.ops.torch_transform_matrix, parts[1])


def test_a_missing_file_is_noticed() -> None:
    page = """\
see `seam/levels.py`, `x.y`, `rules/FAMILY.py` and `gone.py`

    `no/prose.py`

and after the code `lost.py`

```python
`no/prose.py`
```

and `gone/`
"""
    assert list(named_files(page)) == ["seam/levels.py", "gone.py", "lost.py", "gone/"]
    assert missing_files(page) == ["gone.py", "lost.py", "gone/"]
    assert missing_files("`seam/gone.py`, `seam/`, `runtime/gone/`") == [
        "seam/gone.py",
        "runtime/gone/",
    ]


def test_a_file_without_its_folder_is_looked_for_where_the_page_speaks_of() -> None:
    tape = [ROOT / "runtime/tape"]
    assert missing_files("`hooks.py`") == ["hooks.py"]  # there is one, but not here
    assert missing_files("`hooks.py`", tape) == []
    assert missing_files("| `seam/`, `tape/` | `shells.py`, `hooks.py` |") == []
    assert missing_files("`seam/levels.py`,\n`shells.py`") == []
    assert missing_files("`seam/levels.py`, `func/vmap.py`,\n`shells.py`") == ["shells.py"]


def test_files_of_others_are_not_looked_for() -> None:
    page = "`sketch/ops.py`, `.cache/all`, `out/rows.yaml`, `derivatives.yaml`"
    assert missing_files(page) == []
    assert missing_files("`ops/sketch/gone.py`") == ["ops/sketch/gone.py"]


def test_each_example_of_a_reader_is_on_a_page() -> None:
    named = {
        part
        for page in PAGES
        for name in named_files(page.read_text("utf-8"))
        for part in name.split("/")
    }
    assert OF_READERS.keys() <= named


def test_what_a_command_has_left_is_no_file_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    ours = tmp_path / "gen/report"
    for folder in (ours, tmp_path / "report"):  # `make matrix` writes the second one
        folder.mkdir(parents=True)
    assert place_of("report/", (tmp_path, tmp_path / "gen")) == ours


def test_a_missing_file_of_a_comment_is_noticed() -> None:
    text = "# see seam/gone.py, templates/module.py.j2 and ``gone.py``, not gone.py"
    assert names_of_source(text) == ["seam/gone.py", "gone.py"]


def test_a_missing_module_of_a_role_is_noticed() -> None:
    text = ":mod:`.levels`, :mod:`..tape.nodes`, :class:`.gone.Level`, :func:`here`"
    assert missing_modules(text, ROOT / "runtime/seam/shells.py") == [".gone"]


def test_a_missing_dotted_name_is_noticed() -> None:
    assert resolves("runtime.seam.levels.Level.call") and resolves("gen.checks.case")
    assert not resolves("runtime.seam.levels.Level.gone")
    assert not resolves("runtime.gone") and not resolves("gen.gone")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    folders = [page.parent, *(ROOT / folder for folder in SPEAKS_OF.get(page.stem, ()))]
    assert missing_files(page.read_text("utf-8"), folders) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_links_to_pages_that_are_there(page: Path) -> None:
    links = _LINK.findall(_CODE_BLOCK.sub("", page.read_text("utf-8")))
    assert [
        link for link in links if not link.startswith("http") and not (page.parent / link).exists()
    ] == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_comments_name_files_that_are_there(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.is_relative_to(ROOT / folder)
        for name in names_of_source(path.read_text("utf-8"))
        if place_of(name, (*ROOTS, path.parent)) is None and not is_elsewhere(name)
    ]
    assert found == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_roles_name_modules_that_are_there(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.is_relative_to(ROOT / folder)
        for name in missing_modules(path.read_text("utf-8"), path)
    ]
    assert found == []


@pytest.mark.parametrize(
    "path",
    [*PAGES, *(ROOT / name for name in PACKAGES)],
    ids=lambda p: p.stem,
)
def test_dotted_names_of_the_packages_resolve(path: Path) -> None:
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
