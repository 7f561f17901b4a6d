"""A sum of losses may be divided by a sum of constants, such as the number of tokens. The gradients
are those of a loop, in which each sample divides by its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import runtime
from runtime.per_sample import per_sample

B, T, V = 3, 5, 7
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of scores (B, T, V), numbers, and a mask


def each(scores: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(scores.transpose(1, 2), ids, reduction="none")


def in_place(scores: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum(dtype=scores.dtype)
    count += 0.5
    return (each(scores, ids) * mask).sum() / count


def weighted(scores: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    weights = scores.softmax(-1).amax(-1).detach()
    return (each(scores, ids) * weights).sum() / weights.sum()


def ignored(scores: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    labels = ids.masked_fill(~mask, -100)
    total = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != -100).sum()


LOSSES: dict[str, Loss] = {
    "tokens": lambda s, ids, mask: (each(s, ids) * mask).sum() / mask.sum(),
    "tokens, at least one": lambda s, ids, mask: (
        (each(s, ids) * mask).sum() / mask.sum().clamp(min=1)
    ),
    "tokens as other numbers": lambda s, ids, mask: (
        (each(s, ids) * mask).sum() / (2 * mask.to(s.dtype).sum().float() + 1e-3)
    ),
    "picked tokens": lambda s, ids, mask: each(s, ids)[mask].sum() / mask.sum(),
    "a mask that is summed in two steps": lambda s, ids, mask: (
        (each(s, ids) * mask).sum() / mask.sum(1).sum()
    ),
    "a count that is written to": in_place,
    "weights": weighted,
    "labels that are ignored": ignored,
    "scaled afterwards": lambda s, ids, mask: 0.7 * (each(s, ids) * mask).sum() / mask.sum() * 1.5,
    "two of them": lambda s, ids, mask: (
        (each(s, ids) * mask).sum() / mask.sum() + 0.3 * (s.amax(-1) * mask).sum() / mask.sum()
    ),
}


def model() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(V, 4), nn.Linear(4, V)).double()
    mask = torch.tensor([[1, 1, 1, 0, 1], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    return layers, torch.randint(0, V, (B, T)), mask


def by_loop(loss: Loss, reused: slice) -> list[Tensor]:
    layers, ids, mask = model()
    rows = []
    for i, m in zip(ids[reused, None], mask[reused, None], strict=True):
        rows.append(torch.autograd.grad(loss(layers(i), i, m), list(layers.parameters())))
    return [torch.stack(grads) for grads in zip(*rows, strict=True)]


@pytest.mark.parametrize("samples", [slice(0, 3), slice(1, 3), slice(0, 1)])
@pytest.mark.parametrize("name", LOSSES)
def test_each_sample_divides_by_its_own(name: str, samples: slice) -> None:
    layers, ids, mask = model()
    with per_sample(layers.parameters()) as grads:
        i, m = grads.batch(ids[samples]), grads.batch(mask[samples])
        LOSSES[name](layers(i), i, m).backward()
    expected = by_loop(LOSSES[name], samples)
    torch.testing.assert_close(grads.materialize(), expected)
    norms = torch.cat([g.flatten(1) for g in expected], 1).norm(dim=1)
    torch.testing.assert_close(grads.norms(), norms)


def test_a_sample_without_a_token_has_no_gradient() -> None:
    layers, ids, mask = model()
    mask[1] = False
    with per_sample(layers.parameters()) as grads:
        i, m = grads.batch(ids), grads.batch(mask)
        LOSSES["tokens"](layers(i), i, m).backward()
    assert grads.norms()[1] == 0 and grads.norms()[[0, 2]].min() > 0.01


def by_learned_weights(s: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    weights = s.softmax(-1).amax(-1)
    return (each(s, ids) * weights).sum() / weights.sum()


def written(s: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    total = each(s, ids).sum()
    total *= 3
    return total / mask.sum()


def written_before(s: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    total = each(s, ids).sum()
    multiple = 3 * total
    with torch.no_grad():
        total *= 5
    return multiple / mask.sum()


REFUSED: dict[str, tuple[Loss, str]] = {
    "weights that are learned": (by_learned_weights, "it is not linear in a sum or mean"),
    "a mean of samples": (
        lambda s, ids, mask: each(s, ids).mean() / mask.sum(),
        "Compute it of each sample, before the sum or mean",
    ),
    "a view of the sum": (
        lambda s, ids, mask: each(s, ids).sum().view(1)[0] / mask.sum(),
        "Compute it of each sample, before the sum or mean",
    ),
    "a sum that was written to": (written, "it is not linear in a sum or mean"),
    "a multiple of a sum that was written to": (written_before, "it is not linear in a sum"),
    "beside a sum": (
        lambda s, ids, mask: (each(s, ids) * mask).sum() / mask.sum() + s.sum(),
        "it adds a sum and a mean over the samples",
    ),
    "beside a mean": (
        lambda s, ids, mask: (each(s, ids) * mask).sum() / mask.sum() + s.mean(),
        "it adds a sum and a mean over the samples",
    ),
    "beside one with other numbers": (
        lambda s, ids, mask: (
            (each(s, ids) * mask).sum() / mask.sum() + (each(s, ids) * ids).sum() / (ids + 1).sum()
        ),
        "it adds a sum and a mean over the samples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_quotients_are_refused(name: str) -> None:
    loss, says = REFUSED[name]
    layers, ids, mask = model()
    with per_sample(layers.parameters()) as grads, pytest.raises(RuntimeError, match=says):
        i, m = grads.batch(ids), grads.batch(mask)
        loss(layers(i), i, m).backward()


def test_a_loss_that_uses_a_parameter_itself_is_refused() -> None:
    bias = torch.zeros(T, dtype=torch.float64, requires_grad=True)
    _, _, mask = model()
    x = torch.randn(B, T, dtype=torch.float64)
    with per_sample(bias) as grads, pytest.raises(RuntimeError, match="it is not linear"):
        batch, m = grads.batch(x), grads.batch(mask)
        (F.mse_loss(batch, bias.expand(B, T), reduction="sum") / m.sum()).backward()


def test_two_losses_of_one_pass_with_other_numbers_are_refused() -> None:
    layers, ids, mask = model()
    with per_sample(layers.parameters()) as grads:
        i, m = grads.batch(ids), grads.batch(mask)
        scores = layers(i)
        losses = [LOSSES["tokens"](scores, i, m), each(scores, i).sum()]
        with pytest.raises(RuntimeError, match="a sum over the samples in one term and a mean"):
            runtime.autograd.backward(losses)
