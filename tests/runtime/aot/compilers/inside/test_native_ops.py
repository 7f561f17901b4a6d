"""The ops that native code computes as kernels do.

Inside: runtime.aot.compilers.native_ops. Calls of a graph with a few values do not show what its
code does with others, so the tables of ops are tested here.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from runtime.aot.compilers.native_ops import ELEMENTWISE, SUMS
from tests.runtime.aot.compilers.inside import native_values

SEED = 17


@pytest.fixture(autouse=True)
def files(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kernels))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_native_code_gives_the_values_of_kernels_and_others_are_told_apart() -> None:
    """A few ops. `native_values` as a program compares all of them."""
    names = random.Random(SEED).sample(sorted(ELEMENTWISE | SUMS), 5)
    wrong = native_values.differences([*names, "expm1.default"])
    # `expm1(-0.0)` is -0.0
    assert [call.split()[0] for call in wrong] == 2 * ["aten.expm1.default"]
    assert set(wrong.values()) == {"a zero of another sign"}


@pytest.mark.parametrize("name", sorted(ELEMENTWISE | SUMS))
def test_each_op_is_called_with_values(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        calls = list(native_values.calls_of(name, dtype))
        assert calls and all(call.tensors for call in calls)


def test_a_difference_is_one_beyond_rounding() -> None:
    one, zero = torch.ones(1), torch.zeros(1)
    assert not native_values.difference(one, one + 1e-6, zero)
    assert native_values.difference(one, one + 1e-4, zero) == "1.000100016593933 for 1.0"
    # terms of a million that cancel
    assert not native_values.difference(one, one + 1e-4, one * 1e6)
    assert native_values.difference(zero, -zero, zero) == "a zero of another sign"
    assert native_values.difference(one, one / 0, zero) == "infinite where the kernel is finite"
