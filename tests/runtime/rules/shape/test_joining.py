"""Joins, repeats, reorderings, pads and copies."""

import pytest
import torch

from tests.runtime.rules.agreement import check

OPS = (
    "cat",
    "stack",
    "flip",
    "roll",
    "rot90",
    "repeat",
    "tile",
    "tril",
    "triu",
    "diag_embed",
    "block_diag",
    "constant_pad_nd",
    "clone",
    "trace",
    "kron",
)


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128))
@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, limit=3)
