"""``out=`` at the functionalize level: the result of the functional form is written to the
tensors that are given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from ..errors import InplaceError
from ..rules.functional_forms import factory_options, functional_of
from ..rules.ops import Op
from ..seam.surgery import refit
from .memory_order import filled
from .writes import refuse_shared, refuse_unfit


class FunctionalLevel(Protocol):
    """What a functionalize level does for these functions."""

    def lowered_args(self, args: Iterable[Any]) -> list[Any]: ...

    def lowered_kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]: ...

    def valued(self, result: Any) -> Any: ...

    def present(self, store: Any) -> Any: ...

    def write_each(self, target: Any, new: Any) -> None: ...


def write_out(level: FunctionalLevel, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run ``op``, an op with ``out=``. Returns what it writes to."""
    names = [
        a.name
        for a in op.func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    ]
    if any(n not in kwargs for n in names):  # such as the running statistics of batch norm
        raise InplaceError(
            f"{op.func} writes to more than its out= arguments; "
            "use the form of the op that returns its result"
        )
    targets = [
        t
        for n in names
        for t in (kwargs[n] if isinstance(kwargs[n], (list, tuple)) else (kwargs[n],))
    ]
    functional = functional_of(op.func)
    if functional is None:
        raise InplaceError(
            f"{op.func} has no functional form; use the form of the op that returns its result"
        )
    refuse_shared_by(level, op.func, args, kwargs, targets)
    given = level.lowered_args(args)
    options = level.lowered_kwargs(
        {k: v for k, v in kwargs.items() if k not in names}
    ) | factory_options(op.func, functional, targets[0])
    results = filled(op.func, level.lowered_args(targets), given, options) or functional(
        *given, **options
    )
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    if len(results) != len(targets):  # one out= argument may be a list
        raise InplaceError(
            f"{op.func}: out= has {len(targets)} tensors, "
            f"the result has {len(results)}; give as many"
        )
    refuse_unfit(op.func, args, kwargs, targets, results)
    for target, new in zip(targets, results, strict=True):
        if target.shape != new.shape:
            if grow(level, target, new):
                continue
            raise InplaceError(
                f"{op.func}: out= has shape {list(target.shape)}, "
                f"the result {list(new.shape)}; give it that shape"
            )
        level.write_each(target, new)
    if not op.func._schema.returns:
        return None
    return targets[0] if len(targets) == 1 else tuple(targets)


def refuse_shared_by(
    level: FunctionalLevel,
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    targets: Sequence[Any],
) -> None:
    """:func:`.refuse_shared` of values of ``level``."""
    refuse_shared(
        func,
        args,
        kwargs,
        targets,
        lambda t: t._store.memory.whole if getattr(t, "_level", None) is level else None,
    )


def grow(level: FunctionalLevel, target: Any, new: torch.Tensor) -> bool:
    """Make ``new`` the value of ``target``, as ``out=torch.empty(0)`` asks for. False unless
    ``target`` is of memory without elements that the program has made. Views of that memory have no
    elements to show, so that they need not follow.
    """
    if getattr(target, "_level", None) is not level:
        return False
    old = target._store
    if not old.memory.made_inside or level.present(old).numel():
        return False
    fresh = level.valued(new.to(target.dtype))
    fresh._store.counter = [old.counter[0] + 1]
    refit(target, fresh)
    target._inner, target._store, target._chain = fresh._inner, fresh._store, ()
    target._seen, target._unrecorded = fresh._seen, False
    return True
