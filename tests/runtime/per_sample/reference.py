"""Gradients of each sample by torch's own autograd, one sample after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from runtime.func import functional_call

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
        rows.append(torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(params, found, strict=True)]))
    return torch.stack(rows)


def in_rows(tree: dict[str, Tensor]) -> Tensor:
    """A tree of tensors of shape (B, *parameter) as a matrix of B rows."""
    return torch.cat([t.flatten(1) for t in tree.values()], 1)


def in_one(tree: dict[str, Any]) -> Tensor:
    """A tree of tensors of the parameters' shapes as a vector."""
    return torch.cat([t.flatten() for t in tree.values()])
