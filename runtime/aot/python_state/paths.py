"""Which names, attributes and items a function of Python reads, from its code.

    def f(x):
        return x * self.scale + config["rate"]      # with self and config from outside

reads the attribute ``scale`` of the free variable ``self`` and the item ``"rate"`` of the global
``config``. What a variable holds that is assigned more than once, or by anything but such a
path, is not known.
"""

from __future__ import annotations

import dis
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import CodeType
from typing import Any


class Root(Enum):
    """Where a path begins."""

    GLOBAL = "a name of the module"
    CELL = "a name of a function around"
    LOCAL = "an argument"
    UNKNOWN = "the result of a call, an item of a loop"


class Step(Enum):
    ATTRIBUTE = "."
    NAMED = "getattr or hasattr"  # an attribute that may be missing
    ITEM = "[]"


@dataclass(frozen=True)
class Path:
    """``steps`` from the object that ``name`` is bound to, each with the name of an attribute or
    the key of an item. ``ends``: whether what is found there is used as a whole, by a loop for
    instance, and no further step follows."""

    root: Root
    name: str
    steps: tuple[tuple[Step, Any], ...] = ()
    ends: bool = False


_ROOTS = {
    "LOAD_GLOBAL": Root.GLOBAL,
    "LOAD_NAME": Root.GLOBAL,
    "LOAD_DEREF": Root.CELL,
    "LOAD_CLASSDEREF": Root.CELL,
    "LOAD_FAST": Root.LOCAL,
    "LOAD_FAST_CHECK": Root.LOCAL,
    "LOAD_FAST_AND_CLEAR": Root.LOCAL,
}
_BY_NAME = (Path(Root.GLOBAL, "getattr"), Path(Root.GLOBAL, "hasattr"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_UNKNOWN = frozenset(("CALL", "CALL_FUNCTION_EX", "FOR_ITER", "BINARY_SUBSCR"))
_WITHOUT_EFFECT = frozenset(
    ("CACHE", "PUSH_NULL", "NOP", "RESUME", "EXTENDED_ARG", "COPY_FREE_VARS", "MAKE_CELL")
)


@lru_cache(maxsize=4096)
def paths_of(code: CodeType) -> tuple[Path, ...]:
    """The paths that ``code`` reads, each once, and those of the functions that it defines as far
    as they begin outside of it."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _WITHOUT_EFFECT]
    assigned = Counter(i.argval for i in instructions if i.opname in ("STORE_FAST", "DELETE_FAST"))
    assigned.update(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    aliases: dict[str, Path] = {}
    found: dict[Path, None] = {}
    path: Path | None = None
    key: tuple[Any] | None = None  # a constant on top of the stack, above what `path` leads to
    by_name = False  # whether `path` begins right after the name `getattr` or `hasattr`
    for i in instructions:
        name = i.opname
        if name == "COPY" and path is not None and i.argval == (1 if key is None else 2):
            continue  # of `self.calls += 1` and `rates["first"] += 1`
        if name == "LOAD_CONST" and path is not None and key is None:
            key = (i.argval,)
            continue
        if path is not None and key is None and name in _ATTRIBUTES:
            path = Path(path.root, path.name, (*path.steps, (Step.ATTRIBUTE, i.argval)))
            found[path] = None
            continue
        if (
            path is not None
            and key is not None
            and name == "BINARY_SUBSCR"
            and isinstance(key[0], (str, int))
        ):
            path, key = Path(path.root, path.name, (*path.steps, (Step.ITEM, key[0]))), None
            found[path] = None
            continue
        if path is not None:
            if name == "STORE_FAST" and key is None and assigned[i.argval] == 1:
                aliases[i.argval] = path
            elif path.root is not Root.UNKNOWN or path.steps:
                found[Path(path.root, path.name, path.steps, True)] = None
            if key is not None and type(key[0]) is str:  # getattr(self, "scale")
                found[
                    Path(
                        path.root,
                        path.name,
                        (*path.steps, (Step.NAMED if by_name else Step.ATTRIBUTE, key[0])),
                    )
                ] = None
        by_name = path in _BY_NAME
        path, key = Path(Root.UNKNOWN, "") if name in _UNKNOWN else None, None
        if name in _ROOTS:
            # a variable that a function inside uses too
            root = Root.LOCAL if i.argval in code.co_cellvars else _ROOTS[name]
            path = (
                aliases.get(i.argval, Path(root, i.argval))
                if root is Root.LOCAL
                else Path(root, i.argval)
            )
            found[path] = None
    for inner in (c for c in code.co_consts if isinstance(c, CodeType)):
        found |= {p: None for p in (_outside(p, code) for p in paths_of(inner)) if p is not None}
    return tuple(found)


def _outside(path: Path, code: CodeType) -> Path | None:
    """``path`` of a function that ``code`` defines, as one of ``code``. None for a variable
    of that function."""
    if path.root is Root.LOCAL:
        return Path(Root.UNKNOWN, "", path.steps, path.ends) if path.steps else None
    if path.root is Root.UNKNOWN or path.root is Root.GLOBAL or path.name in code.co_freevars:
        return path
    is_argument = path.name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return Path(Root.LOCAL, path.name, path.steps, path.ends) if is_argument else None
