"""Claims about the device `slate`, which `test_slate.py` runs in a process of their own."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import pytest
import slate  # noqa: F401  # registers the device
import torch


def on_slate(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to("slate")


def test_a_view_shares_memory_with_its_base() -> None:
    x = on_slate(2, 3)
    column = x[:, 1]
    column.mul_(10)
    assert column.stride() == (3,)
    assert x.cpu().tolist() == [[0.0, 10.0, 2.0], [3.0, 40.0, 5.0]]


@pytest.mark.parametrize("f", [torch.exp, torch.sin, torch.tanh, torch.sigmoid, torch.rsqrt])
def test_a_function_has_the_numbers_of_the_cpu_in_every_layout(
    f: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = on_slate(2, 3).t()
    torch.testing.assert_close(f(x).cpu(), f(x.cpu()))
    edges = torch.tensor([-0.0, math.inf, -math.inf, math.nan, 1000.0])
    torch.testing.assert_close(f(edges.to("slate")).cpu(), f(edges), equal_nan=True)


def test_tensors_broadcast_and_numbers_promote_as_on_the_cpu() -> None:
    x = torch.arange(3, device="slate")
    y = on_slate(2, 1)
    assert (x + y).cpu().equal(x.cpu() + y.cpu())
    assert (x + 0.5).cpu().equal(x.cpu() + 0.5)
    assert (x.to(torch.int8) + 127).cpu().equal(x.cpu().to(torch.int8) + 127)


def test_an_op_resizes_the_buffer_that_it_is_given() -> None:
    out = torch.empty(0, device="slate")
    torch.exp(on_slate(2, 2), out=out)
    torch.testing.assert_close(out.cpu(), on_slate(2, 2).cpu().exp())


def test_a_saved_tensor_is_loaded_onto_the_device() -> None:
    file = io.BytesIO()
    torch.save(on_slate(3), file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device == torch.device("slate:0")
    assert loaded.cpu().tolist() == [0.0, 1.0, 2.0]


def test_a_dtype_that_the_device_does_not_hold_is_refused_by_its_name() -> None:
    with pytest.raises(NotImplementedError, match=r"slate holds no torch\.complex64"):
        torch.zeros(2, dtype=torch.complex64, device="slate")
