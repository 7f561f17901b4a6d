"""Replaces padded rows in the result of ``nn.TransformerEncoder``, in a program that is captured.

    encoder.eval()
    with torch.no_grad():
        encoder(x, src_key_padding_mask=mask)  # zeros where the mask is true

In eval mode without gradients the encoder leaves padded rows out: its layers compute with nested
tensors, and what is padded is zero at the end. Torch does so if no mode of functions is on. The
gate to memory is such a mode, and a graph takes no nested tensors. So the rows are computed in a
capture, and replaced here. Whether the mask ends each row, which torch asks first, is a condition
in the graph.
"""

from __future__ import annotations

import torch

from ..torch_private.global_settings import name_of_private_device
from .exchanged_methods import Captures, Method

_DEVICES = ("cpu", "cuda", "xpu", name_of_private_device())


def make_forward(torchs: Method, captures: Captures) -> Method:
    """Return the method that stands in for ``torchs``, the ``forward`` of an encoder."""

    def forward(
        encoder: torch.nn.TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> object:
        padding = src_key_padding_mask
        if padding is None or mask is not None:
            return torchs(encoder, src, mask, padding, is_causal)
        if not captures() or not _leaves_out(encoder, src):
            return torchs(encoder, src, mask, padding, is_causal)
        applies = _ends_rows(encoder, padding)
        if padding.is_floating_point():  # a row that is left out has no weight at all
            dropped = padding.masked_fill(padding != 0, -torch.inf)
            padding = torch.where(applies, dropped, padding)
        output = torchs(_WithoutNorm(encoder), src, None, padding, is_causal)
        left_out = padding.bool() & applies
        output = torch.where(left_out.unsqueeze(-1), torch.zeros_like(output), output)
        if encoder.norm is None:
            return output
        return encoder.norm(output)

    return forward


def _leaves_out(encoder: torch.nn.TransformerEncoder, src: torch.Tensor) -> bool:
    """Return whether the encoder leaves padded rows out in eager mode, if they are the last
    ones."""
    first = encoder.layers[0]
    if not torch.backends.mha.get_fastpath_enabled() or first.training:
        return False
    if not getattr(encoder, "use_nested_tensor", False) or torch.is_autocast_enabled():
        return False
    if src.dim() != 3 or src.device.type not in _DEVICES:
        return False
    weights = (first.self_attn, first.norm1, first.norm2, first.linear1, first.linear2)
    leaves = [src]
    for part in weights:
        leaves += part.parameters()
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in leaves))


class _WithoutNorm:
    """An encoder without its norm, which comes after the rows are left out."""

    norm = None

    def __init__(self, encoder: object) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)


def _ends_rows(encoder: object, padding: torch.Tensor) -> torch.Tensor:
    """Return whether the mask is true only in the last columns of each row, a Boolean tensor. Torch
    asks this unless ``mask_check=False``. Example: False, False, True, True."""
    present = padding.logical_not()
    if not getattr(encoder, "mask_check", True):
        return present.new_ones(())
    return (present[:, 1:] <= present[:, :-1]).all()
