"""Large tensors lie in huge pages of memory, where Linux gives such pages."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from runtime import unwrap
from runtime.dropin import installed
from runtime.extend import Outer
from tests.runtime.huge_pages import lies_in_huge_pages, needs_huge_pages
from tests.runtime.rules.samples.large_gradients import LARGE, check_transforms_of_torch


@needs_huge_pages
def test_the_kernel_is_asked_for_large_pages_for_a_large_tensor_alone() -> None:
    large = Outer(torch.ones(64, 1, 1 << 10), torch.ones(64, 1, 1 << 10)).dense()
    assert lies_in_huge_pages(large)
    assert large.is_contiguous() and large.dtype is torch.float32
    assert not lies_in_huge_pages(torch.empty(large.shape))


def test_an_abstract_tensor_is_made_abstract() -> None:
    with FakeTensorMode():
        term = Outer(torch.ones(40, 3, 300), torch.ones(40, 3, 200))
        found = term.dense()
    assert term.dense_bytes > LARGE
    assert type(found) is FakeTensor and found.shape == (40, 300, 200)


@pytest.mark.parametrize("times", (1, 3))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.complex64))
def test_large_gradients_have_the_bits_of_small_ones(times: int, dtype: torch.dtype) -> None:
    left, right = torch.randn(40, times, 300, dtype=dtype), torch.randn(40, times, 200, dtype=dtype)
    term = Outer(left, right)
    assert term.dense_bytes > LARGE > term.part(0, 1).dense_bytes
    assert torch.equal(term.dense(), torch.cat([term.part(i, i + 1).dense() for i in range(40)]))


def test_under_the_drop_in_such_a_tensor_is_a_plain_one() -> None:
    with installed():
        assert type(torch.empty(2)) is not torch.Tensor
        term = Outer(*(unwrap(torch.ones(40, 3, n)) for n in (300, 200)))
        assert term.dense_bytes > LARGE and type(term.dense()) is torch.Tensor


def _outer(scale: torch.Tensor) -> Outer:
    return Outer(LEFT * scale, RIGHT)


LEFT, RIGHT = torch.randn(40, 3, 300), torch.randn(40, 3, 200)


def test_transforms_of_torch_pass_through_large_gradients() -> None:
    check_transforms_of_torch(_outer)
