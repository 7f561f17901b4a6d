"""What a functional program writes back to tensors from outside."""

from __future__ import annotations

from typing import NamedTuple

import torch


class WrittenBack(NamedTuple):
    """The final value of a tensor from outside that the program wrote to. ``recorded``: whether
    a write to it was made with grad mode. ``counted``: whether a write was made other than
    through ``.data``."""

    value: torch.Tensor
    recorded: bool
    counted: bool

    def into(self, t: torch.Tensor) -> None:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.recorded):
            (t if self.counted else t.data).copy_(self.value)
