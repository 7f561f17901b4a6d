"""Tensors and values as Python source: each reads back as itself.

Inside: gen.scripts.python_values. Any value has to read back, so hypothesis draws hundreds of
them, and each would be a program of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gen.scripts.python_values import tensor, value


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(1.5),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(3).expand(2, 3),
        torch.empty(0, 4, dtype=torch.complex64),
        torch.tensor([float("nan"), float("-inf"), -0.0]),
        torch.tensor([complex(float("inf"), 1.0)]),
        torch.tensor([True, False]),
        torch.tensor([1e-3, 65504.0], dtype=torch.float16),
        torch.randn(3, dtype=torch.complex128).conj(),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_the_literal_of_a_tensor_makes_it_again(x: torch.Tensor) -> None:
    again = eval(tensor(x))
    torch.testing.assert_close(again, x, rtol=0, atol=0, equal_nan=True)
    assert x.is_conj() or again.stride() == x.stride()


_PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
)


@given(
    st.recursive(
        _PLAIN,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner)
            | st.dictionaries(st.text(max_size=2), inner)
        ),
    )
)
def test_the_literal_of_a_value_makes_it_again(x: Any) -> None:
    assert eval(value(x)) == x
