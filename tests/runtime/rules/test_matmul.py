"""Matrix and vector products."""

import pytest
import torch

from tests.runtime.rules.agreement import check

OPS = (
    "mm",
    "bmm",
    "mv",
    "dot",
    "vdot",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "addbmm",
    "matmul",
    "linalg.cross",
    "linalg.multi_dot",
    "nn.functional.linear",
    "einsum",
)


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128))
@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, limit=3)


def test_bilinear() -> None:
    """torch differentiates it for real numbers only."""
    check("nn.functional.bilinear", torch.float64, limit=3)
