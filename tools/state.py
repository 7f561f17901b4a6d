"""List the state that code of the runtime shares: of each thread, and of the process.

    python -m tools.state                       print the page
    python -m tools.state --out docs/state.md   write it

The page comes from the syntax trees alone. The state of a thread is what subclasses of `Ambient`
declare. A registry of the process is a dictionary, list or set at the top of a module that some
function changes.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .house import HouseError, Source, nodes_of_scope, read_sources

ROOT = Path("runtime")
AMBIENT = "Ambient"
CONTAINERS = frozenset(
    (
        *("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter"),
        *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
    )
)
CHANGES = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop"),
        *("popitem", "popleft", "remove", "setdefault", "sort", "update"),
    )
)
PREFACE = """\
# State

Written by `make docs` from the code; do not edit.

## Of each thread

A subclass of `Ambient` (`runtime/seam/ambient.py`) declares it as class attributes. A new thread
begins with the values in the column *attributes*. A thread that continues the work of another one,
such as a worker of a backward pass, gets a copy of its state and of torch's modes:
`continued(work)`. Whoever sets an attribute puts the former value back, most as a context manager.

| state | attributes | set by |
|---|---|---|
"""
REGISTRIES = """
## Of the process

Dictionaries, lists and sets at the top of a module that functions change. All threads share them.

| registry | changed by |
|---|---|
"""

Name = tuple[str, str]
"""A module of the project, by its dotted name, and a name at its top."""


@dataclass
class Shared:
    """A name at the top of a module whose object code changes. `about`: what it holds, in a
    sentence of the code, or nothing. `attributes`: of a thread's state, each with its first value.
    `changed_by`: the functions that change it, as `module:function`."""

    about: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    changed_by: set[str] = field(default_factory=set)


class Module:
    """A source with its dotted name and the names that it imports from other modules."""

    def __init__(self, source: Source) -> None:
        parts = source.path.with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.tree = source.tree
        self.lines = source.lines
        self.imported = dict(self._imports())

    def resolve(self, name: str) -> Name:
        """Find where an object is defined that the module calls `name`."""
        return self.imported.get(name, (self.name, name))

    def about(self, node: ast.stmt) -> str:
        """Give what the code says of an assignment at the top of the module: in the string below
        it, behind it, or in the comment above it."""
        after = self.tree.body[self.tree.body.index(node) + 1 :]
        below = after[0].value if after and isinstance(after[0], ast.Expr) else None
        if isinstance(below, ast.Constant) and isinstance(below.value, str):
            return _first_sentence(below.value)
        assert node.end_lineno is not None
        behind = self.lines[node.end_lineno - 1].partition("  # ")[2]
        if behind:
            return behind
        first = node.lineno - 1
        while self.lines[first - 1].startswith("# ") and first:
            first -= 1
        return _first_sentence(" ".join(line[2:] for line in self.lines[first : node.lineno - 1]))

    def _imports(self) -> Iterator[tuple[str, Name]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                for alias in node.names:
                    yield alias.asname or alias.name, (self._above(node), alias.name)

    def _above(self, node: ast.ImportFrom) -> str:
        """Give the absolute name of the module in `from ..module import name`."""
        package = self.name.split(".")
        depth = node.level - self.is_package
        kept = package[: len(package) - depth]
        return ".".join([*kept, *filter(None, [node.module])])


# ------------------------------------------------------------------------------- what is shared


def thread_states(modules: Iterable[Module]) -> dict[Name, Shared]:
    """Find the objects of subclasses of `Ambient`."""
    found = {}
    for module in modules:
        classes = {
            node.name: node
            for node in module.tree.body
            if isinstance(node, ast.ClassDef) and AMBIENT in map(_base_name, node.bases)
        }
        for _, name, value in _assignments(module.tree.body):
            called = value.func if isinstance(value, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in classes:
                found[module.name, name] = _shared_by_thread(classes[called.id])
    return found


def registries(modules: Iterable[Module]) -> dict[Name, Shared]:
    """Find the containers at the top of modules."""
    return {
        (module.name, name): Shared(module.about(node))
        for module in modules
        for node, name, value in _assignments(module.tree.body)
        if _is_container(value)
    }


def note_changes(modules: Iterable[Module], shared: Mapping[Name, Shared]) -> None:
    """Note in each of `shared` which functions change it."""
    for module in modules:
        for function, node in _nodes_in_functions(module.tree):
            for name in _changed_names(node):
                known = shared.get(module.resolve(name))
                if known is not None:
                    known.changed_by.add(f"{module.name}:{function}")


def _base_name(base: ast.expr) -> str:
    return base.id if isinstance(base, ast.Name) else ""


def _shared_by_thread(definition: ast.ClassDef) -> Shared:
    values = {name: ast.unparse(value) for _, name, value in _assignments(definition.body)}
    of_each_thread = (node for node in definition.body if isinstance(node, ast.FunctionDef))
    for node in of_each_thread:
        if node.name == "__init__":
            values |= _values_of_self(node)
    return Shared(_first_sentence(ast.get_docstring(definition) or ""), values)


def _values_of_self(definition: ast.FunctionDef) -> dict[str, str]:
    """Map the attributes that `__init__` gives to `self` to their values."""
    pairs = (
        (target, node.value)
        for node in definition.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    return {x.attr: ast.unparse(value) for x, value in pairs if isinstance(x, ast.Attribute)}


def _first_sentence(text: str) -> str:
    sentence = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return re.sub(r":\w+:`[~.]*([^`]*)`", r"`\1`", sentence).replace("``", "`")


def _assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Give the statements that assign to names: each with the name and the value."""
    for node in body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from ((node, x.id, node.value) for x in [node.target] if isinstance(x, ast.Name))
        elif isinstance(node, ast.Assign):
            yield from ((node, x.id, node.value) for x in node.targets if isinstance(x, ast.Name))


def _is_container(value: ast.expr) -> bool:
    """Tell whether an expression makes an empty container, which somebody is to fill, or fills one
    itself."""
    if isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)):
        return True
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    name = called.attr if isinstance(called, ast.Attribute) else _base_name(called)
    return name in CONTAINERS


# ------------------------------------------------------------------------------ who changes it


def _nodes_in_functions(tree: ast.AST, around: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Walk through the bodies of functions. Each node comes with the path of its function, such as
    `Tape.record`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            path = f"{around}.{node.name}".lstrip(".")
            yield from _nodes_in_functions(node, path)
            if not isinstance(node, ast.ClassDef):
                yield from ((path, inner) for inner in nodes_of_scope(node))
        else:
            yield from _nodes_in_functions(node, around)


def _changed_names(node: ast.AST) -> Iterator[str]:
    """Give the names whose object a statement or call changes: `NAME.attribute = …`, `NAME[…] = …`,
    `NAME.append(…)`, `NAME |= …`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in CHANGES:
            yield _base_name(node.func.value)
        return
    if isinstance(node, ast.AugAssign):
        yield _base_name(node.target)
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        yield _base_name(node.value)


# ------------------------------------------------------------------------------------- the page


def page(root: Path) -> str:
    """Write the page about the packages below `root`."""
    modules = [Module(source) for source in read_sources([root])]
    states, containers = thread_states(modules), registries(modules)
    note_changes(modules, states)
    note_changes(modules, containers)
    lines = [
        _row(_what(name, state), _attributes(state), _changers(name, state))
        for name, state in states.items()
    ]
    changed = {name: state for name, state in containers.items() if state.changed_by}
    rest = [_row(_what(name, state), _changers(name, state)) for name, state in changed.items()]
    return PREFACE + "\n".join(lines) + "\n" + REGISTRIES + "\n".join(rest) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _place(name: Name) -> str:
    module, own = name
    return f"`{module.partition('.')[2]}` `{own}`"


def _what(name: Name, state: Shared) -> str:
    return f"{_place(name)} {state.about}".rstrip()


def _attributes(state: Shared) -> str:
    return "<br>".join(f"`{name} = {value}`" for name, value in state.attributes.items())


def _changers(name: Name, state: Shared) -> str:
    """Name the functions, those of other modules after their module."""
    by_module: defaultdict[str, list[str]] = defaultdict(list)
    for place in sorted(state.changed_by):
        module, _, function = place.partition(":")
        by_module[module].append(f"`{function}`")
    own = by_module.pop(name[0], [])
    others = [f"`{m.partition('.')[2]}`: {', '.join(f)}" for m, f in by_module.items()]
    return "; ".join([*filter(None, [", ".join(own)]), *others])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.state",
        description="List the state of each thread and the registries of the process.",
    )
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="runtime by default")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="write to this file")
    options = parser.parse_args(arguments)
    try:
        text = page(options.root)
    except HouseError as error:
        print(error, file=sys.stderr)
        return 2
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
