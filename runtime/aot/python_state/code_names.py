"""The names in a function's code.

    def step(self, x):
        return x * getattr(self, "rate") * scale

has the global name ``scale``, the attributes ``getattr`` and so on, and the word ``rate`` of a
text. Which object a name leads to is not asked. So the names are more than the function uses, and
never less.

``getattr`` looks an attribute up by a name that no code need have. Where a program has such a
function, by its name or as an object (:func:`is_lookup`), any attribute of any object may be asked
for."""

from __future__ import annotations

import copy
import dis
import inspect
import operator
import re
from types import (
    BuiltinMethodType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from ...trace.provenance import Line
from .trusted import is_followed

_WORD = re.compile(r"[A-Za-z_]\w*")
_LONG = 256  # characters of a text from which on it is prose
# These ask an object for a name. An instruction that is not known counts as one that asks for
# globals, too: then the names are more.
_OF_OBJECTS = frozenset(
    (
        "LOAD_ATTR",
        "LOAD_METHOD",
        "LOAD_SUPER_ATTR",
        "STORE_ATTR",
        "DELETE_ATTR",
        "IMPORT_FROM",
    )
)


_STORING = ("STORE_", "DELETE_")


class CodeNames:
    """The names in ``code`` and in the functions that it defines. ``every``: of globals, attributes
    and imports. ``globals``: those that it looks up as globals. ``loaded``: those that it does not
    only store to. ``words``: of short texts."""

    __slots__ = ("every", "globals", "loaded", "words")

    def __init__(self, code: CodeType) -> None:
        self.every: set[str] = set()
        self.globals: set[str] = set()
        self.loaded: set[str] = set()
        self.words: set[str] = set()
        pending: list[Any] = [code]
        while pending:
            self._add(pending.pop(), pending)

    def _add(self, constant: object, pending: list[object]) -> None:
        """Add what a constant of code says: the names of code inside, and the words of a text."""
        if isinstance(constant, CodeType):
            self.every.update(constant.co_names)
            self._sort(constant)
            pending += constant.co_consts
        elif isinstance(constant, (tuple, frozenset)):
            pending += constant
        # a text of several lines, such as a docstring, is prose as well
        elif isinstance(constant, str) and len(constant) < _LONG and "\n" not in constant:
            self.words.update(_WORD.findall(constant))

    def _sort(self, code: CodeType) -> None:
        """Add the names of ``code`` that are globals, and those that it does not only store to."""
        for instruction in dis.get_instructions(code):
            if instruction.opcode not in dis.hasname:
                continue
            if instruction.opname not in _OF_OBJECTS:
                self.globals.add(instruction.argval)
            if not instruction.opname.startswith(_STORING):
                self.loaded.add(instruction.argval)


# by id of the code, which is held: the names in it
_known: dict[int, tuple[CodeType, CodeNames]] = {}


def names_of(code: CodeType) -> CodeNames:
    """Return the names in ``code``. Code objects are told apart by identity, since to hash one
    takes as long as to hash all that it holds."""
    found = _known.get(id(code))
    if found is None:
        found = _known[id(code)] = (code, CodeNames(code))
    return found[1]


def first_code(root: object) -> tuple[CodeType | None, dict[str, Any]]:
    """Return the code that a call of ``root`` runs first, if that is the user's."""
    function = root
    if isinstance(function, torch.nn.Module):
        function = function.forward
    elif not isinstance(function, (FunctionType, MethodType, type)):
        function = _found_in_class(type(function), "__call__")
    function = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(function, FunctionType) and is_followed(function.__code__.co_filename):
        return function.__code__, function.__globals__
    return None, {}


def _found_in_class(kind: type, name: str) -> Any:
    return next((vars(cls)[name] for cls in kind.__mro__ if name in vars(cls)), None)


def beginning_of(code: CodeType) -> Line:
    """Return the first line of the body of a function. The code itself begins with a decorator."""
    later = [line for _, _, line in code.co_lines() if line and line > code.co_firstlineno]
    return code.co_filename, min(later, default=code.co_firstlineno), code.co_name


# --- look-ups by computed names -----------------------------------------------------------------

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
LOOKUPS_OF_GLOBALS: frozenset[Any] = frozenset((globals, eval, exec))
LOOKUPS: frozenset[Any] = LOOKUPS_OF_GLOBALS | frozenset(
    (getattr, setattr, hasattr, delattr, vars, dir, locals, copy.copy)
)
"""Functions that look up names that are in no code, whatever the program calls them."""


NAMERS: frozenset[type] = frozenset((operator.attrgetter, operator.methodcaller))
"""Classes of functions that hold the names that they look up."""
_UNBOUND = (
    WrapperDescriptorType,
    MethodDescriptorType,
    ClassMethodDescriptorType,
)
_IN_C = COMPUTED | {"__dir__", "__reduce__", "__reduce_ex__"}
"""Names of methods of C that do so."""
_KINDS = frozenset(
    (
        *NAMERS,
        BuiltinMethodType,
        MethodWrapperType,
        *_UNBOUND,
        FunctionType,
    )
)


def is_lookup(x: Any) -> bool:
    """Return whether ``x`` looks up names that are in no code."""
    kind = type(x)
    if kind not in _KINDS:
        return False
    if kind in NAMERS:
        return True
    if kind in _UNBOUND:
        return x.__name__ in _IN_C
    if kind in (BuiltinMethodType, MethodWrapperType):
        return x in LOOKUPS or x.__name__ in _IN_C
    return kind is FunctionType and x in LOOKUPS
