"""Project the gradients of each sample with random matrices, from factors: a block of columns at a
time, or from both sides.

The entries are ``±1`` and follow from the seed, the number of the parameter and the place in it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import torch

from ..rules.samples.factors import Dense, Outer, Rows, Tensor, Term, flat
from ..trace.random_states import own_generator

_ENTRIES = 1 << 21  # entries of one sample's gradient that are projected at a time
_COPIES = 4  # copies of them in memory at once: as they are, with signs, padded, transformed
# forms that give some rows of their gradients without the others
_ROWS_KNOWN = (Outer, Rows, Dense)


class Projection:
    """Projects the gradients of ``size`` samples to ``k`` numbers. ``limit``: how many bytes of
    gradients are computed at a time.

    The matrix of a block of columns is ``diag(s) @ H @ diag(t)``, of which ``k`` random columns
    are taken: ``H`` is the Hadamard matrix with at least ``k`` rows, ``s`` and ``t`` are random
    signs of the block. Its entries are signs, and those of two rows are uncorrelated, so
    products are right on average as with independent signs (Ailon and Chazelle 2006). It takes 2
    random numbers a column instead of ``k``, and a transform of each block instead of a product
    with ``k`` columns.
    """

    def __init__(self, size: int, k: int, seed: int, limit: int, like: Tensor) -> None:
        self.size, self.k, self.seed, self.limit, self.like = size, k, seed, limit, like
        bits = max(1, math.ceil(math.log2(k)))
        self.outer = _hadamard(bits // 2).to(like)
        self.inner = _hadamard(bits - bits // 2).to(like)
        self.rows = 1 << bits  # of the Hadamard matrix, which is the Kronecker product of two
        # random ones, since in the first ``k`` columns many rows are dependent
        self.taken = torch.randperm(self.rows, generator=_generator((seed, k)))[:k]

    def of(self, number: int, shape: torch.Size, terms: Sequence[Term]) -> Tensor:
        """Return the projection of one parameter, of shape (B, k). ``number``: its place among the
        parameters."""
        if not terms or not shape.numel():
            return self.like.new_zeros(self.size, self.k)
        rows = all_rows = _rows(shape)
        # some rows of a large matrix at a time, if the terms can compute them alone
        by_rows = len(shape) <= 2 and all(isinstance(term, _ROWS_KNOWN) for term in terms)
        if by_rows:
            rows = min(all_rows, max(1, _ENTRIES * all_rows // shape.numel()))
        # as many samples at a time as the limit allows
        columns_of_row = shape.numel() // all_rows
        bytes_of_sample = _COPIES * rows * columns_of_row * terms[0].dtype.itemsize
        step = max(1, self.limit // bytes_of_sample)
        projections = []
        for start in range(0, self.size, step):
            parts = [term.part(start, min(start + step, self.size)) for term in terms]
            # pieces of a projection add up, since it is linear in the columns
            pieces = self._pieces(parts, all_rows, rows, by_rows)
            each = (self._project(number, index, columns) for index, columns in enumerate(pieces))
            projections.append(functools.reduce(torch.add, each))
        whole: Tensor = torch.cat(projections) / self.k**0.5
        return whole

    def _pieces(
        self, terms: Sequence[Term], all_rows: int, rows: int, by_rows: bool
    ) -> Iterator[Tensor]:
        """Iterate over columns of the dense gradients, as matrices of B rows.

        ``all_rows``: how many rows the parameter has. ``rows``: how many are computed at a time.
        ``by_rows``: whether the terms give some rows without the others.
        """
        for first in range(0, all_rows, rows):
            if by_rows:
                last = min(first + rows, all_rows)
                each = (_rows_of(term, first, last) for term in terms)
            else:
                each = (flat(term.dense()) for term in terms)
            yield from functools.reduce(torch.add, each).split(_ENTRIES, 1)

    def _project(self, number: int, piece: int, columns: Tensor) -> Tensor:
        """Return the projection of one piece, (B, k).

        ``number``, ``piece``: the numbers of the parameter and of the piece in it, which the random
        signs follow from.
        """
        count = columns.shape[1]
        # the columns in blocks of the Hadamard matrix, the last one with zeros
        blocks = -(-count // self.rows)
        signed = columns * _signs((self.seed, number, piece, 0), (count,)).to(columns)
        if blocks > 1:
            padded = torch.nn.functional.pad(signed, (0, blocks * self.rows - count))
        else:
            # the first rows of the matrix repeat, so those of two small parameters would often
            # depend on each other
            order = torch.randperm(self.rows, generator=_generator((self.seed, number, piece, 2)))
            rows = order[:count].to(columns.device)
            padded = signed.new_zeros(len(signed), self.rows).index_copy(1, rows, signed)
        # the matrix is the Kronecker product of two small ones, so two products apply it
        outer, inner = self.outer.to(columns), self.inner.to(columns)
        turned = outer @ padded.reshape(-1, outer.shape[0], inner.shape[0]) @ inner
        signs = _signs((self.seed, number, piece, 1), (blocks, self.k)).to(columns)
        # the chosen columns of all blocks, with the signs of each, are added up
        taken = turned.reshape(-1, blocks, self.rows)
        if self.k != self.rows:
            taken = taken[..., self.taken.to(taken.device)]
        projected: Tensor = (taken * signs).sum(1)
        return projected


def _hadamard(bits: int) -> Tensor:
    """Return the Hadamard matrix of ``2 ** bits`` rows (Sylvester 1867)."""
    matrix = torch.ones(1, 1)
    for _ in range(bits):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


class TwoSided:
    """Projects the gradients of ``size`` samples from both sides: ``left.mT @ gradient @ right``,
    with random matrices of ``k`` columns.

    A parameter is a matrix of ``shape[0]`` rows. An outer product is projected by its factors.
    (LoGra: Choe et al. 2024, «What is your data worth to GPT?».)"""

    def __init__(self, size: int, k: tuple[int, int], seed: int, limit: int, like: Tensor) -> None:
        self.size, self.k, self.seed, self.limit, self.like = size, k, seed, limit, like

    def of(self, number: int, shape: torch.Size, terms: Sequence[Term]) -> Tensor:
        """Return the projection of one parameter, of shape (B, *k). ``number``: its place among the
        parameters."""
        if not terms or not shape.numel():
            return self.like.new_zeros(self.size, *self.k)
        all_rows = _rows(shape)
        device, dtype = terms[0].held()[-1].device, terms[0].dtype

        def matrix(side: int, rows: int) -> Tensor:
            """Return the random signs of one side, divided so that lengths stay the same on
            average."""
            k = self.k[side]
            signs = _signs((self.seed, number, side), (rows, k)).to(device, dtype)
            scaled: Tensor = signs / k**0.5
            return scaled

        left, right = matrix(0, all_rows), matrix(1, shape.numel() // all_rows)
        return functools.reduce(torch.add, [self._project(term, left, right) for term in terms])

    def _project(self, term: Term, left: Tensor, right: Tensor) -> Tensor:
        """Return the projection of one term, (B, a, b), from factors if it has any."""
        if isinstance(term, Outer):
            return (term.left @ left).mT @ (term.right @ right)
        if isinstance(term, Rows):
            return left[term.indices].mT @ (term.g @ right)
        # no factors: dense gradients of some samples at a time
        step = max(1, self.limit // (term.shape.numel() * term.dtype.itemsize))
        projections = []
        for start in range(0, term.size, step):
            dense = term.part(start, min(start + step, term.size)).dense()
            matrices = dense.reshape(dense.shape[0], left.shape[0], right.shape[0])
            projections.append(left.mT @ matrices @ right)
        return torch.cat(projections)


def _rows(shape: torch.Size) -> int:
    """Return the number of rows of a parameter of this shape, as a matrix."""
    if not shape:
        return 1
    return shape[0]


def _rows_of(term: Term, first: int, last: int) -> Tensor:
    """Return the gradients of these rows of the parameter, as a matrix of B rows."""
    if isinstance(term, Outer):
        return flat(Outer(term.left[:, :, first:last], term.right).dense())
    # rows of other indices count zero, and their indices only have to be valid
    if isinstance(term, Rows):
        own = (term.indices >= first) & (term.indices < last)
        cotangents = term.g.masked_fill(~own.unsqueeze(-1), 0)
        indices = (term.indices - first).clamp(0, last - first - 1)
        return flat(Rows(indices, cotangents, last - first).dense())
    dense = term.dense()
    if term.shape:
        dense = dense[:, first:last]
    return flat(dense)


def _signs(place: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Return random ``±1``. ``place``: the numbers that they follow from."""
    bits = torch.randint(0, 2, tuple(shape), generator=_generator(place), dtype=torch.int8)
    return bits.mul_(2).sub_(1)


def _generator(place: Sequence[int]) -> torch.Generator:
    """Return a source of random numbers that follow from ``place``."""
    # as splitmix64: a multiplication by the golden ratio, and a shift, for each number
    mixed = 0
    for number in place:
        mixed = (mixed ^ (number + 1)) * 0x9E37_79B9_7F4A_7C15 & 0xFFFF_FFFF_FFFF_FFFF
        mixed ^= mixed >> 29
    # 40 bits: the seeds that a compiled program can set
    return own_generator(mixed >> 24)


def checked(k: int | tuple[int, int]) -> None:
    """Raise unless ``k`` is positive."""
    sides = k if isinstance(k, tuple) else (k,)
    if min(sides) < 1:
        raise ValueError(f"project: k must be positive, got {k}")
