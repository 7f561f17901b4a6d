"""Training with differential privacy: clipped gradients, noise, and the privacy that was spent.

python -m examples.dp_sgd

The accountant is that of ``dp-accounting``: ``pip install .[privacy]``. Training does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.rings import classifier, two_rings
from runtime.per_sample import per_sample


def private_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    bound: float,
    noise: float,
    size: float,
    seed: torch.Generator,
) -> None:
    """A step along the clipped gradients with Gaussian noise (Abadi et al. 2016, «Deep Learning
    with Differential Privacy», algorithm 1).

    ``size``: the expected number of samples. It is public, the actual number is not. ``seed``:
    gives the noise, so a run can be repeated."""
    with per_sample(model.parameters()) as grads:
        F.cross_entropy(model(x), y, reduction="sum").backward()
    for p, total in zip(model.parameters(), grads.clipped_sum(bound, keep=False), strict=True):
        p.grad = (total + noise * bound * torch.randn(p.shape, generator=seed)) / size
    optimizer.step()


def poisson_batches(n: int, rate: float, steps: int, seed: torch.Generator) -> Iterator[Tensor]:
    """Rows of each step. Each row is drawn by itself with probability ``rate``, as the
    accountant supposes."""
    for _ in range(steps):
        yield (torch.rand(n, generator=seed) < rate).nonzero().flatten()


def train(
    n: int = 10_000,
    rate: float = 0.03,
    steps: int = 150,
    bound: float = 1.0,
    noise: float = 1.0,
    seed: int = 0,
) -> nn.Module:
    """A model trained with private steps. The same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)
    model = classifier(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    x, y = two_rings(n, generator)
    for rows in poisson_batches(n, rate, steps, generator):
        private_step(model, optimizer, x[rows], y[rows], bound, noise, rate * n, generator)
    return model


def accuracy(model: nn.Module, seed: int = 1) -> float:
    """On fresh points."""
    x, y = two_rings(2000, torch.Generator().manual_seed(seed))
    return float((model(x).argmax(1) == y).double().mean())


def epsilon(
    rate: float = 0.03, steps: int = 150, noise: float = 1.0, delta: float = 1e-5
) -> float | None:
    """The privacy that these steps spend: (epsilon, ``delta``) of Rényi accounting. None
    without ``dp-accounting``."""
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ModuleNotFoundError:
        return None
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return float(rdp.RdpAccountant().compose(step, steps).get_epsilon(delta))


if __name__ == "__main__":
    print(f"accuracy with private steps: {accuracy(train()):.3f}")
    spent = epsilon()
    print(
        "epsilon is not computed: pip install .[privacy]"
        if spent is None
        else f"epsilon at delta 1e-5: {spent:.2f}"
    )
