"""Handles values that a function has stored, and that outlive its transform.

stored = []
vmap(lambda x: stored.append(torch.zeros(2)) or x)(xs)
stored[0] + 1               # a constant: its inner tensor stands for it
grad(lambda x: stored.append(x) or x.sum())(x)
stored[1] + 1               # EscapedValue: it has a history, which is gone
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from ..errors import EscapedValue
from ..torch_private.dispatcher import OpOverload
from ..torch_private.pytrees import pytree
from .shells import VALUES
from .surgery import now
from .transforms_of_torch import is_of_returned_transform, of_returned_transform


class Level(Protocol):
    """A :class:`.levels.Level`, as far as it matters here."""

    alive: bool
    number: int

    @property
    def what(self) -> str:
        """Return the name of the level in messages, ``"vmap"``."""
        ...

    def is_constant(self, v: Any, /) -> bool:
        """Return whether ``v`` has no history at the level."""
        ...


def is_outlived(value: Any) -> bool:
    """Return whether the transform of ``value`` has returned and ``value`` has no history: its
    inner tensor can stand for it."""
    level = value._level
    return not level.alive and level.is_constant(value)


_ESCAPED = (
    "a value of {} is used by {} after the transform has returned. Return values from the "
    "transformed function instead of storing them, or detach them inside it."
)


def outlived(
    level: Level, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> Any:
    """Run a call with values of ``level``, whose transform has returned. ``EscapedValue`` if one of
    them has a history.

    So a transformed function may create a constant, such as a table of positions, and store it for
    later use, as in torch.
    """

    def unwrap(argument: Any) -> Any:
        """Return the inner tensor of a constant of the level, in lists too."""
        if type(argument) in VALUES and argument._level is level:
            if not is_outlived(argument):
                raise escaped(level, func)
            return argument._inner
        if type(argument) is list or type(argument) is tuple:
            return type(argument)(map(unwrap, argument))
        return argument

    inner = list(map(unwrap, args))
    result = func(*inner, **{name: unwrap(argument) for name, argument in kwargs.items()})
    # A write returns its target, and the program must get the object that it has.
    for argument, tensor in zip(args, inner, strict=True):
        if tensor is result:
            return argument
    return result


def living(tree: Any) -> Any:
    """Return ``tree``, what a transformed function returns, with the inner tensors of values whose
    transforms have returned, as :func:`outlived` takes them, and those of torch's own transforms.
    Values with a history stay, see :func:`refuse_closed`.

    Example: a function that runs a transform, stores a constant of it and returns that.
    """
    if type(tree) in VALUES and tree._level.alive:
        return tree  # most functions return one value of their own level
    if isinstance(tree, torch.Tensor):
        return _living_tensor(tree)
    if type(tree) is tuple or type(tree) is list:
        items = type(tree)(map(living, tree))
        # the object itself where nothing changes, which a program may compare
        if any(map(operator.is_not, items, tree)):
            return items
        return tree
    # other containers are rare, and torch's pytrees are slow
    leaves, spec = pytree.tree_flatten(tree)
    living_leaves = [
        _living_tensor(value) if isinstance(value, torch.Tensor) else value for value in leaves
    ]
    if not any(map(operator.is_not, living_leaves, leaves)):
        return tree
    return pytree.tree_unflatten(living_leaves, spec)


def _living_tensor(t: Any) -> object:
    """Return ``t`` without the values and the wrappers of transforms that have returned."""
    # a loop, since values and wrappers may be inside of one another
    while True:
        if type(t) not in VALUES:
            inner = of_returned_transform(now(t))
        elif is_outlived(t):
            inner = t._inner
        else:
            return t
        if inner is t:
            return t
        t = inner


def refuse_closed(result: Any, what: str) -> None:
    """Raise ``EscapedValue`` if ``result``, which ``what`` is to differentiate, is a value of a
    transform that has returned, and has a history there: its derivative would be lost."""
    if type(result) in VALUES:
        if not result._level.alive:
            raise escaped(result._level, what)
    elif is_of_returned_transform(result):
        raise EscapedValue(_ESCAPED.format("a transform of torch's own", what))


def escaped(level: Level, what: object) -> EscapedValue:
    """Return the error for a value of ``level`` that ``what``, an op or a function, uses after the
    transform has returned."""
    return EscapedValue(_ESCAPED.format(f"{level.what} (level {level.number})", what))
