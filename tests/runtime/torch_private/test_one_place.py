"""Private names of torch stand in one place each, with a line that says what they are for."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SEAMS = ("runtime/torch_private",)


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written. Empty for what begins with anything but a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    """Whether a dotted name is one of torch's and none that users call. Ops are public: theirs may
    begin with an underscore, too."""
    root, *parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return root == "torch" and hidden and parts[0] != "ops"


def chains(node: ast.AST) -> Iterator[ast.Attribute]:
    """Each `a.b.c` in a node, without the `a.b` in it."""
    inner = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute) and id(n) not in inner:
            yield n


# ------------------------------------------------------------------------ inside of the seams


def entries(text: str) -> Iterator[tuple[str, list[str], str]]:
    """What a module of a seam gives a name: the name, the private names of torch in its value, and
    its line."""
    body = ast.parse(text).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, private_values(node), line_of(after)
            case ast.FunctionDef(name=name):
                yield name, private_values(node), ast.get_docstring(node) or ""


def private_values(node: ast.AST) -> list[str]:
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    names = [*map(dotted, chains(node)), *(text for text in texts if isinstance(text, str))]
    return [name for name in names if is_private(name)]


def line_of(after: ast.stmt | None) -> str:
    match after:
        case ast.Expr(value=ast.Constant(value=str(line))):
            return line
    return ""


@pytest.mark.parametrize("folder", SEAMS)
def test_each_private_name_has_one_name_of_ours_and_a_line(folder: str) -> None:
    found = [entry for path in sources(folder) for entry in entries(path.read_text())]
    assert len(found) > 0
    assert [name for name, _, line in found if len(line) < 10] == []
    ours = Counter(name for name, _, _ in found)
    theirs = Counter(private for _, names, _ in found for private in names)
    assert [name for name, count in (ours + theirs).items() if count > 1] == []


@pytest.mark.parametrize("folder", SEAMS)
def test_the_modules_of_a_seam_can_be_imported(folder: str) -> None:
    for path in sources(folder):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        assert all(hasattr(module, ours) for ours, _, _ in entries(path.read_text()))


def test_a_name_without_a_line_and_a_second_name_are_seen() -> None:
    text = 'import torch\na = torch._C._a\nb = torch._C._a\n"""What it is for."""\n'
    assert list(entries(text)) == [
        ("a", ["torch._C._a"], ""),
        ("b", ["torch._C._a"], "What it is for."),
    ]
    text = 'def a():\n    """Look it up."""\n    return torch._utils._a\nB = ("torch._b", "c")\n'
    assert list(entries(text)) == [
        ("a", ["torch._utils._a"], "Look it up."),
        ("B", ["torch._b"], ""),
    ]
