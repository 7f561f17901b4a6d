"""Define reductions, scans, norms and distances on arrays in arbitrary precision.

``softmax(x, 0)`` takes a NumPy array of mpmath's numbers and gives another one. The functions take
the arguments of torch's ops in torch's order. `definitions` has the table of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpmath import mp, mpf

from gen.reference.arrays import Array
from gen.reference.scalars import Undefined

Dim = int | Sequence[int] | None


def log_or_infinity(x: object) -> Any:
    """Return the logarithm of a number, which is -∞ at 0. mpmath raises there."""
    if x == 0:
        return mp.ninf
    return mp.log(x)


def _real_sqrt(x: Any) -> object:
    # mpmath goes on with complex numbers, where torch gives NaN.
    if x < 0:
        raise Undefined("a root of a negative number")
    return mp.sqrt(x)


exp = numpy.frompyfunc(mp.exp, 1, 1)
log = numpy.frompyfunc(log_or_infinity, 1, 1)
sqrt = numpy.frompyfunc(_real_sqrt, 1, 1)


def axes_of(dim: Dim, x: Array) -> tuple[int, ...]:
    """Return the axes of NumPy for a `dim` of torch: ``-1``, ``(0, 1)`` or None."""
    if isinstance(dim, int):
        return (dim % x.ndim,)
    # no dimensions are all of them
    return tuple(d % x.ndim for d in dim or range(x.ndim))


def row(x: Array) -> Array:
    """Return `x` with at least one dimension."""
    if x.ndim == 0:
        return x.reshape(1)
    return x


def refuse(**others: Any) -> None:
    """Raise Undefined for arguments that change a definition, if they are not None or False."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise Undefined(f"no definition with {name}={value}")


def along_rows(f: Callable[[Array, int], Array]) -> Callable[..., Array]:
    """Return a definition of ``op(x, dim, dtype=None)`` from one for arrays with dimensions.

    `_stacklevel` is a parameter of ``torch.nn.functional.softmax``.
    """

    def g(
        x: Array,
        dim: int | None = None,
        dtype: object = None,
        _stacklevel: int = 0,
        **others: object,
    ) -> Array:
        refuse(dtype=dtype, **others)
        if dim is None:
            raise Undefined("no dimension")
        return f(row(x), dim).reshape(x.shape)

    return g


def softmax(x: Array, dim: int) -> Array:
    # The greatest number is subtracted first: numbers that stand for infinity have no exponential.
    e = exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True)


def log_softmax(x: Array, dim: int) -> Array:
    """Return ``x - log Σ exp x`` along `dim`."""
    top = x.max(axis=dim, keepdims=True)
    return x - top - log(exp(x - top).sum(axis=dim, keepdims=True))


def logcumsumexp(x: Array, dim: int) -> Array:
    top = x.max(axis=dim, keepdims=True)
    # One top for the whole row: the exponents of mpmath have no bound, so nothing underflows.
    return log(numpy.cumsum(exp(x - top), axis=dim)) + top


def logsumexp(x: Array, dim: Dim, keepdim: bool = False) -> Array:
    """Return ``log Σ exp x`` along `dim`."""
    rows = row(x)
    # a number has no dimension that a result could keep
    keeps = keepdim and x.ndim > 0
    return log(exp(rows).sum(axis=axes_of(dim, rows), keepdims=keeps))


def reduction(f: Callable[..., Array]) -> Callable[..., Array]:
    """Return a definition of ``op(x, dim=None, keepdim=False, dtype=None)`` from a function of
    NumPy, with `axis` and `keepdims`.
    """

    def g(x: Array, dim: Dim = None, keepdim: bool = False, dtype: object = None) -> Array:
        refuse(dtype=dtype)
        # torch takes dim=0 and dim=-1 of a number, and NumPy takes none
        axis = None
        if x.ndim:
            axis = axes_of(dim, x)
        return f(x, axis=axis, keepdims=keepdim)

    return g


def mean(x: Array, axis: object, keepdims: bool) -> Array:
    # a sum of all entries is a number, and no array
    total = numpy.asarray(x.sum(axis=axis, keepdims=keepdims), dtype=object)
    # Each total is of as many numbers: the size of `x` over that of the totals.
    return total * total.size / mpf(x.size)


def prod(x: Array, axis: object, keepdims: bool) -> Array:
    return x.prod(axis=axis, keepdims=keepdims)


def variance(
    x: Array,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: object = None,
) -> Array:
    """Return the variance, by the arguments of either overload of torch."""
    # `var(x, True)` is the overload without dimensions.
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    x, axis = row(x), axes_of(dim, row(x))
    # `unbiased` is the older name: its True is a correction of 1, which is the default
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    count = math.prod(x.shape[d] for d in axis) - mpf(correction)
    if count <= 0:
        raise Undefined("no degree of freedom")
    gaps = x - mean(x, axis, True)
    return numpy.asarray((gaps * gaps).sum(axis=axis, keepdims=keepdim), dtype=object) / count


# `ord` is torch's name of the parameter, and hides Python's function here
def vector_norm(
    x: Array, ord: Any = 2, dim: Dim = None, keepdim: bool = False, dtype: object = None
) -> Array:
    """Return the vector norm of torch.linalg, for each order."""
    refuse(dtype=dtype)
    if x.ndim == 0:
        return abs(x)
    axis, size = axes_of(dim, x), abs(x)
    if ord in (math.inf, -math.inf):
        extreme = size.max if ord > 0 else size.min
        return extreme(axis=axis, keepdims=keepdim)
    # Order 0 counts what is not 0. The product turns counts, which are Python's, into mpmath's.
    if ord == 0:
        return numpy.asarray((size != 0).sum(axis=axis, keepdims=keepdim)).astype(object) * mpf(1)
    if ord < 0 and bool((size == 0).any()):
        raise Undefined("a negative power of 0")
    total = _power(size, ord).sum(axis=axis, keepdims=keepdim)
    return numpy.asarray(total, dtype=object) ** (1 / mpf(ord))


def _power(size: Array, p: object) -> Array:
    """Return the sizes to a power. 0 stays 0."""
    if p == 2:
        return size * size

    def power(number: object) -> Any:
        if number == 0:
            return mpf(0)
        return mp.power(number, mpf(p))

    return numpy.frompyfunc(power, 1, 1)(size)


def p_norm(
    x: Array, p: object = "fro", dim: Dim = None, keepdim: bool = False, dtype: object = None
) -> Array:
    """Return ``torch.norm``, of the orders that are vector norms."""
    if p == "fro" or p is None:
        p = 2
    elif isinstance(p, str):
        raise Undefined(f"the matrix norm {p}")
    return vector_norm(x, p, dim, keepdim, dtype)


# `compute_mode` chooses one of torch's algorithms, and no other result
def cdist(x: Array, y: Array, p: object = 2.0, compute_mode: object = None) -> Array:
    return vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def pdist(x: Array, p: object = 2.0) -> Array:
    # each pair of rows once, in torch's order: (0, 1), (0, 2), …, (1, 2), …
    first, second = numpy.triu_indices(len(x), 1)
    return vector_norm(x[first] - x[second], p, -1)


def pairwise_distance(
    x: Array, y: Array, p: object = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Array:
    # torch adds eps to each difference.
    return vector_norm(x - y + mpf(eps), p, -1, keepdim)


def normalize(x: Array, p: object = 2.0, dim: int = 1, eps: float = 1e-12) -> Array:
    return x / numpy.maximum(vector_norm(x, p, dim, True), mpf(eps))


def cosine_similarity(x: Array, y: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    """Return the cosine of vectors. A length below `eps` counts as `eps`."""
    x, y = map(row, numpy.broadcast_arrays(x, y))
    product = numpy.asarray((x * y).sum(axis=dim), dtype=object)
    # torch bounds each length by itself, and not the product of the two.
    length_of_x = numpy.maximum(vector_norm(x, 2, dim), mpf(eps))
    length_of_y = numpy.maximum(vector_norm(y, 2, dim), mpf(eps))
    return product / (length_of_x * length_of_y)
