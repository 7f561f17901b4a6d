"""Matrix and vector products."""

import itertools
from typing import Any

import pytest
import torch

from runtime.func import vmap
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


A = torch.arange(12, dtype=torch.int8).reshape(3, 2, 2)
FACTORS: dict[str, Any] = {"beta": 2.5, "alpha": 3.0}


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (lambda x, m, v: torch.addmv(x, m, v, **FACTORS), (A[:, 0], A, A[:, 1])),
        (lambda x, a, b: torch.addmm(x, a, b, **FACTORS), (A, A, A)),
        (lambda x, a, b: torch.baddbmm(x, a, b, **FACTORS), (A[:, None], A[:, None], A[:, None])),
        (lambda x, a, b: torch.addbmm(x, a, b, **FACTORS), (A, A[:, None], A[:, None])),
        (torch.dot, (A[:, 0], A[:, 1])),
    ],
    ids=("addmv", "addmm", "baddbmm", "addbmm", "dot"),
)
def test_a_batch_of_integers_keeps_its_dtype(f: Any, args: Any) -> None:
    """Neither a factor given as a float (which the kernels truncate) nor a sum promotes them."""
    expected = torch.stack([f(*row) for row in zip(*args, strict=True)])
    torch.testing.assert_close(vmap(f)(*args), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "dtypes", list(itertools.permutations([torch.float32, torch.float64, torch.int64])), ids=str
)
def test_a_batch_of_addr_is_computed_in_the_dtype_of_the_result(
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """It alone takes several dtypes. A float factor counts if any operand is floating."""
    torch.manual_seed(0)
    x, left, right = (
        (torch.randn(shape) * 3).to(dtype)
        for shape, dtype in zip(((4, 3, 2), (4, 3), (4, 2)), dtypes, strict=True)
    )

    def f(*each: torch.Tensor) -> torch.Tensor:
        return torch.addr(*each, beta=0.5, alpha=1.5)

    single = torch.stack([f(*each) for each in zip(x, left, right, strict=True)])
    torch.testing.assert_close(vmap(f)(x, left, right), single, rtol=1e-12, atol=0)
