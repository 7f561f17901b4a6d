"""Run linear layers under :mod:`.sample_level`, each as one node of the tape instead of one for
each part that ATen makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..func.draws import without_draws
from ..rules.ops import DIFFERENTIABLE
from ..rules.samples.factors import Outer, Tensor, of_bias
from ..seam.scope import scope_outside
from ..tape.metas import meta_of
from ..tape.nodes import Edge, Node
from ..torch_private.global_settings import is_autocast_enabled
from .uses import Use, refuse_written, versions

LINEAR = torch.ops.aten.linear.default


def run(level: Any, x: Any, weight: object, bias: object) -> Any:
    """Return ``linear`` of a batch and of parameters that all samples share.

    NotImplemented: ATen decomposes the call, or refuses it. ``level``: a
    :class:`.sample_level.Samples`.
    """
    tape = level.tape
    if not _uses_parameters(level, x, weight, bias):
        return NotImplemented
    if x.dtype not in DIFFERENTIABLE or not fits(x, weight, bias):
        return NotImplemented
    history, *of_parameters = map(level.source, (x._inner, weight, bias))
    # the layer itself runs below both levels, on the whole batch
    with scope_outside(tape), without_draws(level):
        inner = [tape.lowered(level.lowered(tensor)) for tensor in (x, weight, bias)]
        out = torch.nn.functional.linear(*inner)
        # nothing that it computes from has a gradient
        if history is None and all(edge is None for edge in of_parameters):
            return level.wrap(tape.wrap(out))
        node = _Linear(tape, (history,), (meta_of(out, out.dtype),))
        node.operands, node.parameters, node.samples = inner, of_parameters, level
        node.versions = versions(inner[:2])  # the backward pass does not read the bias
        return level.wrap(tape.wrap(out, (node, 0)))


def _uses_parameters(level: Any, value: object, weight: object, bias: object) -> bool:
    """Return whether ``value`` is a batch, and all samples have the same parameters."""
    if is_autocast_enabled() or not torch.is_grad_enabled():
        return False
    return not level.is_shared(value) and level.is_shared(weight) and level.is_shared(bias)


def fits(value: Any, weight: Any, bias: Any) -> bool:
    """Return whether dtypes and shapes are those of a layer. ATen refuses others in its own
    words."""
    if value.dim() == 0 or weight.dim() != 2:
        return False
    if weight.dtype is not value.dtype or weight.shape[1] != value.shape[-1]:
        return False
    return bias is None or (bias.dtype is value.dtype and bias.shape == weight.shape[:1])


class _Linear(Node):
    """The backward pass of a linear layer. It notes the factors of its parameters at the
    level of the samples."""

    unseen = True
    __slots__ = ("operands", "parameters", "samples", "versions")
    operands: list[Any] | None
    parameters: list[Edge | None]
    samples: Any
    versions: list[tuple[Tensor, int]]

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Note the factors of weight and bias, and return the gradient of the input."""
        assert self.operands is not None  # a run has one pass, for all parameters
        refuse_written(self.versions, "an argument of linear")
        x, weight, _ = self.operands
        (g,) = grads
        assert g is not None  # the node has one output
        to_weight, to_bias = self.parameters
        # weight and bias share the cotangent in this shape
        left = in_vectors(g)
        uses: list[Use] = []
        if to_weight is not None:
            right = in_vectors(x)
            if x.is_complex():
                right = right.conj()
            uses.append((to_weight, Outer(left, right)))
        if to_bias is not None:
            uses.append((to_bias, of_bias(left)))
        self.samples.uses.add(uses)
        if self.edges[0] is None:
            return (None,)
        if weight.is_complex():
            weight = weight.conj()
        return (torch.matmul(g, weight),)

    def release(self) -> None:
        """Drop what the backward pass reads."""
        self.operands, self.versions = None, []


def in_vectors(tensor: Tensor) -> Tensor:
    """Return a tensor of shape (B, …, n) as (B, T, n). ``tensor`` itself if it has this shape, so
    that layers on the same tensor share a factor."""
    if tensor.dim() == 3:
        return tensor
    # no size of -1, which is ambiguous for a tensor without elements
    return tensor.reshape(tensor.shape[0], math.prod(tensor.shape[1:-1]), tensor.shape[-1])
