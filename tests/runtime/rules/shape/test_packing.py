"""Packed sequences under transforms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from runtime import func
from runtime.errors import BatchingError


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [[4, 2, 2], [4, 4, 4], [1, 1, 1]])
@pytest.mark.parametrize("value", [0.0, 7.0])
def test_a_batch_that_is_packed_and_padded_is_a_loop(
    batch_first: bool, lengths: list[int], value: float
) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=batch_first)
        padded, sizes = pad_packed_sequence(
            packed._replace(data=packed.data**2), batch_first, value, 5
        )
        return padded, sizes.to(x.dtype) * x.flatten()[0]

    torch.manual_seed(0)
    x = torch.randn(3, 3, 4, 2) if batch_first else torch.randn(3, 4, 3, 2)
    expected = [torch.stack(each) for each in zip(*map(f, x), strict=True)]
    torch.testing.assert_close(list(func.vmap(f)(x)), expected)
    leaf = x[0].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(f(leaf)[0].square().sum(), leaf)
    torch.testing.assert_close(func.grad(lambda x: f(x)[0].square().sum())(x[0]), wanted)


def test_lengths_of_each_element_are_refused() -> None:
    with pytest.raises(BatchingError, match="one list for all elements"):
        func.vmap(lambda x, n: pack_padded_sequence(x, n).data)(
            torch.ones(2, 3, 2, 1), torch.tensor([[3, 2], [2, 1]])
        )
