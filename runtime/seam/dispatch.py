"""Finds the level that a call goes to, and hands the call over to it.

    innermost((x, 2.0), None)                            # the level of x, None for a plain tensor
    hand_over(level, torch.ops.aten.add.Tensor, (x, 2.0), {})

A rule may also ask the innermost level to run a whole formula, or a whole layer, in one go:
:func:`run_elementwise`, :func:`run_batchwise`, :func:`run_layer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from ..torch_private.dispatcher import OpOverload
from . import escapes
from .call_types import Arguments
from .nested_views import VIEW_OPS, note_views
from .scope import SCOPE, RunningLevel, lifted, scope_outside
from .shells import VALUES


class CallLevel(RunningLevel, escapes.Level, Protocol):
    """A :class:`.levels.Level`, as far as it matters here."""

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, object], /) -> Any:
        """Run one ATen call with a value of this level among its arguments."""
        ...


def innermost(args: Iterable[Any], kwargs: dict[str, object] | None) -> Any:
    """Return the innermost level among the values in the arguments of an ATen call, lists included.
    None if there are no values."""
    best: Any = None
    number = -1
    # Every call comes here: the numbers are compared in place, without a frame for each argument.
    for argument in args:
        kind = type(argument)
        if kind in VALUES:
            if argument._level.number > number:
                best = argument._level
                number = best.number
        elif kind is list or kind is tuple:
            for item in argument:
                if type(item) in VALUES and item._level.number > number:
                    best = item._level
                    number = best.number
    if kwargs:
        for argument in kwargs.values():
            for item in argument if isinstance(argument, (list, tuple)) else (argument,):
                if type(item) in VALUES and item._level.number > number:
                    best = item._level
                    number = best.number
    return best


def hand_over(
    level: CallLevel, func: OpOverload, args: Sequence[object], kwargs: dict[str, object]
) -> Any:
    """Run a call whose innermost level is ``level``, which need not be one of the levels in scope.
    All calls come here: ``Value.__torch_dispatch__`` decides the common case itself."""
    around = SCOPE.levels
    if not level.alive:
        result = escapes.outlived(level, func, args, kwargs)
    elif not around or around[-1].number < level.number:
        result = level.call(func, args, kwargs)
    elif around[-1].number == level.number:
        # most calls of a transformed function: `scope_outside`, without its frames
        SCOPE.levels = around[:-1]
        try:
            result = level.call(func, args, kwargs)
        finally:
            SCOPE.levels = around
    else:
        # the function of an inner level makes a call in which none of its own values takes part
        with scope_outside(level):
            result = level.call(func, args, kwargs)
        if _is_fresh(func):
            result = lifted(result, level.number, given=args)
    return note_views(result, args[0]) if id(func) in VIEW_OPS else result


_fresh: dict[int, bool] = {}  # by id of the overload, which lives as long as the process


def _is_fresh(func: OpOverload) -> bool:
    """Return whether the results of an overload have memory of their own: none is an argument or a
    view of one. A literal is nobody's argument."""
    is_fresh = _fresh.get(id(func))
    if is_fresh is None:
        aliases = any(declared.alias_info is not None for declared in func._schema.returns)
        is_fresh = _fresh[id(func)] = not aliases or func is torch.ops.aten.lift_fresh.default
    return is_fresh


def run_layer(func: object, args: Sequence[object]) -> Any:
    """Return the results of a call of ``linear`` or of a recurrent layer, if the innermost level
    among ``args`` runs it, else NotImplemented.

    See :meth:`.levels.Level.layer`.
    """
    level = innermost(args, None)
    # a level that has returned handles no calls, see `hand_over`
    if level is None or not level.alive:
        return NotImplemented
    return level.layer(func, args)


def run_elementwise(formula: Callable[..., object], args: Arguments) -> Any:
    """Return ``formula(*args)`` in the cheapest way of the innermost level among ``args``: a batch
    level runs it once, on the inner tensors."""
    level = innermost(args, None)
    if level is None:
        return formula(*args)
    return level.elementwise(formula, args)


def run_batchwise(formula: Callable[..., object], *args: torch.Tensor) -> Any:
    """Return ``formula(*args, batched)`` for a formula that takes a batch along dimension 0 of
    every argument that ``batched``, a tuple of Booleans, marks.

    On values of a vmap it runs once on the inner tensors, without a dispatch per op. Elsewhere no
    argument is marked.
    """
    level = innermost(args, None)
    if level is None:
        return formula(*args, (False,) * len(args))
    return level.batchwise(formula, args)
