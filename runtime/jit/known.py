"""Which optimizers, learning-rate schedulers and gradient scalers a program may use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..aot.python_state.closed_over import attributes_of

_CONTAINERS = (list, tuple, set, frozenset)
_MANY = 256  # items of a list that are looked at
_DEPTH = 3  # from a trainer over its dictionary of lists to a scheduler


class Known:
    """Those that one capture knows. ``others``: those that captures before have met in another way
    than by Python's state.

    Not all that captures before have known: another thread may step its optimizer now."""

    def __init__(self, others: Known | None = None) -> None:
        self.optimizers: WeakSet[Optimizer] = (
            WeakSet() if others is None else others.optimizers.copy()
        )
        self.schedulers: WeakSet[LRScheduler] = WeakSet()
        self.scalers: WeakSet[GradScaler] = WeakSet() if others is None else others.scalers.copy()

    def find(self, objects: Iterable[Any]) -> None:
        """Add those among ``objects``, and those that these hold."""
        seen: dict[int, Any] = {}  # holds the objects, so that their ids stay theirs
        found = list(objects)
        # the nearest first: what is met twice is looked into from there
        for _ in range(_DEPTH + 1):
            new = {id(x): x for x in found if id(x) not in seen}
            seen |= new
            for x in new.values():
                self._add(x)
            found = [held for x in new.values() for held in _held(x)]

    def _add(self, x: Any) -> None:
        if isinstance(x, GradScaler):
            self.scalers.add(x)
        elif isinstance(x, LRScheduler):
            self.schedulers.add(x)
        elif isinstance(x, Optimizer):
            self.optimizers.add(x)


def _held(x: Any) -> Iterator[Any]:
    """What a list or an object holds. Not what a function, a class, a tensor or the
    modules of Python hold."""
    if isinstance(x, (type, ModuleType, torch.Tensor, str, bytes)):
        return
    if isinstance(x, (dict, *_CONTAINERS)):
        if len(x) <= _MANY:
            yield from x.values() if isinstance(x, dict) else x
    elif isinstance(x, Optimizer):
        yield vars(x).get("optimizer")  # of a wrapper
    elif not isinstance(x, FunctionType) and (own := attributes_of(x)) is not None:
        yield from own.values()
