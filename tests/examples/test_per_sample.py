"""The examples of per-sample gradients do what they say."""

from __future__ import annotations

import torch
from torch import nn

from examples.per_sample import classifier, influence, private_step, tangent_kernel, train_privately


def test_private_steps_train_to_high_accuracy() -> None:
    assert train_privately(steps=100) > 0.97


def test_a_private_step_without_noise_is_the_mean_of_clipped_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    params = {name: p.detach() for name, p in model.named_parameters()}
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    found = private_step(model, params, x, y, bound=0.3, noise=0.0, generator=torch.Generator())
    total = [torch.zeros_like(p) for p in params.values()]
    for row, label in zip(x, y, strict=True):
        each = torch.autograd.grad(torch.nn.functional.cross_entropy(model(row[None]), label[None]), list(model.parameters()))
        norm = torch.cat([g.flatten() for g in each]).norm()
        total = [t + g * min(1.0, 0.3 / float(norm)) for t, g in zip(total, each, strict=True)]
    for mine, t in zip(found.values(), total, strict=True):
        torch.testing.assert_close(mine, t / 6)


def test_influence_agrees_with_leaving_out() -> None:
    x = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + x[:, 0].sin()
    predicted, exact = influence(x, y, (x[0] + 1, y[0]))
    assert torch.corrcoef(torch.stack([predicted, exact]))[0, 1] > 0.99
    assert (predicted.sign() == exact.sign()).double().mean() > 0.95


def test_the_tangent_kernel_is_the_product_of_jacobians() -> None:
    torch.manual_seed(0)
    model = classifier(4)
    x, z = torch.randn(3, 2), torch.randn(2, 2)

    def jacobian(rows: torch.Tensor) -> torch.Tensor:
        each = [torch.autograd.grad(model(row[None])[0, 0], list(model.parameters())) for row in rows]
        return torch.stack([torch.cat([g.flatten() for g in gs]) for gs in each])

    torch.testing.assert_close(tangent_kernel(model, x, z), jacobian(x) @ jacobian(z).mT)
