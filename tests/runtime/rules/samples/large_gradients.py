"""Per-sample gradients that are large enough for memory in huge pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LARGE = 8 << 20  # bytes, from which on a tensor lies in huge pages


def check_transforms_of_torch(of: Callable[[torch.Tensor], Any]) -> None:
    """Check that transforms of torch pass through the dense form of a term, as they do through
    small ones: what they wrap is not written to memory that they do not know. ``of``: the term by
    a scale."""
    one, two = torch.ones(()), torch.tensor([1.0, 2.0])
    assert of(one).dense_bytes > LARGE

    def total(scale: torch.Tensor) -> Any:
        return of(scale).dense().double().square().sum()

    expected = total(one)
    exact: Any = {"rtol": 1e-4, "atol": 0}
    torch.testing.assert_close(torch.func.vmap(total)(two), expected * two.double() ** 2, **exact)
    tangent = torch.func.jvp(total, (one,), (one,))[1]
    torch.testing.assert_close(tangent, 2 * expected, **exact)
    torch.testing.assert_close(torch.func.grad(total)(one).double(), 2 * expected, **exact)
