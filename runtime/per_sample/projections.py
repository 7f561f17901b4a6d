"""Gradients of each sample times random matrices, from factors: a block of columns at a time, or from both sides.

The entries are ``±1`` and follow from the seed, the number of the parameter and the place in it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from ..rules.per_sample import Dense, Outer, Rows, Tensor, Term, flat

_ENTRIES = 1 << 24  # of a random matrix
_ROWS_KNOWN = (Outer, Rows, Dense)  # forms that give some rows of their gradients without the others


class Projection:
    """Projects the gradients of ``size`` samples to ``k`` numbers. ``limit``: how many bytes of gradients are computed at a time.

    The matrix of n columns is ``diag(s) @ base @ diag(t)`` for each block of them: ``base`` is one random matrix for all blocks and
    parameters, and ``s`` and ``t`` are random signs of the block. Signs of two rows are independent with this as with a matrix of
    independent signs, so products have the same mean and variance. But the random numbers are as many as the columns, not k times as many.
    """

    def __init__(self, size: int, k: int, seed: int, limit: int, like: Tensor) -> None:
        self.size, self.k, self.seed, self.limit = size, k, seed, limit
        self.width = max(1, _ENTRIES // k)
        self.base = _signs((seed,), (self.width, k)).to(like)

    def of(self, number: int, shape: torch.Size, terms: Sequence[Term]) -> Tensor:
        """The projection of one parameter, of shape (B, k). ``number``: its place among the parameters."""
        if not terms or not shape.numel():
            return self.base.new_zeros(self.size, self.k)
        n = shape[0] if shape else 1
        known = len(shape) <= 2 and all(isinstance(t, _ROWS_KNOWN) for t in terms)
        rows = max(1, self.width * n // shape.numel()) if known else n
        step = max(1, self.limit // (min(rows, n) * (shape.numel() // n) * terms[0].dtype.itemsize))
        found = []
        for start in range(0, self.size, step):
            parts = [t.part(start, min(start + step, self.size)) for t in terms]
            blocks = self._blocks(parts, n, min(rows, n), known)
            found.append(functools.reduce(torch.add, (self._projected(number, i, columns) for i, columns in enumerate(blocks))))
        whole: Tensor = torch.cat(found) / self.k**0.5
        return whole

    def _blocks(self, terms: Sequence[Term], n: int, rows: int, known: bool) -> Iterator[Tensor]:
        """Some columns of the dense gradients, as matrices of B rows.

        ``n``: how many rows the parameter has. ``rows``: how many are computed at a time. ``known``: whether that is possible without the
        others.
        """
        for first in range(0, n, rows):
            each = (_rows_of(t, first, min(first + rows, n)) if known else flat(t.dense()) for t in terms)
            yield from functools.reduce(torch.add, each).split(self.width, 1)

    def _projected(self, number: int, block: int, columns: Tensor) -> Tensor:
        n = columns.shape[1]
        s = _signs((self.seed, number, block, 0), (n,)).to(columns)
        t = _signs((self.seed, number, block, 1), (self.k,)).to(columns)
        projected: Tensor = (columns * s) @ self.base[:n].to(columns) * t
        return projected


class TwoSided:
    """Projects the gradients of ``size`` samples from both sides: ``left.mT @ gradient @ right``, with random matrices of ``k`` columns.

    A parameter is a matrix of ``shape[0]`` rows. An outer product is projected by its factors. (LoGra: Choe et al. 2024, «What is your data
    worth to GPT?».)
    """

    def __init__(self, size: int, k: tuple[int, int], seed: int, limit: int, like: Tensor) -> None:
        self.size, self.k, self.seed, self.limit, self.like = size, k, seed, limit, like

    def of(self, number: int, shape: torch.Size, terms: Sequence[Term]) -> Tensor:
        """The projection of one parameter, of shape (B, *k). ``number``: its place among the parameters."""
        if not terms or not shape.numel():
            return self.like.new_zeros(self.size, *self.k)
        n = shape[0] if shape else 1
        left, right = (
            _signs((self.seed, number, side), (rows, k)).to(terms[0].held()[-1].device, terms[0].dtype) / k**0.5
            for side, (rows, k) in enumerate(zip((n, shape.numel() // n), self.k, strict=True))
        )
        return functools.reduce(torch.add, [self._projected(t, left, right) for t in terms])

    def _projected(self, term: Term, left: Tensor, right: Tensor) -> Tensor:
        if isinstance(term, Outer):
            return (term.left @ left).mT @ (term.right @ right)
        if isinstance(term, Rows):
            return left[term.indices].mT @ (term.g @ right)
        step = max(1, self.limit // (term.shape.numel() * term.dtype.itemsize))
        parts = (term.part(start, min(start + step, term.size)).dense() for start in range(0, term.size, step))
        return torch.cat([left.mT @ d.reshape(d.shape[0], left.shape[0], right.shape[0]) @ right for d in parts])


def _rows_of(term: Term, first: int, last: int) -> Tensor:
    """The gradients of these rows of the parameter, as a matrix of B rows."""
    if isinstance(term, Outer):
        return flat(Outer(term.left[:, :, first:last], term.right).dense())
    if isinstance(term, Rows):
        own = (term.indices >= first) & (term.indices < last)
        g = term.g.masked_fill(~own.unsqueeze(-1), 0)
        return flat(Rows((term.indices - first).clamp(0, last - first - 1), g, last - first).dense())
    return flat(term.dense()[:, first:last]) if term.shape else flat(term.dense())


def _signs(place: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Random ``±1``. ``place``: what they follow from."""
    mixed = 0
    for number in place:
        mixed = (mixed ^ (number + 1)) * 0x9E37_79B9_7F4A_7C15 & 0xFFFF_FFFF_FFFF_FFFF
        mixed ^= mixed >> 29
    generator = torch.Generator().manual_seed(mixed & 0x7FFF_FFFF_FFFF_FFFF)
    return torch.randint(0, 2, tuple(shape), generator=generator, dtype=torch.int8).mul_(2).sub_(1)


def checked(k: int | tuple[int, int]) -> None:
    """Raise unless ``k`` is positive."""
    if min(k if isinstance(k, tuple) else (k,)) < 1:
        raise ValueError(f"project: k must be positive, got {k}")
