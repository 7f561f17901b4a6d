"""Writes through a view, out of place: a base in which the part under the view is replaced.
For :mod:`runtime.func.functionalize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..rules.ops import Op, op_of
from ..rules.record import parameters

aten = torch.ops.aten


class _Copying:
    """``torch.ops.aten`` with the copying form in place of each view: ``t`` is ``t_copy``. Other
    ops are themselves: ``add`` is ``add``."""

    def __getattr__(self, name: str) -> Any:
        copying = "_reshape_copy" if name == "reshape" else f"{name}_copy"
        found = getattr(aten, copying, None) or getattr(aten, name)
        setattr(self, name, found)
        return found


_copying = _Copying()


def copying_form(func: Any) -> Any:
    """The op that copies where ``func`` makes a view (``t_copy`` for ``t``). ``func`` itself
    if ATen has none."""
    name, overload = func._schema.name.split("::")[1], func._overloadname
    copying = getattr(getattr(aten, f"{name}_copy", None), overload, None)
    return func if copying is None else copying


def put_back(
    func: Any,
    base: Any,
    part: Any,
    which: int | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    copying: bool = False,
) -> Any:
    """``base`` with ``part`` in the place that ``func(base, *args, **kwargs)`` shows. ``which``:
    its output number, if it has several.

    ``copying``: use no view ops.
    """
    op = op_of(func)
    inverse = op.record.inverse if op.record is not None else None
    ops = _copying if copying else aten
    if inverse is not None:
        return _applied(
            inverse,
            op,
            {"base": base, "part": part, "which": which, "ops": ops},
            (base, *args),
            kwargs,
        )
    # Right for any view that only selects or moves elements: a view of the element numbers tells
    # where each comes from.
    view = copying_form(func) if copying else func
    places = view(
        ops.reshape(torch.arange(base.numel(), device=base.device), base.shape), *args, **kwargs
    )
    places = places if which is None else places[which]
    flat = ops.reshape(base, [-1]).scatter(0, ops.reshape(places, [-1]), ops.reshape(part, [-1]))
    return ops.reshape(flat, base.shape)


def _applied(
    inverse: Callable[..., Any],
    op: Op,
    given: dict[str, Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """The result of the formula, called with the values that its parameters name.
    See :class:`runtime.rules.record.Record`."""
    return inverse(
        *(
            given[p] if p in given else op.argument(op.positions[p], args, kwargs)
            for p in parameters(inverse)
        )
    )
