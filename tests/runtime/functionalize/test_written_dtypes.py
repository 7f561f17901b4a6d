"""A write under functionalize and jit refuses a dtype with the error of torch, and converts
where torch does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import jit
from runtime.func import functionalize

WHOLE, SINGLE = torch.int64, torch.float32
X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "out of whole numbers": lambda x: torch.add(x, 1, out=torch.zeros(3, dtype=WHOLE)),
    "number": lambda x: x.to(WHOLE).add_(1.5),
    "tensor": lambda x: x.to(WHOLE).add_(x),
    "complex out": lambda x: torch.complex(x, x, out=torch.zeros(3, dtype=torch.complex64)),
    "complex number": lambda x: x.clone().mul_(1j),
    "product": lambda x: torch.mm(x[None], x[:, None], out=torch.zeros(1, 1, dtype=SINGLE)),
    "unary": lambda x: x.to(WHOLE).sin_(),
    "division": lambda x: x.to(WHOLE).div_(2),
    "sort": lambda x: torch.sort(
        x, out=(torch.zeros(3, dtype=SINGLE), torch.zeros(3, dtype=WHOLE))
    ),
    "concatenation": lambda x: torch.cat([x, x], out=torch.zeros(6, dtype=WHOLE)),
    "gather": lambda x: torch.gather(x, 0, torch.tensor([0]), out=torch.zeros(1, dtype=SINGLE)),
    "choice": lambda x: torch.where(x > 0, x, x, out=torch.zeros(3, dtype=SINGLE)),
    "scan": lambda x: x.to(WHOLE).cumsum_(0, dtype=SINGLE),
    "list": lambda x: torch._foreach_add_([x.to(WHOLE)], 1.5),
    "draw": lambda x: torch.multinomial(x, 2, out=torch.zeros(2)),
    "inverse": lambda x: torch.linalg.inv(torch.eye(3), out=torch.zeros(3, 3, dtype=torch.float64)),
}
CONVERTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "narrower": lambda x: x.to(SINGLE).add_(x),
    "comparison in place": lambda x: x.clone().eq_(2),
    "comparison out": lambda x: torch.eq(x, 2, out=torch.zeros(3)),
    "sum out": lambda x: torch.sum(x, 0, out=torch.zeros((), dtype=SINGLE)),
    "ternary": lambda x: x.to(SINGLE).addcmul_(x, x),
}


@pytest.mark.parametrize("transform", [functionalize, jit])
@pytest.mark.parametrize("name", REFUSED)
def test_a_dtype_that_does_not_fit_is_refused_as_in_torch(name: str, transform: Any) -> None:
    with pytest.raises((RuntimeError, TypeError)) as plain:
        REFUSED[name](X)
    with pytest.raises(type(plain.value)) as transformed:
        transform(REFUSED[name])(X)
    assert str(transformed.value).splitlines()[0] == str(plain.value).splitlines()[0]


@pytest.mark.parametrize("transform", [functionalize, jit])
@pytest.mark.parametrize("name", CONVERTED)
def test_a_dtype_that_fits_is_converted(name: str, transform: Any) -> None:
    torch.testing.assert_close(transform(CONVERTED[name])(X), CONVERTED[name](X), rtol=0, atol=0)
