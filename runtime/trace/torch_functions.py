"""Notes which function of torch a traced program called last.

This is no part of ``provenance``: a walk from a call to the user's line stops at a frame of that
file, and here a frame stands between the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.overrides import TorchFunctionMode


class Functions(TorchFunctionMode):
    """Notes the last function of torch that the program called, as torch's ``torch_fn``: (name
    with its number, class and name). Example: ``("relu_1", "function.relu")``."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[Any, int] = {}
        self.last: tuple[str, str] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", None)
        if name is not None:
            self.counts[func] = self.counts.get(func, 0) + 1
            self.last = f"{name}_{self.counts[func]}", f"{type(func).__name__}.{name}"
        return func(*args, **kwargs or {})
