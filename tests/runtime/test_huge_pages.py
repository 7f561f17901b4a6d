"""Large tensors lie in huge pages of memory, where Linux gives such pages."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from runtime import unwrap
from runtime.dropin import installed
from runtime.extend import Outer
from runtime.huge_pages import LARGE, empty_in_huge_pages
from runtime.rules.samples.factors import Term, Windows

CPU = torch.device("cpu")
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
    large = empty_in_huge_pages((64, 1 << 20), torch.float32, CPU)
    assert " hg" in _flags_of(large)
    assert large.shape == (64, 1 << 20) and large.is_contiguous() and large.dtype is torch.float32
    assert " hg" not in _flags_of(torch.empty(64, 1 << 20))


def test_an_abstract_tensor_is_made_abstract() -> None:
    with FakeTensorMode():
        found = empty_in_huge_pages((LARGE,), torch.uint8, CPU)
    assert type(found) is not torch.Tensor and found.shape == (LARGE,)


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
        assert type(empty_in_huge_pages((LARGE,), torch.uint8, CPU)) is torch.Tensor
        term = Outer(*(unwrap(torch.ones(40, 3, n)) for n in (300, 200)))
        assert term.dense_bytes > LARGE and type(term.dense()) is torch.Tensor


def _outer(scale: torch.Tensor) -> Term:
    return Outer(LEFT * scale, RIGHT)


def _windows(scale: torch.Tensor) -> Term:
    return Windows(G * scale, X, (64, 32, 3, 3), (1, 1), (1, 1), (1, 1), 1)


LEFT, RIGHT = torch.randn(40, 3, 300), torch.randn(40, 3, 200)
G, X = torch.randn(200, 1, 64, 16, 16), torch.randn(200, 1, 32, 16, 16)


@pytest.mark.parametrize("of", (_outer, _windows))
def test_transforms_of_torch_pass_through_large_gradients(
    of: Callable[[torch.Tensor], Term],
) -> None:
    """As they do through small ones: what they wrap is not written to memory that
    they do not know."""
    one, two = torch.ones(()), torch.tensor([1.0, 2.0])
    plain = of(one).dense()
    assert of(one).dense_bytes > LARGE

    def total(scale: torch.Tensor) -> torch.Tensor:
        return of(scale).dense().double().square().sum()

    expected = plain.double().square().sum()
    torch.testing.assert_close(
        torch.func.vmap(total)(two), expected * two.double() ** 2, rtol=1e-4, atol=0
    )
    torch.testing.assert_close(
        torch.func.jvp(total, (one,), (one,))[1], 2 * expected, rtol=1e-4, atol=0
    )
    torch.testing.assert_close(
        torch.func.grad(total)(one).double(), 2 * expected, rtol=1e-4, atol=0
    )
