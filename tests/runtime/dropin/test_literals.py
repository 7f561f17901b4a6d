"""Lists of numbers with tensors among them, under the drop-in and inside transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from runtime.func import grad, vmap
from tests.runtime.dropin.compare import both

# what a list holds, made anew for each run
LISTS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: [torch.tensor(1.0), torch.tensor(2.0)],
    "a wide tensor and a number": lambda: [torch.tensor(1.1, dtype=torch.float64), 0.1],
    "a narrow tensor and numbers": lambda: (torch.tensor(2.0), 0.1, 2),
    "half": lambda: [torch.tensor(2.0, dtype=torch.float16), 0.1],
    "a large number": lambda: [torch.tensor(2.0), 1e300],
    "integers": lambda: [torch.tensor(3), 2**40],
    "booleans": lambda: [torch.tensor(True), False],
    "complex": lambda: [torch.tensor(1 + 2j), 1.0],
    "nested": lambda: [[torch.tensor(2.0), 1.0], [2, torch.tensor(0.1, dtype=torch.float64)]],
    "deep": lambda: [[[torch.tensor(2.0)]]],
    "numpy": lambda: [np.float64(0.1), torch.tensor(2.0)],
    "numpy, narrow": lambda: [np.float32(0.1), torch.tensor(3)],
    "vectors": lambda: [torch.ones(2), torch.ones(2)],
    "vectors of one": lambda: [torch.ones(1), torch.ones(1)],
    "requires grad": lambda: [torch.tensor(1.5, requires_grad=True), 2.0],
    "ragged": lambda: [[torch.tensor(1.0)], [2.0, 3.0]],
    "text": lambda: [torch.tensor(1.0), "x"],
    "numbers": lambda: [0.1, 2],
}
# by the names that torch has when they are called
READERS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda d: torch.tensor(d),
    "tensor, wide": lambda d: torch.tensor(d, dtype=torch.float64),
    "tensor, integer": lambda d: torch.tensor(d, dtype=torch.int64),
    "tensor that requires grad": lambda d: torch.tensor(d, requires_grad=True),
    "as_tensor": lambda d: torch.as_tensor(d),
    "as_tensor, wide": lambda d: torch.as_tensor(d, dtype=torch.float64),
    "asarray": lambda d: torch.asarray(d),
    "asarray, by keyword": lambda d: torch.asarray(obj=d, dtype=torch.float64, copy=True),
    "Tensor": lambda d: torch.Tensor(d),
    "new_tensor": lambda d: torch.ones(2).new_tensor(d),
    "new_tensor, wide": lambda d: torch.ones(2, dtype=torch.float64).new_tensor(d),
    "new_tensor, by keyword": lambda d: torch.ones(2).new_tensor(data=d, dtype=torch.float64),
    "new_tensor that requires grad": lambda d: torch.ones(2).new_tensor(d, requires_grad=True),
    "new_tensor in grad": lambda d: torch.func.grad(lambda x: (x * x.new_tensor(d).sum()).sum())(
        torch.ones(2)
    ),
    "new_tensor in vmap": lambda d: torch.func.vmap(lambda x: x.new_tensor(d))(torch.ones(2)),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_with_tensors_is_read_as_in_torch(name: str) -> None:
    def read(reader: Callable[[Any], Any]) -> Any:
        try:
            return reader(LISTS[name]())
        except (TypeError, ValueError, RuntimeError):
            return "refused"

    found, expected = both(lambda: [read(reader) for reader in READERS.values()])
    for reader, ours, theirs in zip(READERS, found[0], expected[0], strict=True):
        assert ours == theirs, reader


def test_a_list_of_elements_of_a_batch_is_a_row_of_each() -> None:
    x = torch.tensor([1.1, 2.2], dtype=torch.float64)
    found = vmap(lambda a: a.new_tensor([[a, 0.1], [2, a * a]]))(x)
    expected = torch.stack([torch.tensor([[a, 0.1], [2, a * a]], dtype=x.dtype) for a in x])
    assert torch.equal(found, expected)


def test_a_list_is_a_constant_of_a_derivative() -> None:
    x = torch.tensor([1.0, 2.0])
    found = grad(lambda x: (x * x.new_tensor([x[0], x.sum()])).sum())(x)
    assert found.tolist() == [1.0, 3.0]
    second = vmap(grad(lambda x: (x * x.new_tensor([x[0], x.sum()])).sum()))(torch.stack([x, x]))
    assert second.tolist() == [[1.0, 3.0], [1.0, 3.0]]
