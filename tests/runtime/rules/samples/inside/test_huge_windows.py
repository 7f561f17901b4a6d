"""Per-sample gradients of convolutions lie in huge pages, and transforms of torch pass through
them.

Inside: ``runtime.rules.samples.factors.Windows``. A per-sample step has no transform of torch's
around it, and ``Outer``, the public term, is tested beside this."""

from __future__ import annotations

import torch

from runtime.rules.samples.factors import Windows
from tests.runtime.rules.samples.large_gradients import check_transforms_of_torch

G, X = torch.randn(200, 1, 64, 16, 16), torch.randn(200, 1, 32, 16, 16)


def _windows(scale: torch.Tensor) -> Windows:
    return Windows(G * scale, X, (64, 32, 3, 3), (1, 1), (1, 1), (1, 1), 1)


def test_transforms_of_torch_pass_through_large_gradients() -> None:
    check_transforms_of_torch(_windows)
