"""Scores of influence agree with retraining, and find wrong labels."""

from __future__ import annotations

import torch
from torch import nn

from examples.influence import correlation, features, logistic_regression, wrong_labels_found


def test_the_fit_is_the_minimum() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(30, 3, dtype=torch.float64, generator=generator),
        (torch.arange(30) % 2).double(),
    )
    model = logistic_regression(x, y, ridge=0.5)
    loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y, reduction="sum")
    total = loss + 0.25 * sum(p.square().sum() for p in model.parameters())
    assert float(torch.autograd.grad(total, list(model.parameters()))[0].norm()) < 1e-10


def test_scores_agree_with_leaving_each_sample_out() -> None:
    assert correlation(None) > 0.98


def test_projections_keep_the_agreement() -> None:
    assert correlation(2048) > 0.98
    assert correlation(256) > 0.95


def test_wrong_labels_are_among_the_most_harmful_samples() -> None:
    assert wrong_labels_found() >= 0.8  # 0.05 by chance


def test_features_are_the_gradients_of_the_output() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(5, 3)
    expected = [
        torch.cat(
            [
                g.flatten()
                for g in torch.autograd.grad(model(row[None]).sum(), list(model.parameters()))
            ]
        )
        for row in x
    ]
    torch.testing.assert_close(features(model, x, None), torch.stack(expected))
