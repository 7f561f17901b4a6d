"""Per-sample gradients that need not exist: a private training step, scores of influence, a tangent kernel.

python -m examples.per_sample
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.func import functional_call
from runtime.per_sample import per_sample_grads

Params = dict[str, Tensor]


def classifier(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))


def two_rings(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points of two classes, one around the other."""
    labels = torch.arange(n) % 2
    angle = torch.rand(n, generator=generator) * 2 * torch.pi
    radius = 1.0 + 1.5 * labels + 0.2 * torch.randn(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def private_step(model: nn.Module, params: Params, x: Tensor, y: Tensor, bound: float, noise: float, generator: torch.Generator) -> Params:
    """The mean of clipped gradients with Gaussian noise (Abadi et al. 2016, «Deep Learning with Differential Privacy», algorithm 1)."""

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    total: Params = per_sample_grads(loss)(params, x, y).clipped_sum(bound)
    return {name: (g + noise * bound * torch.randn(g.shape, generator=generator)) / len(x) for name, g in total.items()}


def train_privately(steps: int = 150, batch: int = 256, seed: int = 0) -> float:
    """The accuracy on fresh points after training with clipped and noisy gradients."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = classifier()
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(steps):
        x, y = two_rings(batch, generator)
        step = private_step(model, params, x, y, bound=1.0, noise=0.5, generator=generator)
        params = {name: p - 2.0 * step[name] for name, p in params.items()}
    x, y = two_rings(1000, generator)
    return float((functional_call(model, params, (x,)).argmax(1) == y).double().mean())


def influence(x: Tensor, y: Tensor, at: tuple[Tensor, Tensor], ridge: float = 1.0) -> tuple[Tensor, Tensor]:
    """By how much the squared error at a point falls if a row of a ridge regression is left out: from gradients and the Hessian (Koh and
    Liang 2017), and by leaving it out."""

    def fit(x: Tensor, y: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve(x.mT @ x + ridge * torch.eye(x.shape[1], dtype=x.dtype), x.mT @ y)
        return solution

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (x @ w - y).square() / 2

    w = fit(x, y)
    hessian = x.mT @ x + ridge * torch.eye(x.shape[1], dtype=x.dtype)
    test = per_sample_grads(loss)(w, at[0][None], at[1][None]).weighted_sum(torch.ones(1, dtype=x.dtype))
    predicted = -per_sample_grads(loss)(w, x, y).dot(torch.linalg.solve(hessian, test))
    kept = [[j for j in range(len(x)) if j != i] for i in range(len(x))]
    exact = torch.stack([loss(w, *at) - loss(fit(x[k], y[k]), *at) for k in kept])
    return predicted, exact


def tangent_kernel(model: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    """The empirical neural tangent kernel of the first output (Jacot et al. 2018), of shape (rows of ``x``, rows of ``z``)."""
    params = {name: p.detach() for name, p in model.named_parameters()}

    def output(params: Params, x: Tensor) -> Tensor:
        first: Tensor = functional_call(model, params, (x[None],))[0, 0]
        return first

    grads = per_sample_grads(output)
    kernel: Tensor = grads(params, x).gram(grads(params, z))
    return kernel


if __name__ == "__main__":
    print(f"accuracy with private steps: {train_privately():.2f}")
    x = torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + x[:, 0].sin()
    predicted, exact = influence(x, y, (x[0] + 1, y[0]))
    print(f"correlation of influence with leaving out: {torch.corrcoef(torch.stack([predicted, exact]))[0, 1]:.3f}")
    kernel = tangent_kernel(classifier(), torch.randn(5, 2), torch.randn(3, 2))
    print(f"tangent kernel of 5 and 3 points: {list(kernel.shape)}")
