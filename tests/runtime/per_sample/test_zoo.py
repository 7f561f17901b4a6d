"""Every model of the zoo has, in the context, the gradients that a loop with batches of one has by
torch's own autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runtime.per_sample import per_sample

from .reference import compare_projections
from .zoo import ZOO, Member


def by_loop(m: Member) -> dict[str, Tensor]:
    """The gradients of each sample, of shape (B, *parameter)."""
    params = {name: p for name, p in m.module.named_parameters() if p.requires_grad}
    found = []
    for b in range(m.batch[0].shape[m.dim]):
        loss = m.loss(m.module, *(x.narrow(m.dim, b, 1) for x in m.batch))
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        found.append(
            [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(params.values(), grads, strict=True)
            ]
        )
    return {
        name: torch.stack(gs) for name, gs in zip(params, zip(*found, strict=True), strict=True)
    }


def squared(expected: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: g.flatten(1).pow(2).sum(1) for name, g in expected.items()}


@pytest.mark.parametrize("name", ZOO)
def test_a_model_has_the_gradients_of_the_loop(name: str) -> None:
    m, plain = ZOO[name](), ZOO[name]()
    plain.module.through = None  # type: ignore[assignment]  # without checkpoints
    expected = by_loop(plain)
    params = {name: p for name, p in m.module.named_parameters() if p.requires_grad}
    with per_sample(params, m.dim) as grads:
        batch = [grads.batch(x) for x in m.batch]
        loss = m.loss(m.module, *batch)
        loss.backward()
    torch.testing.assert_close(
        torch.tensor(loss.item(), dtype=torch.float64),
        plain.loss(plain.module, *plain.batch).detach(),
    )
    found = grads.materialize()
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(
            found[key], expected[key], rtol=1e-9, atol=1e-9, msg=f"{key} of {name}"
        )
    each = squared(expected)
    norms = sum(each.values()).sqrt()  # type: ignore[union-attr]
    torch.testing.assert_close(grads.norms(), norms)
    for key, norm in grads.norms("parameter").items():
        torch.testing.assert_close(norm, each[key].sqrt(), rtol=1e-7, atol=1e-7)
    bound = float(norms.median())
    clipped = grads.clipped_sum(bound)
    for key, g in expected.items():
        torch.testing.assert_close(
            clipped[key],
            torch.tensordot(bound / norms.clamp_min(bound), g, 1),
            rtol=1e-9,
            atol=1e-9,
        )
    compare_projections(grads, expected)
    assert all(p.grad is None for p in m.module.parameters())
