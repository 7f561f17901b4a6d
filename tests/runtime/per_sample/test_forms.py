"""Gradients of uses of a parameter, beside those of torch's engine for one sample after the
other."""

from __future__ import annotations

import pytest
import torch

from runtime.per_sample import per_sample_grads

from .parameter_uses import USES, loss_of_use


@pytest.mark.parametrize("name", USES)
def test_the_gradients(name: str) -> None:
    use, parameter, batch, _ = USES[name]
    loss = loss_of_use(use)
    grads = per_sample_grads(loss)(parameter, batch)
    leaves = [parameter.clone().requires_grad_() for _ in batch]
    loop = torch.stack(
        [torch.autograd.grad(loss(leaf, x), leaf)[0] for leaf, x in zip(leaves, batch, strict=True)]
    )
    torch.testing.assert_close(grads.materialize(), loop)
    torch.testing.assert_close(grads.norms(), loop.flatten(1).norm(dim=1))
    weights = torch.linspace(-1, 2, len(batch), dtype=loop.dtype)
    torch.testing.assert_close(grads.weighted_sum(weights), torch.tensordot(weights, loop, 1))
    torch.testing.assert_close(grads.dot(parameter), (loop * parameter).flatten(1).sum(1))
