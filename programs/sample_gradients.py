"""The gradients of each sample, by a loop over the samples, and what programs ask of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from programs.tools import Results, beside, own, plain

F = nn.functional
Loss = Callable[..., Tensor]


class Loop:
    """The gradients of each sample, each computed alone, and the answers that follow from them.
    ``dense``: (B, *parameter) each."""

    def __init__(self, dense: Sequence[Tensor]) -> None:
        self.dense = list(dense)

    def norms(self, per: str = "total") -> Any:
        squares = [(d.conj() * d).real.flatten(1).sum(1) for d in self.dense]
        return (
            [s.sqrt() for s in squares]
            if per == "parameter"
            else torch.stack(squares).sum(0).sqrt()
        )

    def weighted_sum(self, weights: Tensor, keep: bool = True) -> Any:
        return [torch.einsum("b...,b->...", d, weights.to(d.dtype)) for d in self.dense]

    def clipped_sum(self, most: float, per: str = "total", keep: bool = True) -> Any:
        norms = self.norms(per) if per == "parameter" else [self.norms()] * len(self.dense)
        scales = [(most / n).clamp(max=1) for n in norms]
        return [
            torch.einsum("b...,b->...", d, s.to(d.dtype))
            for d, s in zip(self.dense, scales, strict=True)
        ]

    def dot(self, vector: Sequence[Tensor]) -> Tensor:
        return torch.stack(
            [(d * v).flatten(1).sum(1) for d, v in zip(self.dense, vector, strict=True)]
        ).sum(0)

    def gram(self, other: Loop | None = None) -> Tensor:
        pairs = zip(self.dense, (other or self).dense, strict=True)
        return torch.stack([a.flatten(1) @ b.flatten(1).t() for a, b in pairs]).sum(0)

    def second_moment(self) -> Any:
        return [(d.conj() * d).real.mean(0) for d in self.dense]

    def variance(self) -> Any:
        return [d.var(0, correction=0) for d in self.dense]

    def materialize(self, out: Any = None) -> Any:
        return self.dense


def squares(module: Any, *batch: Any) -> Tensor:
    out: Tensor = module(*batch)
    return out.square().sum()


def mean_of(module: Any, *batch: Any) -> Tensor:
    out: Tensor = module(*batch)
    return out.square().flatten(1).sum(1).mean()


def by_loop_of(loss: Callable[[int], Tensor], size: int, params: Sequence[Tensor]) -> Loop:
    each = [
        torch.autograd.grad(loss(i), params, allow_unused=True, materialize_grads=True)
        for i in range(size)
    ]
    return Loop([torch.stack(column) for column in zip(*each, strict=True)])


def gradients(
    module: nn.Module,
    batch: Results,
    loss: Loss = squares,
    dim: int = 0,
    params: Any = None,
    **options: Any,
) -> Any:
    """The gradients of the samples of `batch`, which lie along `dim` of each of its tensors."""
    context, wanted = (
        own("per_sample.per_sample"),
        list(module.parameters()) if params is None else params,
    )
    if context is None:
        return by_loop_of(
            lambda i: loss(module, *(x.narrow(dim, i, 1) for x in batch)),
            batch[0].shape[dim],
            wanted,
        )
    with context(wanted, dim, **options) as grads:
        loss(module, *batch).backward()
    return grads


def answers(grads: Any, params: Sequence[Tensor]) -> list[Any]:
    """What the gradients answer."""
    vector = [torch.linspace(-1, 1, p.numel(), dtype=p.dtype).reshape(p.shape) for p in params]
    found = [
        grads.norms(),
        *grads.norms("parameter"),
        *grads.clipped_sum(0.5),
        *grads.clipped_sum(0.3, "parameter"),
        grads.dot(vector),
    ]
    return [*found, grads.gram(), *grads.materialize()]


def answers_of(
    x: Tensor, module: nn.Module, batch: Results, loss: Loss = squares, dim: int = 0, **options: Any
) -> Results:
    """The answers for the parameters of a module, in double precision, with numbers that do not
    depend on a generator."""
    module.double()
    filled(module)
    return beside(
        x, *answers(gradients(module, batch, loss, dim, **options), list(module.parameters()))
    )


def filled(module: nn.Module) -> None:
    with torch.no_grad():
        for k, p in enumerate(module.parameters()):
            p.copy_(
                torch.sin(torch.arange(p.numel(), dtype=torch.float64) * 0.7 + k + 1).reshape(
                    p.shape
                )
                * 0.6
            )


class Of(nn.Module):
    """A module whose forward pass is a function of it and of its arguments."""

    def __init__(self, f: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *batch: Any, **named: Any) -> Any:
        return self.f(self, *batch, **named)


def rows_of(x: Tensor, *shape: int) -> Tensor:
    """A batch of three samples with the numbers of x and others."""
    many = (
        torch.stack([plain(x) * 0.3 * (k + 1) for k in range(24)])
        .transpose(0, 1)
        .reshape(3, -1)
        .sin()
    )
    return many[:, : torch.Size(shape).numel()].reshape(3, *shape).contiguous()
