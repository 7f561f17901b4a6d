"""The tangent kernel is the product of Jacobians, and its regression that of the linear model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.rings import classifier, two_rings
from examples.tangent_kernel import predict, tangent_kernel


def jacobian(model: nn.Module, rows: Tensor) -> Tensor:
    each = [torch.autograd.grad(model(row[None])[0, 0], list(model.parameters())) for row in rows]
    return torch.stack([torch.cat([g.flatten() for g in gs]) for gs in each])


def test_the_tangent_kernel_is_the_product_of_jacobians() -> None:
    model = classifier(0, width=4)
    x, z = torch.randn(3, 2), torch.randn(2, 2)
    torch.testing.assert_close(
        tangent_kernel(model, x, z), jacobian(model, x) @ jacobian(model, z).mT
    )


def test_the_prediction_is_that_of_ridge_regression_on_the_gradients() -> None:
    model = classifier(0, width=4).double()
    x, z = (torch.randn(n, 2, dtype=torch.float64) for n in (9, 3))
    y = torch.randn(9, dtype=torch.float64)
    a, b = jacobian(model, x), jacobian(model, z)
    moved = torch.linalg.solve(
        a.mT @ a + 0.3 * torch.eye(a.shape[1], dtype=a.dtype), a.mT @ (y - model(x).detach()[:, 0])
    )
    torch.testing.assert_close(
        predict(model, x, y, z, ridge=0.3), model(z).detach()[:, 0] + b @ moved
    )


def test_the_linear_model_separates_the_rings() -> None:
    generator = torch.Generator().manual_seed(0)
    (x, y), (z, truth) = two_rings(100, generator), two_rings(300, generator)
    found = predict(classifier(0, width=64), x, 2.0 * y - 1, z, ridge=0.1) > 0
    assert float((found == (truth == 1)).double().mean()) > 0.97
