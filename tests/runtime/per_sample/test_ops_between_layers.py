"""What programs compute between their layers: searches, picks by masks, pieces that are put into
others, distances, rounding, and draws. The gradients are those of a loop by torch's engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn

from runtime.per_sample import per_sample

B, T, N = 3, 5, 6
Program = Callable[[Tensor, Tensor], Tensor]  # of the rows of a table, and of their numbers
EDGES = torch.tensor([-0.5, 0.0, 0.7], dtype=torch.float64)
POINTS = torch.linspace(-1, 1, 30 * N, dtype=torch.float64).reshape(30, N).sin()


def wide(ids: Tensor) -> Tensor:
    return (ids > 4)[..., None].expand(*ids.shape, N)


def quantized(y: Tensor) -> Tensor:
    scales, zeros = torch.full((N,), 0.1), torch.zeros(N, dtype=torch.int32)
    each = torch.fake_quantize_per_channel_affine(y.float(), scales, zeros, 2, -80, 70)
    return each + torch.fake_quantize_per_tensor_affine(y.float(), 0.1, 0, -80, 70)


PROGRAMS: dict[str, Program] = {
    "whole quotients of numbers": lambda y, ids: y * (ids // 3)[..., None],
    "places among edges": lambda y, ids: y * torch.bucketize(y.detach(), EDGES),
    "places among sorted numbers": lambda y, ids: y * torch.searchsorted(EDGES, y.detach()),
    "places among those of each row": lambda y, ids: (
        y * torch.searchsorted(y.detach().sort(2).values, y.detach().flip(2))
    ),
    "members of a set": lambda y, ids: (
        y * (torch.isin(ids, torch.tensor([1, 4, 7]))[..., None] + 1)
    ),
    "numbers of a table": lambda y, ids: y * torch.take(POINTS, ids)[..., None],
    "elements at a mask": lambda y, ids: torch.masked_select(y, wide(ids)),
    "elements at a mask of all samples": lambda y, ids: y.masked_select(torch.arange(N) % 3 > 0),
    "elements put where a mask is": lambda y, ids: y.masked_scatter(
        wide(ids), (2 * y)[ids > 4].flatten()
    ),
    "an index of another": lambda y, ids: y.select_scatter(2 * y[:, 1], 1, 0) * y,
    "an index of a constant": lambda y, ids: torch.ones(len(y), T, N, dtype=y.dtype).select_scatter(
        y[:, 1], 1, 0
    ),
    "a slice of another": lambda y, ids: y.slice_scatter(2 * y[:, 1:3], 1, 0, 2) * y,
    "a diagonal of another": lambda y, ids: y.diagonal_scatter(y[:, 0, :T], 0, 1, 2),
    "a turn by a right angle": lambda y, ids: y.rot90(1, (1, 2)) * POINTS[:N, :T],
    "rows of a norm": lambda y, ids: (y.flatten(1) / 2).renorm(2, 0, 0.5),
    "many distances": lambda y, ids: torch.cdist(y.repeat(1, 8, 1), POINTS),
    "a pseudoinverse": lambda y, ids: torch.linalg.pinv(y),
    "least squares": lambda y, ids: torch.linalg.lstsq(y.mT, y.mT[..., :2] * 2 + 1).solution,
    "rounded numbers": lambda y, ids: quantized(y),
    "windows that overlap": lambda y, ids: torch.istft(
        torch.stft(y.flatten(1), 8, window=torch.ones(8, dtype=y.dtype), return_complex=True),
        8,
        window=torch.ones(8, dtype=y.dtype),
    ),
    "planes that are moved": lambda y, ids: F.affine_grid(
        y[:, :2, :3], [len(y), 1, 4, 2], align_corners=False
    ),
    "a padding that names all dimensions": lambda y, ids: F.pad(y, (1, 0, 0, 2, 0, 0)),
    "largest values by an index": lambda y, ids: y.index_reduce(
        1, torch.tensor([0, 0, 1, 2, 2]), y * 2, "amax"
    ),
}


def table() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(10, N).double()


def numbers(size: int) -> Tensor:
    torch.manual_seed(1)
    return torch.stack([torch.randperm(10)[:T] for _ in range(size)])


def loss_of(out: Tensor) -> Tensor:
    return (out**3 + out * out).sum()


@pytest.mark.filterwarnings(r"ignore:index_reduce\(\) is in beta:UserWarning")
@pytest.mark.parametrize("size", [B, T, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_a_loop(name: str, size: int) -> None:
    layer, ids, program = table(), numbers(size), PROGRAMS[name]
    weight = layer.weight
    losses = [loss_of(program(layer(row[None]), row[None])) for row in ids]
    expected = torch.stack([torch.autograd.grad(loss, weight)[0] for loss in losses])
    with per_sample(weight) as grads:
        batch = grads.batch(ids)
        loss_of(program(layer(batch), batch)).backward()
    torch.testing.assert_close(grads.materialize(), expected, rtol=1e-6, atol=1e-6)
    assert expected.flatten(1).norm(dim=1).min() > 1e-3


def counts(y: Tensor) -> Tensor:
    out: Tensor = y * distributions.Binomial(5, y.detach().sigmoid()).sample()
    return out


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "gamma": lambda y: distributions.Gamma(y.exp(), y.cosh()).rsample(),
    "beta": lambda y: distributions.Beta(y.exp(), y.cosh()).rsample(),
    "Dirichlet": lambda y: distributions.Dirichlet(y.exp()).rsample(),
    "Student": lambda y: distributions.StudentT(y.exp() + 2).rsample(),
    "Cauchy": lambda y: distributions.Cauchy(y, y.exp()).rsample(),
    "normal": lambda y: y * torch.normal(y.detach(), y.detach().exp()),
    "binomial": counts,
    "multinomial": lambda y: y.gather(2, torch.multinomial(y.detach()[:, 0].exp(), 2)[:, None]),
}


@pytest.mark.parametrize("name", DRAWS)
def test_gradients_are_those_of_the_same_draws(name: str) -> None:
    layer, ids, program = table(), numbers(B), DRAWS[name]
    expected = []
    for b in range(B):
        torch.manual_seed(2)
        loss = loss_of(program(layer(ids)).select(0, b))
        expected.append(torch.autograd.grad(loss, layer.weight)[0])
    torch.manual_seed(2)
    with per_sample(layer.weight) as grads:
        loss_of(program(layer(grads.batch(ids)))).backward()
    torch.testing.assert_close(grads.materialize(), torch.stack(expected))


REFUSED: dict[str, tuple[Program, str]] = {
    "places among numbers of the batch": (
        lambda y, ids: y * torch.bucketize(y.detach(), y.detach()[:, 0, 0].contiguous()),
        "aten.bucketize.Tensor mixes samples .*: it computes along dimension 0 of boundaries",
    ),
    "members of the batch": (
        lambda y, ids: y * torch.isin(ids, ids)[..., None],
        "it compares elements with those of all samples",
    ),
    "elements of all samples": (
        lambda y, ids: y.take(ids),
        "it picks from the elements of all samples. Use gather or take_along_dim",
    ),
    "elements at a mask by position": (
        lambda y, ids: y.masked_select(torch.arange(B)[:, None, None] < 2),
        "it picks samples by their position in the batch",
    ),
    "elements of other samples where a mask is": (
        lambda y, ids: y.masked_scatter(wide(ids), y.flip(0)[ids.flip(0) > 4].flatten()),
        "it writes samples to places of other samples",
    ),
    "constants where a mask is": (
        lambda y, ids: y.masked_scatter(wide(ids), POINTS),
        "by their order. Use torch.where",
    ),
    "one sample of another": (
        lambda y, ids: y.select_scatter(torch.zeros(T, N), 0, 0),
        "it writes along dimension 0, which runs over the samples",
    ),
    "a slice of samples": (
        lambda y, ids: y.slice_scatter(y, 0, 0, B),
        "it writes along dimension 0, which runs over the samples",
    ),
    "norms over the batch": (
        lambda y, ids: y.renorm(2, 1, 0.5),
        "it takes norms over dimension 0, which runs over the samples",
    ),
    "channels that are samples": (
        lambda y, ids: torch.fake_quantize_per_channel_affine(
            y.float(), torch.ones(B), torch.zeros(B), 0, -8, 7
        ),
        "it computes along dimension 0, which runs over the samples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_samples_is_refused(name: str) -> None:
    program, says = REFUSED[name]
    layer, ids = table(), numbers(B)
    with (
        per_sample(layer.weight) as grads,
        pytest.raises(RuntimeError, match=f"(?s){says}.*To compute it of each sample alone"),
    ):
        batch = grads.batch(ids)
        loss_of(program(layer(batch), batch)).backward()
