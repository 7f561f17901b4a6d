"""Hold the gradients of a parameter for each sample as factors: the tensors whose product they are.

    Outer(g, x)        # of y = x @ w.t(): the gradient of sample b is g[b].T @ x[b], and is not
                       # computed yet

Most uses need no gradient of a single sample. Their norms, a weighted sum of them and their
products with a vector follow from the factors in less time and memory. A record gives the factors
by ``per_sample``; an op without such a part gets the general form of ``runtime/per_sample``.

Gradients have torch's convention for complex numbers. A product of two is ``Re sum(conj(a) * b)``.

In shapes, B is the number of samples, T that of vectors or times of a sample.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch

from ...huge_pages import LARGE, empty_in_huge_pages
from ...torch_private.functorch_state import is_functorch_wrapped
from ..derive.families import real as real

Tensor = torch.Tensor
Scale = Callable[[Tensor], Tensor]
"""A function that multiplies a tensor (B, …) by a number for each sample."""

_bytes = operator.attrgetter("nbytes")


class Grams:
    """Gram matrices of the vectors of each sample: ``t @ t.mH`` of shape (B, T, T) for ``t`` of
    shape (B, T, n).

    The weights of a recurrent layer share a factor, as those of queries, keys and values do. Its
    matrix is computed once. ``requests``: all factors, each as often as :meth:`of` will be called
    with it, so that a matrix is freed after its last use.
    """

    def __init__(self, requests: Iterable[Tensor]) -> None:
        # how often each matrix will still be asked for, and those that will be asked for again
        self._n_left = collections.Counter(map(_identity, requests))
        self._matrices: dict[Hashable, Tensor] = {}

    def of(self, t: Tensor) -> Tensor:
        """Return the Gram matrices of ``t``, computed now or by an earlier call."""
        key = _identity(t)
        matrix = self._matrices.pop(key, None)
        if matrix is None:
            matrix = wide(t).conj() @ wide(t).mT
        self._n_left[key] -= 1
        if self._n_left[key] > 0:
            self._matrices[key] = matrix
        return matrix


def _identity(t: Tensor) -> Hashable:
    """Return a key that two views of the same elements of memory share while they live."""
    # a lazy conjugate or negation has the memory of other numbers
    if type(t) is not torch.Tensor or t.is_conj() or t.is_neg():
        return id(t)
    return t.data_ptr(), t.shape, t.stride(), t.dtype


class Term:
    """The gradients of one parameter for B samples.

    ``size``: B. ``shape``: of the parameter. ``dtype``: of the gradients.

    A subclass has ``dense``, ``part``, ``scaled`` and ``weighted_sum``. The other methods work on
    the dense gradients, if :meth:`needs_dense` is true. So a caller takes parts of the samples that
    fit into memory.
    """

    size: int
    shape: torch.Size
    dtype: torch.dtype
    way = "direct"
    """How the norms are computed: ``direct`` from dense gradients, ``ghost`` from factors."""

    def dense(self) -> Tensor:
        """Return the gradients, of shape (B, *shape)."""
        raise NotImplementedError

    def write(self, out: Tensor) -> None:
        """Write the gradients into ``out``, of shape (B, *shape)."""
        out.copy_(self.dense())

    def part(self, start: int, stop: int) -> Term:
        """Return the gradients of these samples."""
        raise NotImplementedError

    def scaled(self, scale: Scale) -> Term:
        """Return the gradients times a number for each sample. ``scale``: multiplies a tensor
        (B, …) by these numbers."""
        raise NotImplementedError

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of ``weights[b]`` times gradient ``b``, of the parameter's shape.
        ``weights``: (B,)."""
        raise NotImplementedError

    def squared_norms(self, grams: Grams) -> Tensor:
        """Return the squared 2-norm of each gradient, of shape (B,). ``grams``: what computes
        products of :meth:`vectors`."""
        return _squares(flat(self.dense()))

    def vectors(self) -> Sequence[Tensor]:
        """Return the factors of which :meth:`squared_norms` asks for the Gram matrices."""
        return ()

    def dot(self, v: Tensor) -> Tensor:
        """Return the product of each gradient with ``v``, of the parameter's shape. Shape (B,)."""
        mine = wide(flat(self.dense()))
        return real((mine.conj() * v.reshape(-1)).sum(1))

    def products(self, other: Term) -> Tensor:
        """Return the product of each gradient with that of the same sample in ``other``, of shape
        (B,)."""
        mine, theirs = wide(flat(self.dense())), flat(other.dense())
        return real((mine.conj() * theirs).sum(1))

    def gram(self, other: Term) -> Tensor:
        """Return the product of each gradient with each in ``other``, of shape (B, B of
        ``other``)."""
        mine, theirs = wide(flat(self.dense())), wide(flat(other.dense()))
        return real(mine.conj() @ theirs.mT)

    def gram_by_factors(self, other: Term) -> bool:
        """Return whether :meth:`gram` takes no dense gradients."""
        return False

    def held(self) -> Sequence[Tensor]:
        """Return the tensors that the gradients are computed of. They must stay as they are."""
        raise NotImplementedError

    def needs_dense(self) -> bool:
        """Return whether the norms take the dense gradients."""
        return self.way == "direct"

    def smaller(self) -> Term:
        """Return the dense gradients, if they are needed for the norms and take no more memory than
        what they are computed of. Else this term."""
        if self.needs_dense() and self.dense_bytes <= sum(map(_bytes, self.held())):
            return Dense(self.dense())
        return self

    @property
    def dense_bytes(self) -> int:
        """Return the memory of the dense gradients."""
        return self.size * self.shape.numel() * self.dtype.itemsize

    @property
    def transposed(self) -> Term | None:
        """Return the gradients of the transpose of a matrix. None if the factors do not give
        them."""
        return None


class Outer(Term):
    """Gradient ``b`` is ``left[b].T @ right[b]``: a sum of T outer products, as in a layer on a
    sequence of T vectors.

    ``left``: (B, T, m). ``right``: (B, T, n). The parameter has shape (m, n).
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.size = left.shape[0]
        self.shape = torch.Size((left.shape[2], right.shape[2]))
        self.dtype = torch.promote_types(left.dtype, right.dtype)
        _, n_vectors, m = left.shape
        # of one vector, the norm of the product is the product of two norms
        self.way = "ghost"
        if n_vectors != 1:
            self.way = smaller_way(n_vectors, m, self.shape[1])

    def dense(self) -> Tensor:
        """Return the products. A large result is written to huge pages."""
        if self._can_write_to(self.left) and self.dense_bytes >= LARGE:
            out = empty_in_huge_pages((self.size, *self.shape), self.dtype, self.left.device)
            self._write(out)
            return out
        left, right = self.left.mT, self.right
        if right.shape[1] == 1:  # of one vector: a product writes its result once
            return left * right
        return left @ right

    def write(self, out: Tensor) -> None:
        """Write the products right into ``out``, if a kernel can."""
        if self._can_write_to(out):
            self._write(out)
        else:
            super().write(out)

    def _can_write_to(self, out: Tensor) -> bool:
        """Return whether a kernel may write to a tensor such as ``out``: nothing is recorded, and
        no dtype is converted."""
        # a kernel with `out=` refuses a tensor that requires grad
        for tensor in (out, self.left, self.right):
            if tensor.requires_grad or tensor.dtype is not self.dtype:
                return False
        return are_plain(out, self.left, self.right)

    def _write(self, out: Tensor) -> None:
        """Compute the gradients right into ``out``, (B, m, n)."""
        left, right = self.left.mT, self.right
        if right.shape[1] == 1:
            torch.mul(left, right, out=out)
        else:
            torch.bmm(left, right, out=out)

    def held(self) -> Sequence[Tensor]:
        return self.left, self.right

    def part(self, start: int, stop: int) -> Outer:
        return Outer(self.left[start:stop], self.right[start:stop])

    def scaled(self, scale: Scale) -> Outer:
        return Outer(*with_one_scaled(scale, self.left, self.right))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of all weighted outer products, as one matrix product."""
        left, right = self.left, self.right
        # the narrower factor is scaled, which takes less time
        if self.shape[0] <= self.shape[1]:
            left = scaled_by(weights, left)
        else:
            right = scaled_by(weights, right)
        # the sum over samples and over their vectors is one sum, over B * T of them
        return wide(left).flatten(0, 1).mT @ wide(right).flatten(0, 1)

    def squared_norms(self, grams: Grams) -> Tensor:
        """Return the products of the factors' Gram matrices, summed. Of one vector: those of its
        norms."""
        if self.needs_dense():
            return super().squared_norms(grams)
        if self.left.shape[1] == 1:
            return _squares(self.left.flatten(1)) * _squares(self.right.flatten(1))
        return real((grams.of(self.left) * grams.of(self.right)).sum((1, 2)))

    def vectors(self) -> Sequence[Tensor]:
        """Return both factors, if their Gram matrices are used."""
        if self.needs_dense() or self.left.shape[1] == 1:
            return ()
        return self.left, self.right

    def dot(self, v: Tensor) -> Tensor:
        """Return the products with ``v``, between the factors."""
        # sum of conj(left.T @ right) * v: no gradient is computed
        left_v = wide(self.left).conj() @ wide(v)
        return real((left_v * wide(self.right).conj()).sum((1, 2)))

    def products(self, other: Term) -> Tensor:
        """Return the products, by those of the vectors if neither gradient is computed."""
        if isinstance(other, Outer) and not (self.needs_dense() or other.needs_dense()):
            return self._by_pairs(other)
        return super().products(other)

    def gram_by_factors(self, other: Term) -> bool:
        """Return whether both are single outer products."""
        return isinstance(other, Outer) and self.left.shape[1] == other.left.shape[1] == 1

    def gram(self, other: Term) -> Tensor:
        """Return the products of the Gram matrices of both factors, for single outer products."""
        if isinstance(other, Outer) and self.gram_by_factors(other):
            left = wide(self.left[:, 0]).conj() @ wide(other.left[:, 0]).mT
            right = wide(self.right[:, 0]).conj() @ wide(other.right[:, 0]).mT
            return real(left * right)
        return super().gram(other)

    def _by_pairs(self, other: Outer) -> Tensor:
        """Return the products from those of the vectors, T × T of them for each sample."""
        # ⟨Σ l_i r_iᵀ, Σ l'_j r'_jᵀ⟩ = Σ ⟨l_i, l'_j⟩·⟨r_i, r'_j⟩
        left = wide(self.left).conj() @ wide(other.left).mT
        right = wide(self.right).conj() @ wide(other.right).mT
        return real((left * right).sum((1, 2)))

    @property
    def transposed(self) -> Outer:
        """Return the same products with the factors exchanged."""
        return Outer(self.right, self.left)


class Dense(Term):
    """Gradients that are computed already, of shape (B, *shape).

    It is for parameters that are added or multiplied element by element. Their gradients have at
    most as many elements as the cotangent.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.size, self.shape, self.dtype = values.shape[0], values.shape[1:], values.dtype

    def dense(self) -> Tensor:
        return self.values

    def held(self) -> Sequence[Tensor]:
        return (self.values,)

    def part(self, start: int, stop: int) -> Dense:
        return Dense(self.values[start:stop])

    def scaled(self, scale: Scale) -> Dense:
        return Dense(scale(self.values))

    @property
    def transposed(self) -> Dense:
        return Dense(self.values.mT)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, as one product of a vector and a matrix."""
        values = wide(flat(self.values))
        return (weights.to(values.dtype) @ values).reshape(self.shape)


class Rows(Term):
    """The gradients of a table of which the samples look up rows.

    Gradient ``b`` has ``g[b, i]`` in row ``indices[b, i]``, added up where rows repeat.

    ``indices``: (B, T). ``g``: (B, T, n). The parameter has shape (rows, n). ``padding``: the row
    that has no gradient, or -1.
    """

    way = "ghost"

    def __init__(self, indices: Tensor, g: Tensor, rows: int, padding: int = -1) -> None:
        self.indices = indices.flatten(1)
        self.g = g.reshape(*self.indices.shape, g.shape[-1])
        if padding >= 0:
            self.g = self.g.masked_fill((self.indices == padding).unsqueeze(-1), 0)
        self.size, self.shape, self.dtype = g.shape[0], torch.Size((rows, g.shape[-1])), g.dtype

    def dense(self) -> Tensor:
        """Return the tables, filled by one addition for all samples."""
        rows, n = self.shape
        # one table with the rows of all samples, those of sample b from b * rows
        offsets = torch.arange(self.size, device=self.indices.device).unsqueeze(1) * rows
        table = self.g.new_zeros(self.size * rows, n)
        table = table.index_add(0, (self.indices + offsets).flatten(), self.g.flatten(0, 1))
        return table.reshape(self.size, rows, n)

    def held(self) -> Sequence[Tensor]:
        return self.indices, self.g

    # without `padding`: the rows that have no gradient are zeros in `g` by now
    def part(self, start: int, stop: int) -> Rows:
        return Rows(self.indices[start:stop], self.g[start:stop], self.shape[0])

    def scaled(self, scale: Scale) -> Rows:
        return Rows(self.indices, scale(self.g), self.shape[0])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return one table, to which the weighted rows of all samples are added."""
        scaled = scaled_by(weights, self.g)
        return scaled.new_zeros(self.shape).index_add(
            0, self.indices.flatten(), scaled.flatten(0, 1)
        )

    def squared_norms(self, grams: Grams) -> Tensor:
        """Return the norms by the products of the rows that repeat."""
        return self._by_pairs(self)

    def dot(self, v: Tensor) -> Tensor:
        """Return the products with the rows of ``v`` that are looked up."""
        return real((wide(self.g).conj() * v[self.indices]).sum((1, 2)))

    def products(self, other: Term) -> Tensor:
        """Return the products, by pairs of equal rows."""
        if isinstance(other, Rows):
            return self._by_pairs(other)
        return super().products(other)

    def _by_pairs(self, other: Rows) -> Tensor:
        """Return the products from those of the cotangents, of which only pairs of one row
        count."""
        # (B, T, T): whether vectors i and j of a sample are in one row
        same = self.indices.unsqueeze(2) == other.indices.unsqueeze(1)
        return real(((wide(self.g).conj() @ wide(other.g).mT) * same).sum((1, 2)))


def smaller_way(places: int, rows: int, columns: int) -> str:
    """Return the way to norms that needs fewer numbers: ``ghost`` with the products of all pairs of
    places, or ``direct`` with the gradient itself. See :attr:`Term.way`."""
    # Two Gram matrices take places²·(rows + columns) products, the gradient places·rows·columns.
    if places * (rows + columns) <= rows * columns:
        return "ghost"
    return "direct"


def joined(terms: Sequence[Term]) -> list[Term]:
    """Return fewer terms of the same sum. Those of one form become one, as the steps of a recurrent
    layer do."""
    # only terms of one form can be joined
    outers: list[Outer] = []
    tables: list[Rows] = []
    dense: list[Dense] = []
    others: list[Term] = []
    for term in terms:
        if isinstance(term, Outer):
            outers.append(term)
        elif isinstance(term, Rows):
            tables.append(term)
        elif isinstance(term, Dense):
            dense.append(term)
        else:
            others.append(term)
    # one term takes one kernel for its norms, where several take one for each pair
    if len(outers) > 1:
        outers = [_join_outers(outers)]
    if len(tables) > 1:
        tables = [_join_tables(tables)]
    if len(dense) > 1:
        dense = [Dense(functools.reduce(torch.add, [term.values for term in dense]))]
    return [*others, *outers, *tables, *dense]


def _join_outers(terms: Sequence[Outer]) -> Outer:
    """Return the sum of the terms as one, whose vectors are those of all."""
    left = torch.cat([term.left for term in terms], 1)
    return Outer(left, torch.cat([term.right for term in terms], 1))


def _join_tables(terms: Sequence[Rows]) -> Rows:
    """Return the sum of the terms as one, which looks up the rows of all."""
    indices = torch.cat([term.indices for term in terms], 1)
    return Rows(indices, torch.cat([term.g for term in terms], 1), terms[0].shape[0])


def are_plain(*tensors: Tensor) -> bool:
    """Return whether what is computed of ``tensors`` may be written to plain memory: none is a
    value, or wrapped by a transform of torch's own."""
    return set(map(type, tensors)) == {Tensor} and not any(map(is_functorch_wrapped, tensors))


def flat(t: Tensor) -> Tensor:
    """Return ``t`` of shape (B, …) as a matrix of B rows."""
    return t.reshape(t.shape[0], -1)


def wide(t: Tensor) -> Tensor:
    """Return ``t`` in float32 if its dtype is narrower, for sums and products of many numbers."""
    if t.dtype in (torch.float16, torch.bfloat16):
        return t.float()
    return t


def scaled_by(weights: Tensor, t: Tensor) -> Tensor:
    """Return ``t``, (B, …), with row b times ``weights[b]``. In float32 if ``t`` is narrower."""
    t = wide(t)
    return t * weights.to(t.dtype).reshape(-1, *[1] * (t.dim() - 1))


def with_one_scaled(scale: Scale, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two factors of a product, the smaller one scaled, which takes less time."""
    if left.numel() <= right.numel():
        return scale(left), right
    return left, scale(right)


def _squares(t: Tensor) -> Tensor:
    """Return the sum of the squares of each row."""
    t = wide(t)
    return real((t.conj() * t).sum(1))


def by_left(g: Tensor, right: Tensor, alpha: object = 1) -> Outer:
    """Return the gradients of ``left`` in ``alpha * left @ right``, all with the batch in front."""
    # the gradient is g @ right.mH, and `Outer` transposes its left factor
    return Outer(_scale_gradient(g, alpha).mT, right.mH)


def by_right(g: Tensor, left: Tensor, alpha: object = 1) -> Outer:
    """Return the gradients of ``right`` in ``alpha * left @ right``, all with the batch in
    front."""
    # the gradient is left.mH @ g, and `Outer` transposes its left factor
    return Outer(left.conj(), _scale_gradient(g, alpha))


def of_bias(g: Tensor) -> Dense:
    """Return the gradients of a bias by the cotangent (B, T, m) of a layer. Those of one vector for
    each sample are the cotangent itself."""
    if g.shape[1] == 1:  # a view, where a sum would copy
        return Dense(g[:, 0])
    return Dense(g.sum(1))


def reduced(g: Tensor, shape: Sequence[int]) -> Dense:
    """Return the gradients of a tensor of ``shape`` that was broadcast to the shape of ``g``
    without its batch."""
    # dimension 0 of `g` is the batch, which stays; dimensions line up from the right
    extra = g.dim() - 1 - len(shape)
    if extra:
        g = g.sum(list(range(1, 1 + extra)))
    expanded = [dim for dim, size in enumerate(shape, 1) if size == 1 and g.shape[dim] != 1]
    if expanded:  # to ATen, no dimension means all
        g = g.sum(expanded, keepdim=True)
    return Dense(g)


def _scale_gradient(g: Tensor, alpha: Any) -> Tensor:
    """Return ``g`` times the conjugate of ``alpha``: the gradient of ``y`` in ``alpha * y``."""
    if alpha == 1:
        return g
    if isinstance(alpha, complex):
        alpha = alpha.conjugate()
    scaled: Tensor = g * alpha
    return scaled
