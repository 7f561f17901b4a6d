"""Turn constants and trees of arguments into parts of the kind of a call, which is hashable.

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
    """Compare an argument that is no tensor, as a part of a kind.

    An object that equals another one may have other attributes. A program changes its own argument,
    so ``==`` is not enough.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Constant and same(self.value, other.value)

    def __hash__(self) -> int:
        # the hash of the value itself may be code of the user
        return hash((_Constant, type(self.value)))


def constant(value: object) -> object:
    """Return ``value`` as a part of a kind."""
    if type(value) in EXACT:
        return value
    # 0.0 and -0.0 are equal, but programs distinguish them, and a NaN does not even equal itself
    if type(value) in (float, complex):
        return repr(value)
    return _Constant(value)


def structure_of(spec: pytree.TreeSpec | None) -> object:
    """Return ``spec`` as a part of a kind.

    Trees that are equal for torch may not be the same: with keys ``1`` and ``True``, or with two
    classes of one name.
    """
    if spec is None or spec.type is None:
        return None
    return (spec.type, _context(spec.type, spec.context), *map(structure_of, spec.children()))


def _context(kind: type, context: Any) -> object:
    """Return the context of a node of a tree as a part of a kind, with the types of its items."""
    if context is None or type(context) is Context:
        return context
    # the keys of a dictionary, say: names stand for themselves, without a call for each
    if type(context) is list and _NAMES.issuperset(map(type, context)):
        return (list, *context)
    if type(context) in (list, tuple):
        return (type(context), *[_context(kind, x) for x in context])
    if type(context) is dict:
        return (dict, *[(_context(kind, k), _context(kind, value)) for k, value in context.items()])
    if type(context) in SIMPLE:
        return type(context), constant(context)
    # a class of the user's decides itself whether two contexts are equal
    if kind in _OF_PYTHON:
        return _Constant(context)
    return _OfClass(context)


class _OfClass:
    """Compare what the flattening function of a class has said of an object.

    Trees of torch ask its ``==``, too. Two contexts that are equal by that are the same.
    """

    __slots__ = ("context",)

    def __init__(self, context: object) -> None:
        self.context = context

    def __eq__(self, other: object) -> bool:
        if type(other) is not _OfClass or type(self.context) is not type(other.context):
            return False
        return self.context is other.context or bool(self.context == other.context)

    def __hash__(self) -> int:
        return hash((_OfClass, type(self.context)))
