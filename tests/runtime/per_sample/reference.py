"""Gradients of each sample by torch's own autograd, one sample after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from runtime.func import functional_call
from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads

Params = dict[str, Tensor]


def loss_of(output: Tensor) -> Tensor:
    return (output**3 + output * output).sum()


def sample_loss(module: nn.Module) -> Callable[..., Tensor]:
    """The loss of one sample as a function of parameters."""

    def loss(params: Params, x: Tensor) -> Tensor:
        return loss_of(functional_call(module, params, (x.unsqueeze(0),)))

    return loss


def parameters_of(module: nn.Module) -> Params:
    return {name: p.detach() for name, p in module.named_parameters()}


def by_loop(module: nn.Module, x: Tensor) -> Tensor:
    """The gradients of all parameters in one row for each sample, of shape (B, P)."""
    params = list(module.parameters())
    rows = []
    for i in range(x.shape[0]):
        found = torch.autograd.grad(loss_of(module(x[i : i + 1])), params, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros_like(p).flatten() if g is None else g.flatten()
                    for p, g in zip(params, found, strict=True)
                ]
            )
        )
    return torch.stack(rows)


def in_rows(tree: dict[str, Tensor]) -> Tensor:
    """A tree of tensors of shape (B, *parameter) as a matrix of B rows."""
    return torch.cat([t.flatten(1) for t in tree.values()], 1)


def in_one(tree: dict[str, Any]) -> Tensor:
    """A tree of tensors of the parameters' shapes as a vector."""
    return torch.cat([t.flatten() for t in tree.values()])


def with_gradients(expected: dict[str, Tensor], **options: Any) -> PerSampleGrads:
    """The gradients ``expected`` of shape (B, *parameter), of a loss that has just these."""

    def loss(params: Params, each: Params) -> Tensor:
        products = [(p * each[name].conj()).sum() for name, p in params.items()]
        return torch.stack([p.real if p.is_complex() else p for p in products]).sum()

    return per_sample_grads(loss, **options)(
        {name: torch.zeros_like(g[0]) for name, g in expected.items()}, expected
    )


def compare_projections(
    grads: per_sample, expected: dict[str, Tensor], rtol: float = 1e-8, atol: float = 1e-9
) -> None:
    """The projections are those of the loop's gradients by the same random matrices, and their
    products are near those of the gradients."""
    of_loop = with_gradients(expected)
    for k in (7, (3, 2)):
        torch.testing.assert_close(
            grads.project(k, seed=3), of_loop.project(k, seed=3), rtol=rtol, atol=atol
        )
    wide, dense = grads.project(4096, seed=3), in_rows(expected)
    lengths = dense.norm(dim=1)
    error = (wide @ wide.T - dense @ dense.T).abs() / (lengths[:, None] * lengths[None]).clamp_min(
        1e-12
    )
    assert float(error.max()) < 6 / 4096**0.5  # six standard deviations of such a product
