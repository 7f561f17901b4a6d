"""Convolutions, their transposes and second derivatives, for every choice of what is batched."""

import pytest
import torch

from tests.runtime.rules.agreement import check

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")

OPS = (
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv3d",
    "nn.functional.conv_transpose1d",
    "nn.functional.conv_transpose2d",
    "nn.functional.conv_transpose3d",
)


@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128))
@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, limit=3 if dtype is torch.float64 else 1)
