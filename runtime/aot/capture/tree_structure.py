"""What of the arguments of a call its kind has beside tensors: constants, and the trees of the
arguments.

    f({1: x}); f({True: x})     # two kinds, although 1 == True
"""

from __future__ import annotations

from typing import Any

from ...torch_private.pytrees import pytree
from ..python_state.values import SIMPLE, same
from .opened import Context

EXACT = frozenset((bool, int, str, type(None)))
"""Classes of constants of which equal ones are the same."""
_NAMES = frozenset((str,))  # what the keys of most dictionaries are
_OF_PYTHON = pytree.BUILTIN_TYPES


class _Constant:
    """An argument that is no tensor, as a part of a kind. An object that equals another one may
    have other attributes, and a program changes the one that it is given."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Constant and same(self.value, other.value)

    def __hash__(self) -> int:
        return hash((_Constant, type(self.value)))  # whose own hash may be code of the user's


def constant(value: object) -> object:
    """``value`` as a part of a kind. 0.0 and -0.0 are equal, but programs tell them apart, and a
    NaN does not even equal itself."""
    if type(value) in EXACT:
        return value
    if type(value) in (float, complex):
        return repr(value)
    return _Constant(value)


def structure_of(spec: pytree.TreeSpec | None) -> object:
    """``spec`` as a part of a kind. Trees that torch takes for equal may not be the same: the keys
    ``1`` and ``True``, or two classes of one name."""
    if spec is None or spec.type is None:
        return None
    return (spec.type, _context(spec.type, spec.context), *map(structure_of, spec.children()))


def _context(kind: type, context: Any) -> object:
    if context is None or type(context) is Context:
        return context
    if type(context) is list and _NAMES.issuperset(map(type, context)):
        return (list, *context)
    if type(context) in (list, tuple):
        return (type(context), *[_context(kind, x) for x in context])
    if type(context) is dict:
        return (dict, *[(_context(kind, k), _context(kind, value)) for k, value in context.items()])
    if type(context) in SIMPLE:
        return type(context), constant(context)
    if kind in _OF_PYTHON:
        return _Constant(context)
    return _OfClass(context)


class _OfClass:
    """What the flattening function of a class has said of an object. Torch's own trees ask its
    ``==``, too: by that two contexts are the same."""

    __slots__ = ("context",)

    def __init__(self, context: object) -> None:
        self.context = context

    def __eq__(self, other: object) -> bool:
        if type(other) is not _OfClass or type(self.context) is not type(other.context):
            return False
        return self.context is other.context or bool(self.context == other.context)

    def __hash__(self) -> int:
        return hash((_OfClass, type(self.context)))
