"""What a target gave in a case, in short: by this two runs are compared whose cells all pass.

seen.values(outputs)        # their bits, in a digest
seen.refused(error)         # the class and the stable part of the message
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import torch

from gen.outcomes import stable_part

__all__ = ["Seen"]


class Seen:
    """``digest``: of all values, in their order; empty if there were none. ``refusal``: the first
    error that was given in place of values."""

    def __init__(self) -> None:
        self.refusal = ""
        self._digest = blake2b(digest_size=8)
        self._has_values = False

    @property
    def digest(self) -> str:
        return self._digest.hexdigest() if self._has_values else ""

    def values(self, outputs: Sequence[torch.Tensor]) -> None:
        """Take in tensors of any dtype and device but meta."""
        for x in outputs:
            if x.device.type == "meta":
                continue
            self._has_values = True
            self._digest.update(f"{x.dtype} {tuple(x.shape)}".encode())
            self._digest.update(_bits(x))

    def refused(self, error: Exception) -> None:
        self.refusal = self.refusal or f"{type(error).__name__}: {stable_part(error)}"


def _bits(x: torch.Tensor) -> bytes:
    """The elements of a tensor. All NaNs are one: their signs and payloads are of the kernel."""
    if not x.numel():
        return b""
    x = x.detach().cpu()
    if x.layout is not torch.strided:
        x = x.to_dense()
    x = x.resolve_conj().resolve_neg()
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.is_floating_point():
        x = torch.where(x.isnan(), torch.full((), torch.nan, dtype=x.dtype), x)
    return x.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
