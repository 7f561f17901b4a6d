"""Private training does what it says, with and without an accountant."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch
from torch import nn

from examples.dp_sgd import accuracy, epsilon, poisson_batches, private_step, train

ACCOUNTANT = importlib.util.find_spec("dp_accounting") is not None


def test_private_steps_train_to_97_percent() -> None:
    assert accuracy(train(steps=60)) > 0.97


def test_a_seed_gives_the_same_weights() -> None:
    one, other, third = (train(n=500, rate=0.1, steps=3, seed=seed) for seed in (0, 0, 1))
    for a, b, c in zip(one.parameters(), other.parameters(), third.parameters(), strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)


def gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return list(
        torch.autograd.grad(
            nn.functional.cross_entropy(model(x[None]), y[None]), list(model.parameters())
        )
    )


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_private_step_is_a_loop_over_samples_with_clipping_and_noise(noise: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    before = [p.detach().clone() for p in model.parameters()]
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    total = [torch.zeros_like(p) for p in before]
    for row, label in zip(x, y, strict=True):
        each = gradients(model, row, label)
        norm = float(torch.cat([g.flatten() for g in each]).norm())
        total = [t + g * min(1.0, 0.3 / norm) for t, g in zip(total, each, strict=True)]
    generator = torch.Generator().manual_seed(3)
    total = [t + noise * 0.3 * torch.randn(t.shape, generator=generator) for t in total]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private_step(
        model,
        optimizer,
        x,
        y,
        bound=0.3,
        noise=noise,
        size=8.0,
        seed=torch.Generator().manual_seed(3),
    )
    for p, start, t in zip(model.parameters(), before, total, strict=True):
        torch.testing.assert_close(p.detach(), start - t / 8)


def test_each_row_is_drawn_with_the_rate_of_the_accountant() -> None:
    sizes = torch.tensor(
        [
            float(len(rows))
            for rows in poisson_batches(1000, 0.2, 200, torch.Generator().manual_seed(0))
        ]
    )
    # a binomial distribution
    assert abs(float(sizes.mean()) - 200) < 4 and abs(float(sizes.std()) - 160**0.5) < 3


@pytest.mark.skipif(not ACCOUNTANT, reason="dp-accounting is an optional extra")
def test_epsilon_is_that_of_one_gaussian_mechanism() -> None:
    found = epsilon(rate=1.0, steps=1, noise=2.0, delta=1e-5)
    # Mironov 2017, Rényi differential privacy: alpha / (2 sigma²) + log(1 / delta) / (alpha - 1) at
    # the best alpha, an upper bound
    bound = min(
        alpha / 8 + 11.5129 / (alpha - 1) for alpha in (1 + i / 100 for i in range(1, 10_000))
    )
    assert found is not None and 0.7 * bound < found < bound


@pytest.mark.skipif(ACCOUNTANT, reason="dp-accounting is installed")
def test_without_the_accountant_the_example_trains_and_names_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.dp_sgd"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (
        "accuracy with private steps" in done.stdout
        and "epsilon is not computed: pip install .[privacy]" in done.stdout
    )
