"""Collect the facts of the installed torch, by section, and compare those of two versions.

    facts = collect()
    facts["formulas"]["mul.Tensor"]     # "self other"
    facts["names"]["torch._C._dynamo.guards.dict_version"]     # what kind of object it is
    for edit in edits(old, facts):
        print(edit)                     # formulas  special_bessel_j0.default: absent -> self
                                        #     the record of special_bessel_j0, …

What is asked for is what this project uses: the ops with records, the names in its source, what the
drop-in replaces. With ``known``, the facts of another version, it is what that has. So a torch on
which the runtime cannot be imported is compared nevertheless.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from gen.facts import probes
from gen.facts.without_runtime import derivatives
from gen.package_names import RUNTIME

Section = Mapping[str, str]
Facts = Mapping[str, Section]
ROOT = Path(__file__).parents[2]
# where private names of torch are, see `tests/runtime/torch_private`
SEAMS = (
    *("runtime/torch_private", "runtime/dropin", "gen/torch_private"),
    "runtime/aot/compilers/trial_process.py",  # a program of its own
)
ABSENT = "absent"
_OWN = "torch_transform_matrix."  # ops of this project
# the sections whose facts begin with the name of an op, as `aten.mul.Tensor` and as `mul.Tensor`
_OF_ATEN = ("schemas", "decompositions")
_OF_OPS = ("formulas", "probes")


def collect(known: Facts | None = None) -> dict[str, dict[str, str]]:
    """Return all facts, each section sorted. ``known``: the facts of another version, see above."""
    ours = _runtime()
    overloads, names = {*map(str, ours.records)}, {*private_names()}
    if known is not None:  # what nobody has written down of that version says nothing of this one
        overloads, names = {*known.get("schemas", ())}, {*known.get("names", ())}
    replaced = dict(_replacements(ours.replaced))
    if known is not None and ours.error is not None:  # nobody says then what is replaced
        replaced = dict(known.get("replaced", {}))
    formulas = derivatives.formulas().items()
    sections: dict[str, Section] = {
        "schemas": {name: _schema(name) for name in overloads if not name.startswith(_OWN)},
        "formulas": {name: " ".join(arguments) for name, arguments in formulas},
        "decompositions": {name: "decomposed" for name in overloads if _is_decomposed(name)},
        "names": {name: _kind_of(_resolve(name)) for name in names},
        "replaced": replaced,
        "probes": probes.answers(),
    }
    return {section: dict(sorted(facts.items())) for section, facts in sections.items()}


class _Runtime:
    """What the runtime says of itself. ``error``: why it cannot be imported."""

    def __init__(self) -> None:
        self.records: Iterable[object] = ()
        self.replaced: Iterable[object] = ()
        self.error: Exception | None = None


def _runtime() -> _Runtime:
    """Import the runtime, and return what it says of itself."""
    runtime_facts = _Runtime()
    try:
        from runtime import dropin
        from runtime.rules.record import RECORDS

        with dropin.installed():
            runtime_facts.replaced = dropin.replaced()
        runtime_facts.records = tuple(RECORDS)
    except Exception as error:  # a torch that it does not know may fail in any way
        runtime_facts.error = error
    return runtime_facts


def import_error() -> Exception | None:
    """Return why the runtime cannot be imported on the installed torch, if it cannot."""
    return _runtime().error


def _overload(name: str) -> Any:
    """Return the overload of a name such as ``aten.mul.Tensor``. Raises AttributeError."""
    overload: Any = torch.ops
    for part in name.split("."):
        overload = getattr(overload, part)
    return overload


def _schema(name: str) -> str:
    try:
        return str(_overload(name)._schema)
    except AttributeError:
        return ABSENT


@functools.cache
def _decompositions() -> Mapping[object, object]:
    """Return torch's table of decompositions.

    It is empty where torch has none by that name: the seams cannot be imported there, and facts are
    asked for in order to learn why.
    """
    table: Any = _resolve("torch._decomp.decomposition_table")
    return {} if table is ABSENT else table


def _is_decomposed(name: str) -> bool:
    try:
        return _overload(name) in _decompositions()
    except AttributeError:
        return False


def private_names() -> Iterator[str]:
    """Yield the private names of torch that this project uses, dotted: those of the two seams, and
    those that the drop-in replaces.
    """
    for seam in SEAMS:
        place = ROOT / seam
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield from filter(_is_private, _names_in(ast.parse(file.read_text("utf-8"))))


def _names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a file imports or reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Attribute) and (name := _dotted(node)) is not None:
            yield name


def _dotted(node: ast.expr) -> str | None:
    """Return the text of an attribute of attributes of a name. None for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else None


def _is_private(name: str) -> bool:
    """Return whether a name is torch's and has a part with one underscore in front."""
    root, *parts = name.split(".")
    private = (part.startswith("_") and not part.startswith("__") for part in parts)
    return root == "torch" and any(private)


def _resolve(name: str) -> object:
    """Return the object that a dotted name leads to, or ``ABSENT``."""
    parts = name.split(".")
    # Nothing says where the module's name ends, so the longest one that can be imported counts.
    for count in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            value = getattr(value, part, ABSENT)
            if value is ABSENT:
                return ABSENT
        return value
    return ABSENT


def _kind_of(value: object) -> str:
    """Return what a user of an object depends on: the signature of a function, else its kind."""
    if value is ABSENT:
        return str(value)
    if isinstance(value, FunctionType):
        parameters = inspect.signature(value).parameters.values()
        return f"function({', '.join(map(_parameter, parameters))})"
    kind: str = type(value).__name__
    return kind


def _parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter without its default, such as `*args` or `dim=… by name`."""
    marks: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    mark = marks.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else "=…"
    by_name = " by name" if parameter.kind is parameter.KEYWORD_ONLY else ""
    return f"{mark}{parameter.name}{default}{by_name}"


def _replacements(objects: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Yield the name and the kind of each object of torch that the drop-in replaces."""
    for replaced in objects:
        name = getattr(replaced, "__qualname__", None)
        module = getattr(replaced, "__module__", None)
        if name is not None and not str(module).startswith((f"{RUNTIME}.", "builtins")):
            yield f"{module or 'torch'}.{name}", _kind_of(replaced)


@dataclass(frozen=True)
class Edit:
    """A fact that changed."""

    # the section of the file that has the fact
    section: str
    fact: str
    old: str
    new: str
    # what of this project depends on it, as far as known
    touches: str = ""

    def __str__(self) -> str:
        line = f"{self.section:15}{self.fact}: {self.old} -> {self.new}"
        return f"{line}\n{'':15}    {self.touches}" if self.touches else line


def edits(old: Facts, new: Facts, families: Mapping[str, str] | None = None) -> Iterator[Edit]:
    """Yield the facts that differ, by section.

    ``families``: those of ops with records, by the op's name without its overload.
    """
    for section in dict.fromkeys([*old, *new]):
        before, now = old.get(section, {}), new.get(section, {})
        for fact in sorted({*before, *now}):
            was, is_now = before.get(fact, ABSENT), now.get(fact, ABSENT)
            if was != is_now:
                touches = _what_it_touches(section, fact, families or {})
                yield Edit(section, fact, was, is_now, touches)


def _what_it_touches(section: str, fact: str, families: Mapping[str, str]) -> str:
    """Return which record of this project depends on a fact. Empty if none does."""
    if section not in _OF_ATEN + _OF_OPS:
        return ""
    name = fact.partition(":")[0]  # a question has more after it
    op = name.split(".")[1 if section in _OF_ATEN else 0]
    family = families.get(op)
    return "" if family is None else f"the record of {op} (family {family})"
