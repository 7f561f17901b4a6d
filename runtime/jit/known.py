"""Which optimizers, learning-rate schedulers and gradient scalers a program may use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


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
        """Add those among ``objects``, and those that wrappers of optimizers hold."""
        for x in objects:
            self._add(x)
            if isinstance(x, Optimizer):
                self._add(vars(x).get("optimizer"))

    def misses(self, objects: Iterable[Any], others: Known) -> bool:
        """Whether an optimizer or scaler is among ``objects`` that is not known. It is known to
        ``others`` from now on."""
        for x in objects:
            if isinstance(x, GradScaler) and x not in self.scalers:
                others.scalers.add(x)
            elif isinstance(x, Optimizer) and x not in self.optimizers:
                others.optimizers.add(x)
            else:
                continue
            return True
        return False

    def _add(self, x: Any) -> None:
        if isinstance(x, GradScaler):
            self.scalers.add(x)
        elif isinstance(x, LRScheduler):
            self.schedulers.add(x)
        elif isinstance(x, Optimizer):
            self.optimizers.add(x)
