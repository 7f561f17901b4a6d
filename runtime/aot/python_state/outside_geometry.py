"""Let tensors that a program closes over show, while it is captured, the sizes that it gives them.

    def f(x):
        self.v.unsqueeze_(0)
        return x * self.v.dim()         # asks the tensor itself, and is to get 2 for a vector

The program has values in place of such tensors, but only in calls of ops. What a tensor says of
its sizes and strides is no call. So the tensor itself changes as the value does, and changes back
when the run ends: the call is what changes it for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...rules.ops import op_of
from ...seam.levels import Value
from ...seam.surgery import show_geometry
from ...torch_private.mode_stacks import unseen_by_handlers, without_modes


class OutsideGeometry:
    """Hold the tensors whose geometry has changed, each with a view from before the first
    change."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}

    def follow(
        self, tensor: torch.Tensor, func: Any, rest: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Change ``tensor`` as ``func``, an op that changes sizes or strides in place, does."""
        functional = op_of(func).functional
        assert functional is not None, "a change of geometry is a view in place"
        view_op = functional.func
        with without_modes(), unseen_by_handlers(), torch.no_grad():
            now = tensor.detach()
            self._before.setdefault(id(tensor), (tensor, now, _inner_of(tensor)))
            after = view_op(now, *rest, **kwargs)
            show_geometry(tensor, after, _inner_of(after))

    def restore(self) -> None:
        """Give the tensors the geometry from before."""
        with unseen_by_handlers():
            for tensor, before, inner in self._before.values():
                show_geometry(tensor, before, inner)
        self._before.clear()


def _inner_of(tensor: Any) -> Any:
    """Return what ``tensor`` holds, if it is a value."""
    return tensor._inner if isinstance(tensor, Value) else None
