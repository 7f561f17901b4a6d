"""Look up whether `package.module:name` names something, by reading files. Nothing is imported, so
nothing of it runs.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ENDINGS = (".py", *importlib.machinery.EXTENSION_SUFFIXES)


@dataclass(frozen=True)
class Missing:
    """What is wrong with a name: a sentence, what was expected, and the names that are there
    instead.
    """

    what: str
    expected: str
    names: tuple[str, ...] = ()


def missing(name: str, folder: Path) -> Missing | None:
    """Return what keeps `name` from naming something that is installed or lies in `folder`. None if
    nothing is known to.
    """
    module, colon, attributes = name.partition(":")
    parts = module.split(".")
    place = _top(parts[0], folder)
    if place is None:
        return Missing(
            f'there is no package or module "{parts[0]}"',
            f"one that is installed, or that lies in {folder}",
        )
    top, is_own = place
    # what is installed may make its names when it is imported, so it is not looked into
    if not is_own:
        return None
    path, rest = _follow(top, parts[1:])
    if colon and rest:
        shown = ".".join(parts[: len(parts) - len(rest) + 1])
        return Missing(f'there is no module "{shown}"', "package.module:function")
    if colon:
        rest = attributes.split(".")
    return _lacks_first(path, folder, rest)


def _lacks_first(path: Path | None, folder: Path, names: list[str]) -> Missing | None:
    """Return what keeps the first of `names` from being in a module or package. None if nothing is
    known to.
    """
    if path is not None and path.is_dir():
        path = path / "__init__.py"
    if path is None or path.suffix != ".py":
        return None
    return _lacks(path, folder, "".join(names[:1]))


def _follow(path: Path | None, parts: list[str]) -> tuple[Path | None, list[str]]:
    """Follow inner names from a file or folder, as far as these are modules.

    Returns the last module, and the names that are left.
    """
    for position, part in enumerate(parts):
        if path is None or path.is_file():
            return path, parts[position:]
        inner = _member(path, part)
        if inner is None:
            return path / "__init__.py", parts[position:]
        path = inner
    return path, []


def _top(name: str, folder: Path) -> tuple[Path | None, bool] | None:
    """Return the file or folder of a top-level name, and whether it lies in the project. None if
    there is none.
    """
    own = _member(folder, name)
    if own is not None:
        return own, True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None else (None, False)


def _member(folder: Path, name: str) -> Path | None:
    """Return the folder or the file of a module in a folder. None if there is none."""
    if (folder / name).is_dir():
        return folder / name
    for ending in _ENDINGS:
        path = folder / f"{name}{ending}"
        if path.is_file():
            return path
    return None


def _lacks(path: Path, folder: Path, wanted: str) -> Missing | None:
    """Return what keeps a module from having the name `wanted`, or from being read at all."""
    shown = path.name
    if path.is_relative_to(folder):
        shown = path.relative_to(folder).as_posix()
    if not path.is_file():  # a package without an __init__.py
        if not wanted:
            return None
        return Missing(
            f'there is no "{wanted}" in {path.parent.name}', "a module or a function in it"
        )
    try:
        names = _names(path)
    except (SyntaxError, ValueError) as error:
        return Missing(
            f"{shown}:{getattr(error, 'lineno', None) or 1}: is not readable as Python",
            "a module that can be imported",
        )
    except OSError as error:
        return Missing(f"cannot read {shown}: {error.strerror}", "a module that can be imported")
    if names is None or not wanted or wanted in names:
        return None
    return Missing(
        f'{shown} defines no "{wanted}"',
        "a function that it defines or imports",
        tuple(sorted(names)),
    )


@cache
def _names(path: Path) -> frozenset[str] | None:
    """Return the names that a module binds at its top level. None if only running it would show
    them.
    """
    # A star import or `__getattr__` may bind any name.
    tree = ast.parse(path.read_bytes())
    names = frozenset(_names_bound_by(tree.body))
    if not names.isdisjoint({"*", "__getattr__"}) or _writes_to_itself(tree):
        return None
    return names


def _names_bound_by(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind: definitions, imports and assignments."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            # `import a.b` binds a
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        else:
            # also inside of `if` and `try`, of which any branch may run
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id
                elif isinstance(
                    inner, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
                ):
                    yield from _names_bound_by([inner])


def _writes_to_itself(tree: ast.Module) -> bool:
    """Return whether a module makes names by `globals()`, `setattr` or `exec`."""
    makers = {"globals", "vars", "setattr", "exec"}
    return any(isinstance(node, ast.Name) and node.id in makers for node in ast.walk(tree))
