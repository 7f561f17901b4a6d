"""Look-ups of attributes by names that are in no code.

    getattr(self, f"layer{i}")          # the code has the name ``getattr``
    look_up = getattr                   # and here an object that the program comes to

Where a program has one of them, any attribute of any object may be asked for."""

from __future__ import annotations

import copy
import operator
from types import BuiltinMethodType, FunctionType, MethodWrapperType
from typing import Any

COMPUTED = frozenset(
    [
        "vars",
        "__dict__",
        "getattr",
        "setattr",
        "hasattr",
        "delattr",
        "dir",
        "asdict",
        "astuple",
        "fields",
        "replace",
        "copy",
        "deepcopy",
        "dumps",
        "__getstate__",
        "attrgetter",
        "methodcaller",
        "globals",
        "eval",
        "exec",
        "locals",
        "__getattribute__",
        "format",
        "format_map",
    ]
)
"""Names of what looks attributes up whose names are in no code."""
LOOKUPS: frozenset[Any] = frozenset(
    (getattr, setattr, hasattr, delattr, vars, dir, globals, locals, eval, exec, copy.copy)
)
"""Functions that look up names that are in no code, whatever the program calls them."""


_KINDS = frozenset(
    (
        operator.attrgetter,
        operator.methodcaller,
        BuiltinMethodType,
        MethodWrapperType,
        FunctionType,
    )
)


def is_lookup(x: Any) -> bool:
    """Return whether ``x`` looks up names that are in no code."""
    kind = type(x)
    if kind not in _KINDS:
        return False
    if kind in (operator.attrgetter, operator.methodcaller):
        return True
    if kind in (BuiltinMethodType, MethodWrapperType):
        return x in LOOKUPS or x.__name__ in COMPUTED
    return kind is FunctionType and x in LOOKUPS
