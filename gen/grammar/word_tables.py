"""The tables from which programs are drawn, read from ``programs.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DEFAULT = Path(__file__).with_name("programs.yaml")


@dataclass(frozen=True)
class InputKind:
    """How an input is made."""

    # the expression of the input, with {x} for its base and {other} for another input
    text: str
    # the shape of its base
    shape: str = ""
    complex: bool = False
    of: str = ""


@dataclass(frozen=True)
class CallKind:
    """A kind of call: what differs in it from the first call."""

    # sizes of the inputs are written with n and m
    n: int = 2
    m: int = 3
    # the precision of the inputs
    dtype: str = "double"
    # the flags of the leaves
    grad: str = ""
    # the word of the context that the call runs in, such as a grad mode
    around: str = ""
    # the statement that runs before the call
    before: str = ""
    # whether the call gets the same objects once more
    same: bool = False
    # the kinds of the inputs
    kinds: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Grammar:
    """The words of each part of a program, with what they stand for."""

    inputs: Mapping[str, InputKind]
    statements: Mapping[str, str]
    results: Mapping[str, str]
    calls: Mapping[str, CallKind]
    # The groups of statements, by their words. A statement that stands alone is its own group.
    groups: Mapping[str, str]


def load_grammar(path: Path = DEFAULT) -> Grammar:
    """Return the grammar of a file. ``ValueError`` says which entry is wrong."""
    parts = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(parts, dict) or set(parts) != _PARTS:
        raise ValueError(f"{path} has the keys {', '.join(sorted(_PARTS))}")
    statements: dict[str, str] = {}
    groups: dict[str, str] = {}
    for group, texts in parts["statements"].items():
        statements |= texts
        for word in texts:
            groups[word] = word if group == _ALONE else group
    return Grammar(
        _entries(path, "inputs", parts["inputs"], InputKind),
        statements,
        parts["results"],
        _entries(path, "calls", parts["calls"], CallKind),
        groups,
    )


_PARTS = frozenset(("inputs", "statements", "results", "calls"))
_ALONE = "alone"  # the group whose statements have nothing in common


def _entries(path: Path, part: str, entries: Any, kind: Any) -> dict[str, Any]:
    """Return the entries of a part as objects of a data class. ``ValueError`` for a wrong key."""
    objects = {}
    for name, values in entries.items():
        # The class refuses a key that it has no field for, and says which.
        try:
            objects[name] = kind(**values)
        except TypeError as error:
            raise ValueError(f"{path}: {part}.{name}: {error}") from None
    return objects
