"""Sparse tensors: what they are made of, and what is made of them. torch's engine is the oracle."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import unwrap, wrap
from runtime.autograd import Function, backward, grad

INDICES = torch.tensor([[0, 0, 1], [1, 1, 2]])
MASK = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]], dtype=torch.float64)

PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "made_of_values": ((3, 2), lambda v: torch.sparse_coo_tensor(INDICES, v, (2, 3, 2)).to_dense()),
    "made_of_a_number": ((2,), lambda v: torch.sparse_coo_tensor(torch.empty(0, 2, dtype=torch.long), v, ()).to_dense()),
    "coalesced": ((3,), lambda v: torch.sparse_coo_tensor(INDICES, v, (2, 3)).coalesce().to_dense()),
    "values": ((3,), lambda v: torch.sparse_coo_tensor(INDICES, v, (2, 3)).coalesce().values()),
    "values_of_rows": ((2, 3), lambda x: x.to_sparse_csr().values()),
    "masked": ((2, 3), lambda x: x.sparse_mask(MASK.to_sparse()).to_dense()),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_through_sparse_tensors_are_those_of_torch(name: str) -> None:
    shape, program = PROGRAMS[name]
    x = torch.rand(shape, dtype=torch.float64)

    def gradient(x: Any, by: Any) -> Any:
        y = program(x)
        return by((y * torch.arange(1.0, 1 + y.numel(), dtype=torch.float64).reshape(y.shape)).sum(), x)[0]

    expected = gradient(x.clone().requires_grad_(), torch.autograd.grad)
    torch.testing.assert_close(unwrap(gradient(wrap(x, True), grad)), expected)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_uncoalesced_values_have_no_gradient() -> None:
    x = wrap(torch.rand(3), True)
    assert not torch.sparse_coo_tensor(INDICES, x, (2, 3))._values().requires_grad


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("before", ("to_dense", "to_sparse", "to_sparse_csr", "to_sparse_csc"))
@pytest.mark.parametrize("after", ("to_sparse", "to_sparse_csr", "to_sparse_csc"))
def test_a_sparse_cotangent_of_a_conversion_returns_in_the_layout_from_before(before: str, after: str) -> None:
    x = wrap(getattr(torch.rand(3, 3) + 1, before)(), True)
    g = torch.rand(3, 3) + 1
    (found,) = grad(getattr(x, after)(), x, getattr(g, after)())
    assert found.layout is x.layout
    torch.testing.assert_close(unwrap(found.to_dense()), g)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_gradient_whose_elements_share_memory_is_copied_into_the_leaf() -> None:
    class Rows(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return torch.sparse_coo_tensor(torch.tensor([[0, 1, 3]]), torch.ones(1, 2).expand(3, 2), (4, 2))

    x = wrap(torch.rand(4, 2), True)
    backward(Rows.apply(x).sum())
    x.grad._values().mul_(3)
    torch.testing.assert_close(unwrap(x.grad).to_dense(), torch.tensor([3.0, 3.0, 0.0, 3.0]).unsqueeze(1).expand(4, 2))
