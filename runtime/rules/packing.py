"""Packing of padded sequences: the steps that exist, as rows of one tensor."""

from __future__ import annotations

from typing import Any

import torch

from .record import register

_pack = torch.ops.aten._pack_padded_sequence.default


def _unpack(g: torch.Tensor, input_shape: Any, lengths: torch.Tensor, batch_first: bool) -> torch.Tensor:
    """The gradient of the padded input. Each packed row goes back to its step and sequence, which are found by packing the step numbers."""
    steps = torch.arange(input_shape[0] * input_shape[1]).view(*input_shape[:2], 1)
    rows, _ = _pack(steps, lengths, batch_first)
    padded = g.new_zeros(input_shape).flatten(0, 1)
    return padded.index_add(0, rows.view(-1).to(g.device), g).view(input_shape)


register("_pack_padded_sequence", vjp={"input": _unpack}, nondiff=(1,), family="packing")
