"""Which training samples a prediction rests on: scores of projected gradients, beside retraining
without each sample.

python -m examples.influence
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.rings import classifier, two_rings
from runtime.func import functional_call
from runtime.per_sample import per_sample_grads

Params = dict[str, Tensor]


def features(model: nn.Module, x: Tensor, k: int | None, seed: int = 0) -> Tensor:
    """The gradients of the model's one output for each row, projected to ``k`` numbers; None: as
    they are. Shape (B, k)."""

    def output(params: Params, x: Tensor) -> Tensor:
        logit: Tensor = functional_call(model, params, (x[None],))[0, 0]
        return logit

    grads: Any = per_sample_grads(output)(
        {name: p.detach() for name, p in model.named_parameters()}, x
    )
    if k is not None:
        projected: Tensor = grads.project(k, seed)
        return projected
    return torch.cat([g.flatten(1) for g in grads.materialize().values()], 1)


def scores(
    model: nn.Module, x: Tensor, y: Tensor, z: Tensor, ridge: float, k: int | None = None
) -> Tensor:
    """By how much the output at each row of ``z`` rises if a training sample is left out. Shape
    (rows of ``z``, rows of ``x``).

    ``model`` has one output, the logit of class 1, and was trained on ``x`` and ``y`` with
    ``ridge / 2`` times the squared weights. The model is taken as linear in its weights: then this
    is one step of Newton's method (Koh and Liang 2017). With projected gradients it is the score of
    TRAK (Park et al. 2023), with the weights of the logistic loss.
    """
    of_x, of_z = features(model, x, k), features(model, z, k)
    p = model(x).detach()[:, 0].sigmoid()
    hessian = (of_x.mT * (p * (1 - p))) @ of_x + ridge * torch.eye(of_x.shape[1], dtype=x.dtype)
    found: Tensor = of_z @ torch.linalg.solve(hessian, of_x.mT) * (p - y)
    return found


def logistic_regression(x: Tensor, y: Tensor, ridge: float) -> nn.Module:
    """The exact minimum, by Newton's method: the sum of the losses, and ``ridge / 2`` times the
    squared weights."""
    model = nn.Linear(x.shape[1], 1, bias=False, dtype=x.dtype)
    w = torch.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(20):
        p = (x @ w).sigmoid()
        hessian = (x.mT * (p * (1 - p))) @ x + ridge * torch.eye(len(w), dtype=x.dtype)
        w = w - torch.linalg.solve(hessian, x.mT @ (p - y) + ridge * w)
    model.weight.data.copy_(w[None])
    return model


def left_out(x: Tensor, y: Tensor, z: Tensor, ridge: float) -> Tensor:
    """What :func:`scores` predicts for logistic regression: it is fitted again
    without each sample."""
    whole = logistic_regression(x, y, ridge)(z).detach()
    kept = [torch.arange(len(x)) != i for i in range(len(x))]
    return torch.cat(
        [logistic_regression(x[rows], y[rows], ridge)(z).detach() - whole for rows in kept], 1
    )


def correlation(
    k: int | None, n: int = 150, inputs: int = 20, ridge: float = 1.0, seed: int = 0
) -> float:
    """Between the scores and leaving out, for logistic regression: the mean over 10 points."""
    generator = torch.Generator().manual_seed(seed)
    x, z = (torch.randn(rows, inputs, dtype=torch.float64, generator=generator) for rows in (n, 10))
    slope = torch.randn(inputs, dtype=torch.float64, generator=generator)
    y = (torch.rand(n, dtype=torch.float64, generator=generator) < (x @ slope).sigmoid()).double()
    predicted = scores(logistic_regression(x, y, ridge), x, y, z, ridge, k)
    pairs = zip(predicted, left_out(x, y, z, ridge), strict=True)
    return float(torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs]).mean())


def wrong_labels_found(n: int = 400, wrong: int = 20, k: int = 512, seed: int = 0) -> float:
    """Some labels are wrong. Their share among as many samples that harm the predictions of
    fresh points most."""
    generator = torch.Generator().manual_seed(seed)
    x, labels = two_rings(n, generator)
    y = labels.float()
    y[:wrong] = 1 - y[:wrong]
    model = classifier(seed, outputs=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
        optimizer.step()
    z, truth = two_rings(200, generator)
    gains = (scores(model, x, y, z, ridge=1e-3 * n, k=k) * (2 * truth - 1)[:, None]).mean(0)
    return float((gains.topk(wrong).indices < wrong).double().mean())


if __name__ == "__main__":
    exact, projected = correlation(None), correlation(256)
    print(
        "logistic regression, correlation with leaving out: "
        f"{exact:.3f}, projected to 256 numbers: {projected:.3f}"
    )
    print(f"a small model, wrong labels among the most harmful samples: {wrong_labels_found():.2f}")
