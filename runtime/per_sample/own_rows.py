"""Gradients of a tensor of parameters of which each sample uses a part of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..rules.samples.factors import Scale, Tensor, Term
from ..rules.samples.places import Place


class OwnRows(Term):
    """Sample b uses its own part of a tensor, as of a class token that is expanded to the
    batch. ``term``: the gradients of the parts. ``place``: where they lie in the tensor, of
    shape ``shape``."""

    def __init__(self, term: Term, place: Place, shape: Sequence[int]) -> None:
        self.term, self.place = term, place
        self.size, self.shape, self.dtype = term.size, torch.Size(shape), term.dtype
        self.first = 0  # the number of the first sample
        self.whole = term.size

    def dense(self) -> Tensor:
        parts = self.term.dense()
        spread = parts.new_zeros(self.size, self.whole, *parts.shape[1:])
        each = torch.arange(self.size, device=parts.device)
        spread[each, each + self.first] = parts
        merged: Tensor = (
            torch.stack([self.place.merged(s) for s in spread])
            if self.size
            else parts.new_zeros(0, *self.shape)
        )
        return merged

    def held(self) -> Sequence[Tensor]:
        return self.term.held()

    def part(self, start: int, stop: int) -> OwnRows:
        return self._of(self.term.part(start, stop), self.first + start)

    def scaled(self, scale: Scale) -> OwnRows:
        return self._of(self.term.scaled(scale), self.first)

    def _of(self, term: Term, first: int) -> OwnRows:
        found = OwnRows(term, self.place, self.shape)
        found.first, found.whole = first, self.whole
        return found

    def weighted_sum(self, weights: Tensor) -> Tensor:
        parts = self.term.dense()
        scaled = parts.new_zeros(self.whole, *parts.shape[1:])
        scaled[self.first : self.first + self.size] = parts * weights.to(parts.dtype).reshape(
            -1, *[1] * (parts.dim() - 1)
        )
        return self.place.merged(scaled)
