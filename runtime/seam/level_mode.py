"""How a level sees calls without any of its values: factories, random draws, computations on closed-over tensors."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from .keys import reopen_keys
from .levels import SCOPE, Level, Value, hand_over, innermost


class LevelMode(TorchDispatchMode):
    """While entered, every ATen call without a value of an inner level goes to ``level.call``.

    ``level.call`` runs with the mode off, so its own calls go to outer levels. It re-enters the mode around calls that this level must see
    itself.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every call passes through a wrapper that costs more than the dispatch

    def __init__(self, level: Level) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.level = level

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        level = self.level
        found = innermost(args, kwargs)
        if found is not None and found.number > level.number:
            with self:  # an inner level handles this call, and the calls that its rule makes must come here again
                return Value.__torch_dispatch__(func, types, args, kwargs)
        reopen_keys(func)
        return hand_over(level, func, args, kwargs or {}) if SCOPE.levels else level.call(func, args, kwargs or {})
