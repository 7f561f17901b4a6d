"""Large tensors lie in huge pages of memory, where Linux gives such pages."""

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from runtime import unwrap
from runtime.dropin import installed
from runtime.extend import Outer
from tests.runtime.rules.samples.large_gradients import LARGE, check_transforms_of_torch

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _flags_of(t: torch.Tensor) -> str:
    """What the kernel says of the memory in which the middle of ``t`` lies."""
    place = t.data_ptr() + t.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= place < int(found[2], 16)
        elif inside and line.startswith("VmFlags"):
            return line
    raise AssertionError("no memory there")


@pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(),
    reason="this kernel gives no huge pages",
)
def test_the_kernel_is_asked_for_large_pages_for_a_large_tensor_alone() -> None:
    large = Outer(torch.ones(64, 1, 1 << 10), torch.ones(64, 1, 1 << 10)).dense()
    assert " hg" in _flags_of(large)
    assert large.is_contiguous() and large.dtype is torch.float32
    assert " hg" not in _flags_of(torch.empty(large.shape))


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
