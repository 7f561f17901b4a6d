"""Definitions of ops on arrays in arbitrary precision: reductions, norms, normalizations,
losses and products.

``DEFINITIONS["torch.softmax"](x, 0)`` takes the op's arguments in the op's order, with NumPy arrays
of mpmath's numbers in place of tensors, and gives an array or a tuple of arrays. It raises
:class:`gen.reference.scalars.Undefined` for arguments that it does not define."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpmath import mp, mpf

from gen.reference.arrays import Array
from gen.reference.scalars import Undefined

__all__ = ["DEFINITIONS", "MOVED"]

Dim = int | Sequence[int] | None
exp, log, sqrt = (
    numpy.frompyfunc(f, 1, 1) for f in (lambda x: mp.exp(x), lambda x: _log(x), lambda x: _sqrt(x))
)


def _log(x: Any) -> Any:
    return mp.ninf if x == 0 else mp.log(x)


def _sqrt(x: Any) -> Any:
    if x < 0:
        raise Undefined("a root of a negative number")
    return mp.sqrt(x)


def _axis(dim: Dim, x: Array) -> tuple[int, ...]:
    if isinstance(dim, int):
        return (dim % x.ndim,)
    # no dimensions are all of them
    return tuple(d % x.ndim for d in dim or range(x.ndim))


def _row(x: Array) -> Array:
    """`x` with at least one dimension."""
    return x.reshape(1) if x.ndim == 0 else x


def _plain(**others: Any) -> None:
    """Refuse arguments that change a definition."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise Undefined(f"no definition with {name}={value}")


def _along_rows(f: Callable[[Array, int], Array]) -> Callable[..., Array]:
    """Return a definition of ``op(x, dim, dtype=None)`` from one for arrays with dimensions."""

    def g(x: Array, dim: int | None = None, dtype: Any = None, **others: Any) -> Array:
        _plain(
            dtype=dtype, **{name: value for name, value in others.items() if name != "_stacklevel"}
        )
        if dim is None:
            raise Undefined("no dimension")
        return f(_row(x), dim).reshape(x.shape)

    return g


def _softmax(x: Array, dim: int) -> Array:
    e = exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True)


def _log_softmax(x: Array, dim: int) -> Array:
    top = x.max(axis=dim, keepdims=True)
    return x - top - log(exp(x - top).sum(axis=dim, keepdims=True))


def _logcumsumexp(x: Array, dim: int) -> Array:
    top = x.max(axis=dim, keepdims=True)
    return log(numpy.cumsum(exp(x - top), axis=dim)) + top


def _logsumexp(x: Array, dim: Dim, keepdim: bool = False) -> Array:
    return log(exp(_row(x)).sum(axis=_axis(dim, _row(x)), keepdims=keepdim and x.ndim > 0))


def _reduction(f: Callable[..., Array]) -> Callable[..., Array]:
    """Return a definition of ``op(x, dim=None, keepdim=False, dtype=None)``."""

    def g(x: Array, dim: Dim = None, keepdim: bool = False, dtype: Any = None) -> Array:
        _plain(dtype=dtype)
        return f(x, axis=_axis(dim, x) if x.ndim else None, keepdims=keepdim)

    return g


def _mean(x: Array, axis: Any, keepdims: bool) -> Array:
    total = numpy.asarray(x.sum(axis=axis, keepdims=keepdims), dtype=object)
    return total * total.size / mpf(x.size)


def _prod(x: Array, axis: Any, keepdims: bool) -> Array:
    return x.prod(axis=axis, keepdims=keepdims)


def _var(
    x: Array,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Array:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    x, axis = _row(x), _axis(dim, _row(x))
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    count = math.prod(x.shape[d] for d in axis) - mpf(correction)
    if count <= 0:
        raise Undefined("no degree of freedom")
    gaps = x - _mean(x, axis, True)
    return numpy.asarray((gaps * gaps).sum(axis=axis, keepdims=keepdim), dtype=object) / count


# torch's name
def _norm(
    x: Array, ord: Any = 2, dim: Dim = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    _plain(dtype=dtype)
    if x.ndim == 0:
        return abs(x)
    axis, size = _axis(dim, x), abs(x)
    if ord in (math.inf, -math.inf):
        return (
            size.max(axis=axis, keepdims=keepdim)
            if ord > 0
            else size.min(axis=axis, keepdims=keepdim)
        )
    if ord == 0:
        return numpy.asarray((size != 0).sum(axis=axis, keepdims=keepdim)).astype(object) * mpf(1)
    if ord < 0 and bool((size == 0).any()):
        raise Undefined("a negative power of 0")
    return numpy.asarray(_power(size, ord).sum(axis=axis, keepdims=keepdim), dtype=object) ** (
        1 / mpf(ord)
    )


def _power(size: Array, p: Any) -> Array:
    if p == 2:
        return size * size
    return numpy.frompyfunc(lambda v: mpf(0) if v == 0 else mp.power(v, mpf(p)), 1, 1)(size)


def _p_norm(
    x: Array, p: Any = "fro", dim: Dim = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    if p == "fro" or p is None:
        p = 2
    elif isinstance(p, str):
        raise Undefined(f"the matrix norm {p}")
    return _norm(x, p, dim, keepdim, dtype)


def _cdist(x: Array, y: Array, p: Any = 2.0, compute_mode: Any = None) -> Array:
    return _norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def _pdist(x: Array, p: Any = 2.0) -> Array:
    rows = numpy.triu_indices(len(x), 1)
    return _norm(x[rows[0]] - x[rows[1]], p, -1)


def _pairwise(x: Array, y: Array, p: Any = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Array:
    return _norm(x - y + mpf(eps), p, -1, keepdim)


def _normalize(x: Array, p: Any = 2.0, dim: int = 1, eps: float = 1e-12) -> Array:
    return x / numpy.maximum(_norm(x, p, dim, True), mpf(eps))


def _cosine(x: Array, y: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    x, y = (_row(v) for v in numpy.broadcast_arrays(x, y))
    product = numpy.asarray((x * y).sum(axis=dim), dtype=object)
    return product / (
        numpy.maximum(_norm(x, 2, dim), mpf(eps)) * numpy.maximum(_norm(y, 2, dim), mpf(eps))
    )


# --- normalizations -------------------------------------------------------------------------------


def _standardized(x: Array, axis: tuple[int, ...], eps: float) -> Array:
    gaps = x - _mean(x, axis, True)
    return gaps / sqrt(_mean(gaps * gaps, axis, True) + mpf(eps))


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Scaled and shifted by channel, which is dimension 1."""
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _layer_norm(
    x: Array, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Array:
    y = _standardized(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _group_norm(
    x: Array, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Array:
    rows = x.reshape(x.shape[0], num_groups, -1)
    return _affine(_standardized(rows, (2,), eps).reshape(x.shape), weight, bias)


def _instance_norm(
    x: Array, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Array:  # fmt: skip
    if not use_input_stats:
        raise Undefined("running statistics")
    return _affine(_standardized(x, tuple(range(2, x.ndim)), eps), weight, bias)


def _batch_norm(
    x: Array, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Array:  # fmt: skip
    if training:
        return _affine(_standardized(x, (0, *range(2, x.ndim)), eps), weight, bias)
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    return _affine(
        (x - running_mean.reshape(shape)) / sqrt(running_var.reshape(shape) + mpf(eps)),
        weight,
        bias,
    )


# --- order, averages and ranges -------------------------------------------------------------------


def _quantile(
    x: Array,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Array:
    if interpolation != "linear":
        raise Undefined(f"interpolation {interpolation}")
    q = numpy.asarray(q, dtype=object)
    rows = numpy.sort(
        _row(x).reshape(-1) if dim is None else numpy.moveaxis(_row(x), dim, -1), axis=-1
    )
    found = []
    for part in q.reshape(-1):
        place = mpf(part) * (rows.shape[-1] - 1)
        low, share = int(mp.floor(place)), place - mp.floor(place)
        row = rows[..., low]
        if share:
            row = row * (1 - share) + rows[..., low + 1] * share
        row = numpy.asarray(row, dtype=object)
        if keepdim:
            row = row.reshape((1,) * x.ndim) if dim is None else numpy.expand_dims(row, dim)
        found.append(row)
    return numpy.stack(found) if q.ndim else found[0]


def _avg_pool1d(
    x: Array,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    (size, pace, pad) = (
        v[0] if isinstance(v, (tuple, list)) else v
        for v in (kernel_size, stride or kernel_size, padding)
    )
    if pad or ceil_mode:
        raise Undefined("padding")
    return numpy.stack(
        [
            x[..., k : k + size].sum(axis=-1) / mpf(size)
            for k in range(0, x.shape[-1] - size + 1, pace)
        ],
        axis=-1,
    )


def _linspace(start: Any, end: Any, steps: int, **others: Any) -> Array:
    made = numpy.empty(steps, dtype=object)
    for k in range(steps):
        made[k] = (start * (steps - 1 - k) + end * k) / mpf(steps - 1) if steps > 1 else start
    return (
        numpy.stack([numpy.asarray(v, dtype=object).reshape(()) for v in made]) if steps else made
    )


# --- losses ---------------------------------------------------------------------------------------


def _reduced(losses: Array, reduction: str) -> Array:
    total = numpy.asarray(losses.sum(), dtype=object)
    return {"none": losses, "sum": total, "mean": total / mpf(max(losses.size, 1))}[reduction]


def _cross_entropy(
    x: Array, t: Array, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Array:  # fmt: skip
    _plain(weight=weight, label_smoothing=label_smoothing or None)
    channel = 1 if x.ndim > 1 else 0
    logs = numpy.moveaxis(_log_softmax(x, channel), channel, -1)
    if t.dtype == object:
        losses = -_times(numpy.moveaxis(t, channel, -1), logs).sum(axis=-1)
        total = numpy.asarray(losses, dtype=object)
        return (
            total.sum() / mpf(max(total.size, 1))
            if reduction == "mean"
            else _reduced(total, reduction)
        )
    if bool((t == ignore_index).any()) or bool((t < 0).any()):
        raise Undefined("classes that are ignored")
    losses = numpy.asarray(
        -numpy.take_along_axis(logs, numpy.asarray(t)[..., None], -1)[..., 0], dtype=object
    )
    return _reduced(losses, reduction)


_times = numpy.frompyfunc(lambda p, v: mpf(0) if p == 0 else p * v, 2, 1)
"""A probability times what may be infinite where it is 0."""


def _kl_div(
    x: Array,
    t: Array,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Array:
    losses = exp(t) * (t - x) if log_target else _times(t, log(t) - x)
    losses = numpy.asarray(losses, dtype=object)
    if reduction == "batchmean":
        return numpy.asarray(losses.sum(), dtype=object) / mpf(losses.shape[0])
    return _reduced(losses, reduction)


def _probability_of(word: Sequence[int], x: Array, steps: int, blank: int) -> Any:
    """Return the probability of all ways to spell `word`, which has a blank beside each letter.

    `x` (T, C) are logarithms, of which `steps` count. ``ways[s]`` is the probability to be at
    place `s` of the word.
    """
    may_skip = [s > 1 and word[s] not in (blank, word[s - 2]) for s in range(len(word))]
    ways = [exp(x[0, c]) if s < 2 else mpf(0) for s, c in enumerate(word)]
    for step in range(1, steps):
        before = ways
        ways = []
        for s, c in enumerate(word):
            total = before[s]
            if s:
                total = total + before[s - 1]
            if may_skip[s]:
                total = total + before[s - 2]
            ways.append(total * exp(x[step, c]))
    return sum(ways[-2:], mpf(0))


def _ctc(
    x: Array,
    targets: Array,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Array:
    """By the sum over all ways to spell the targets with repetitions and blanks. x (T, N, C) are
    logarithms of probabilities."""
    if numpy.asarray(targets).ndim != 2 or zero_infinity:
        raise Undefined("targets that are no matrix")
    losses = []
    for n, (steps, length) in enumerate(
        zip(map(int, input_lengths), map(int, target_lengths), strict=True)
    ):
        word = [blank]
        for letter in targets[n][:length]:
            word += [int(letter), blank]
        probability = _probability_of(word, x[:, n], steps, blank)
        losses.append((-log(probability), max(length, 1)))
    if reduction == "mean":
        return numpy.asarray(sum((v / n for v, n in losses), mpf(0)) / len(losses), dtype=object)
    return _reduced(numpy.array([v for v, _ in losses], dtype=object), reduction)


def _elementwise_loss(f: Callable[[Array], Array]) -> Callable[..., Array]:
    def g(
        x: Array,
        y: Array,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        weight: Any = None,
    ) -> Array:
        _plain(weight=weight)
        return _reduced(numpy.asarray(f(x - y), dtype=object), reduction)

    return g


# --- complex numbers ------------------------------------------------------------------------------


def _each(f: Callable[[Any], Any]) -> Callable[[Array], Array]:
    return lambda x: numpy.asarray(numpy.frompyfunc(f, 1, 1)(x), dtype=object)


def _complex_power(x: Any, y: Any) -> Any:
    if x == 0:
        if y == 0:
            return mpf(1)
        raise Undefined("a power of 0")
    return mp.exp(y * mp.log(x))


def _angle(z: Any) -> Any:
    if z == 0:
        raise Undefined("the angle of 0")
    return mp.arg(z)


DEFINITIONS: dict[str, Callable[..., Any]] = {
    # --- rows
    "torch.softmax": _along_rows(_softmax),
    "torch.log_softmax": _along_rows(_log_softmax),
    "torch.nn.functional.softmin": _along_rows(lambda x, dim: _softmax(-x, dim)),
    "torch.logsumexp": _logsumexp,
    "torch.logcumsumexp": _along_rows(_logcumsumexp),
    "torch.cumsum": _along_rows(lambda x, dim: numpy.cumsum(x, axis=dim)),
    "torch.cumprod": _along_rows(lambda x, dim: numpy.cumprod(x, axis=dim)),
    # --- reductions
    "torch.sum": _reduction(numpy.sum),
    "torch.mean": _reduction(_mean),
    "torch.prod": _reduction(_prod),
    "torch.var": _var,
    "torch.var.unbiased": _var,
    "torch.std": lambda *args, **kwargs: sqrt(_var(*args, **kwargs)),
    "torch.std.unbiased": lambda *args, **kwargs: sqrt(_var(*args, **kwargs)),
    "torch.quantile": _quantile,
    "torch.nanquantile": _quantile,
    "torch.nn.functional.avg_pool1d": _avg_pool1d,
    "torch.linspace.tensor_overload": _linspace,
    # --- norms and distances
    "torch.linalg.vector_norm": _norm,
    "torch.norm": _p_norm,
    "torch.norm.fro": _p_norm,
    "torch.norm.inf": _p_norm,
    "torch.dist": lambda x, y, p=2: _norm(x - y, p),
    "torch.cdist": _cdist,
    "torch.nn.functional.pdist": _pdist,
    "torch.nn.functional.pairwise_distance": _pairwise,
    "torch.nn.functional.normalize": _normalize,
    "torch.nn.functional.cosine_similarity": _cosine,
    # --- normalizations
    "torch.nn.functional.layer_norm": _layer_norm,
    "torch.nn.functional.group_norm": _group_norm,
    "torch.nn.functional.instance_norm": _instance_norm,
    "torch.nn.functional.batch_norm": _batch_norm,
    # --- losses
    "torch.nn.functional.cross_entropy": _cross_entropy,
    "torch.nn.functional.kl_div": _kl_div,
    "torch.nn.functional.ctc_loss": _ctc,
    "torch.nn.functional.mse_loss": _elementwise_loss(lambda d: d * d),
    "torch.nn.functional.l1_loss": _elementwise_loss(abs),
    # --- products
    "torch.addr": lambda x, a, b, beta=1, alpha=1: (
        (x * beta if beta else 0) + alpha * a[:, None] * b[None, :]
    ),
    "torch.outer": lambda a, b: a[:, None] * b[None, :],
    # --- complex numbers
    "torch.angle": _each(_angle),
    "torch.pow": numpy.frompyfunc(_complex_power, 2, 1),
    "torch.exp": _each(mp.exp),
    "torch.log": _each(_log),
    "torch.sqrt": _each(mp.sqrt),
    "torch.abs": _each(abs),
    "torch.reciprocal": _each(lambda z: 1 / z),
    "torch.tanh": _each(mp.tanh),
    "torch.sigmoid": _each(lambda z: 1 / (1 + mp.exp(-z))),
}
MOVED = {
    name: 2 if "dist" in name else 1
    for name in DEFINITIONS
    if any(
        word in name
        for word in (
            "var",
            "std",
            "dist",
            "layer_norm",
            "group_norm",
            "instance_norm",
            "batch_norm",
            "cosine",
        )
    )
}
"""Functions that a shift of their first inputs does not change, and how many inputs that is:
rounding counts relative to differences of entries."""
