"""Where the samples lie in a view of a tensor to which samples were written, and in the base of a
view that got them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..rules.samples.places import Place, Tensor, place_of


def owners(place: Place, shape: Sequence[int], size: int, device: Any) -> Tensor:
    """For each element of a tensor the number of its sample, in memory without gaps: a view may be
    described by strides."""
    return place.owners_in(shape, size, device).contiguous()


def _candidates(shape: Sequence[int], size: int) -> list[Place]:
    """All places in a tensor of this shape."""
    each = [(dim, n // size) for dim, n in enumerate(shape) if n and n % size == 0]
    return [
        Place(dim, k // inner, inner)
        for dim, k in each
        for inner in range(1, k + 1)
        if k % inner == 0
    ]


def place_in_view(v: Any, of_base: Place, size: int) -> Place | None:
    """The place in the view ``v`` of a tensor. None if it shows elements of several
    samples in no order."""
    return place_of(v._view.replay(owners(of_base, v._view.base.shape, size, v.device)), size)


def fits(v: Any, place: Place, of_base: Place, size: int) -> bool:
    """Whether the view ``v`` with samples in ``place`` is a part of a base with
    samples in ``of_base``."""
    return torch.equal(
        v._view.replay(owners(of_base, v._view.base.shape, size, v.device)),
        owners(place, v.shape, size, v.device),
    )


def place_in_base(v: Any, place: Place, size: int) -> Place | None:
    """The place in the base of the view ``v`` that fits that in ``v``. None if there is none."""
    mine = owners(place, v.shape, size, v.device)
    for candidate in _candidates(v._view.base.shape, size):
        if torch.equal(v._view.replay(owners(candidate, v._view.base.shape, size, v.device)), mine):
            return candidate
    return None
