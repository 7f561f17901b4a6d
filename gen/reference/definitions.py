"""Define ops on arrays in arbitrary precision: reductions, norms, normalizations, losses and
products.

``DEFINITIONS["torch.softmax"](x, 0)`` takes the op's arguments in the op's order, with NumPy arrays
of mpmath's numbers in place of tensors, and gives an array or a tuple of arrays. It raises
:class:`gen.reference.scalars.Undefined` for arguments that it does not define.
"""

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


def _log(x: object) -> Any:
    if x == 0:
        return mp.ninf
    return mp.log(x)


def _sqrt(x: Any) -> object:
    if x < 0:
        raise Undefined("a root of a negative number")
    return mp.sqrt(x)


def _axis(dim: Dim, x: Array) -> tuple[int, ...]:
    if isinstance(dim, int):
        return (dim % x.ndim,)
    # no dimensions are all of them
    return tuple(d % x.ndim for d in dim or range(x.ndim))


def _row(x: Array) -> Array:
    """Return `x` with at least one dimension."""
    if x.ndim == 0:
        return x.reshape(1)
    return x


def _refuse(**others: Any) -> None:
    """Raise Undefined for arguments that change a definition."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise Undefined(f"no definition with {name}={value}")


def _along_rows(f: Callable[[Array, int], Array]) -> Callable[..., Array]:
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
        _refuse(dtype=dtype, **others)
        if dim is None:
            raise Undefined("no dimension")
        return f(_row(x), dim).reshape(x.shape)

    return g


def _softmax(x: Array, dim: int) -> Array:
    # The greatest number is subtracted first: numbers that stand for infinity have no exponential.
    e = exp(x - x.max(axis=dim, keepdims=True))
    return e / e.sum(axis=dim, keepdims=True)


def _log_softmax(x: Array, dim: int) -> Array:
    top = x.max(axis=dim, keepdims=True)
    return x - top - log(exp(x - top).sum(axis=dim, keepdims=True))


def _logcumsumexp(x: Array, dim: int) -> Array:
    top = x.max(axis=dim, keepdims=True)
    # One top for the whole row: the exponents of mpmath have no bound, so nothing underflows.
    return log(numpy.cumsum(exp(x - top), axis=dim)) + top


def _logsumexp(x: Array, dim: Dim, keepdim: bool = False) -> Array:
    return log(exp(_row(x)).sum(axis=_axis(dim, _row(x)), keepdims=keepdim and x.ndim > 0))


def _reduction(f: Callable[..., Array]) -> Callable[..., Array]:
    """Return a definition of ``op(x, dim=None, keepdim=False, dtype=None)``."""

    def g(x: Array, dim: Dim = None, keepdim: bool = False, dtype: object = None) -> Array:
        _refuse(dtype=dtype)
        axis = None
        if x.ndim:
            axis = _axis(dim, x)
        return f(x, axis=axis, keepdims=keepdim)

    return g


def _mean(x: Array, axis: object, keepdims: bool) -> Array:
    # a sum of all entries is a number, and no array
    total = numpy.asarray(x.sum(axis=axis, keepdims=keepdims), dtype=object)
    # Each total is of as many numbers: the size of `x` over that of the totals.
    return total * total.size / mpf(x.size)


def _prod(x: Array, axis: object, keepdims: bool) -> Array:
    return x.prod(axis=axis, keepdims=keepdims)


def _var(
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
    x, axis = _row(x), _axis(dim, _row(x))
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    count = math.prod(x.shape[d] for d in axis) - mpf(correction)
    if count <= 0:
        raise Undefined("no degree of freedom")
    gaps = x - _mean(x, axis, True)
    return numpy.asarray((gaps * gaps).sum(axis=axis, keepdims=keepdim), dtype=object) / count


# `ord` is torch's name of the parameter, and hides Python's function here
def _norm(
    x: Array, ord: Any = 2, dim: Dim = None, keepdim: bool = False, dtype: object = None
) -> Array:
    """Return the vector norm of torch.linalg, for each order."""
    _refuse(dtype=dtype)
    if x.ndim == 0:
        return abs(x)
    axis, size = _axis(dim, x), abs(x)
    if ord in (math.inf, -math.inf):
        extreme = size.max if ord > 0 else size.min
        return extreme(axis=axis, keepdims=keepdim)
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

    def power(v: object) -> Any:
        if v == 0:
            return mpf(0)
        return mp.power(v, mpf(p))

    return numpy.frompyfunc(power, 1, 1)(size)


def _p_norm(
    x: Array, p: object = "fro", dim: Dim = None, keepdim: bool = False, dtype: object = None
) -> Array:
    """Return ``torch.norm``, of the orders that are vector norms."""
    if p == "fro" or p is None:
        p = 2
    elif isinstance(p, str):
        raise Undefined(f"the matrix norm {p}")
    return _norm(x, p, dim, keepdim, dtype)


def _cdist(x: Array, y: Array, p: object = 2.0, compute_mode: object = None) -> Array:
    return _norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def _pdist(x: Array, p: object = 2.0) -> Array:
    rows = numpy.triu_indices(len(x), 1)
    return _norm(x[rows[0]] - x[rows[1]], p, -1)


def _pairwise(
    x: Array, y: Array, p: object = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Array:
    # torch adds eps to each difference.
    return _norm(x - y + mpf(eps), p, -1, keepdim)


def _normalize(x: Array, p: object = 2.0, dim: int = 1, eps: float = 1e-12) -> Array:
    return x / numpy.maximum(_norm(x, p, dim, True), mpf(eps))


def _cosine(x: Array, y: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    """Return the cosine of vectors. A length below `eps` counts as `eps`."""
    x, y = map(_row, numpy.broadcast_arrays(x, y))
    product = numpy.asarray((x * y).sum(axis=dim), dtype=object)
    # torch bounds each length by itself.
    length_of_x = numpy.maximum(_norm(x, 2, dim), mpf(eps))
    length_of_y = numpy.maximum(_norm(y, 2, dim), mpf(eps))
    return product / (length_of_x * length_of_y)


# --- normalizations -------------------------------------------------------------------------------


def _standardize(x: Array, axis: tuple[int, ...], eps: float) -> Array:
    gaps = x - _mean(x, axis, True)
    return gaps / sqrt(_mean(gaps * gaps, axis, True) + mpf(eps))


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Return `x`, scaled and shifted."""
    if weight is not None:
        x = x * weight
    if bias is not None:
        x = x + bias
    return x


def _by_channel(v: Array | None, x: Array) -> Array | None:
    """Return a vector in the shape that lays it along the channels of `x`, its dimension 1."""
    if v is None:
        return None
    return v.reshape(1, -1, *[1] * (x.ndim - 2))


def _affine_by_channel(x: Array, weight: Array | None, bias: Array | None) -> Array:
    return _affine(x, _by_channel(weight, x), _by_channel(bias, x))


def _layer_norm(
    x: Array, shape: Sequence[int], weight: object = None, bias: object = None, eps: float = 1e-5
) -> Array:
    last = tuple(range(x.ndim - len(shape), x.ndim))
    return _affine(_standardize(x, last, eps), weight, bias)


def _group_norm(
    x: Array, num_groups: int, weight: object = None, bias: object = None, eps: float = 1e-5
) -> Array:
    rows = x.reshape(x.shape[0], num_groups, -1)
    return _affine_by_channel(_standardize(rows, (2,), eps).reshape(x.shape), weight, bias)


def _instance_norm(
    x: Array, running_mean: object = None, running_var: object = None, weight: object = None,
    bias: object = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Array:  # fmt: skip
    """Return the normalization of each channel of each sample."""
    if not use_input_stats:
        raise Undefined("running statistics")
    return _affine_by_channel(_standardize(x, tuple(range(2, x.ndim)), eps), weight, bias)


def _batch_norm(
    x: Array, running_mean: object = None, running_var: object = None, weight: object = None,
    bias: object = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Array:  # fmt: skip
    """Return the normalization of each channel, by its own or by running statistics."""
    if training:
        return _affine_by_channel(_standardize(x, (0, *range(2, x.ndim)), eps), weight, bias)
    gaps = x - _by_channel(running_mean, x)
    deviation = sqrt(_by_channel(running_var, x) + mpf(eps))
    return _affine_by_channel(gaps / deviation, weight, bias)


# --- order, averages and ranges -------------------------------------------------------------------


def _quantile(
    x: Array,
    q: object,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Array:
    """Return quantiles by linear interpolation between the numbers in order."""
    if interpolation != "linear":
        raise Undefined(f"interpolation {interpolation}")
    q = numpy.asarray(q, dtype=object)
    rows = _row(x).reshape(-1) if dim is None else numpy.moveaxis(_row(x), dim, -1)
    rows = numpy.sort(rows, axis=-1)
    quantiles = [_between_places(rows, mpf(part)) for part in q.reshape(-1)]
    if keepdim:
        quantiles = [_keep_dimension(value, dim, x.ndim) for value in quantiles]
    if q.ndim == 0:
        return quantiles[0]
    return numpy.stack(quantiles)


def _keep_dimension(reduced: Array, dim: int | None, ndim: int) -> Array:
    """Return a reduced array with a 1 for the dimension, or for each of `ndim`."""
    if dim is None:
        return reduced.reshape((1,) * ndim)
    return numpy.expand_dims(reduced, dim)


def _between_places(rows: Array, part: object) -> Array:
    """Return what is at a part of the way along the last dimension, which is in order."""
    place = part * (rows.shape[-1] - 1)
    low = int(mp.floor(place))
    share = place - mp.floor(place)
    quantile = rows[..., low]
    # behind the last place there is no number, and the share of it is 0
    if share:
        quantile = quantile * (1 - share) + rows[..., low + 1] * share
    return numpy.asarray(quantile, dtype=object)


def _avg_pool1d(
    x: Array,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    """Return means of windows, without padding."""
    size, pace = _one(kernel_size), _one(stride or kernel_size)
    if _one(padding) or ceil_mode:
        raise Undefined("padding")
    starts = range(0, x.shape[-1] - size + 1, pace)
    windows = [x[..., k : k + size] for k in starts]
    return numpy.stack([window.sum(axis=-1) / mpf(size) for window in windows], axis=-1)


def _one(size: object) -> Any:
    """Return an argument of one dimension, which may come in a list."""
    if isinstance(size, (tuple, list)):
        return size[0]
    return size


def _linspace(start: Any, end: Any, steps: int, **others: object) -> Array:
    """Return `steps` numbers from `start` to `end`, both included."""
    if steps == 0:
        return numpy.empty(0, dtype=object)
    points = [start]
    if steps > 1:
        last = steps - 1
        points = [(start * (last - k) + end * k) / mpf(last) for k in range(steps)]
    return numpy.stack([numpy.asarray(point, dtype=object).reshape(()) for point in points])


# --- losses ---------------------------------------------------------------------------------------


def _reduce(losses: Array, reduction: str) -> Array:
    total = numpy.asarray(losses.sum(), dtype=object)
    return {"none": losses, "sum": total, "mean": total / mpf(max(losses.size, 1))}[reduction]


def _cross_entropy(
    x: Array, t: Array, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Array:  # fmt: skip
    """Return the cross entropy, for targets that are classes or probabilities."""
    _refuse(weight=weight, label_smoothing=label_smoothing or None)
    # a single sample has no batch in front of its classes
    channel = 1 if x.ndim > 1 else 0
    logs = numpy.moveaxis(_log_softmax(x, channel), channel, -1)
    # Probabilities are numbers of mpmath, classes are integers.
    if t.dtype == object:
        losses = -_times(numpy.moveaxis(t, channel, -1), logs).sum(axis=-1)
        total = numpy.asarray(losses, dtype=object)
        if reduction == "mean":
            return total.sum() / mpf(max(total.size, 1))
        return _reduce(total, reduction)
    if bool((t == ignore_index).any()) or bool((t < 0).any()):
        raise Undefined("classes that are ignored")
    of_class = numpy.take_along_axis(logs, numpy.asarray(t)[..., None], -1)
    return _reduce(numpy.asarray(-of_class[..., 0], dtype=object), reduction)


def _times_log(p: Any, v: object) -> object:
    """Return a probability times what may be infinite where it is 0."""
    if p == 0:
        return mpf(0)
    return p * v


_times = numpy.frompyfunc(_times_log, 2, 1)


def _kl_div(
    x: Array,
    t: Array,
    size_average: object = None,
    reduce: object = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Array:
    """Return ``t·(log t - x)``, where a target of 0 counts 0."""
    losses = exp(t) * (t - x) if log_target else _times(t, log(t) - x)
    losses = numpy.asarray(losses, dtype=object)
    if reduction == "batchmean":
        return numpy.asarray(losses.sum(), dtype=object) / mpf(losses.shape[0])
    return _reduce(losses, reduction)


def _probability_of(word: Sequence[int], x: Array, steps: int, blank: int) -> object:
    """Return the probability of all ways to spell `word`, which has a blank on either side of each
    letter.

    `x` (T, C) are logarithms, of which `steps` count. ``ways[s]`` is the probability to be at place
    `s` of the word.
    """
    may_skip = [s > 1 and word[s] not in (blank, word[s - 2]) for s in range(len(word))]
    # a way begins at the blank or at the first letter
    ways = [exp(x[0, c]) for c in word[:2]]
    ways += [mpf(0)] * (len(word) - len(ways))
    for step in range(1, steps):
        before = ways
        ways = []
        for index, c in enumerate(word):
            total = before[index]
            if index:
                total = total + before[index - 1]
            if may_skip[index]:
                total = total + before[index - 2]
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
    """Return the loss by the sum over all ways to spell the targets with repetitions and blanks.

    `x` (T, N, C) are logarithms of probabilities.
    """
    if numpy.asarray(targets).ndim != 2 or zero_infinity:
        raise Undefined("targets that are no matrix")
    losses, lengths = [], []
    for index, (steps, length) in enumerate(
        zip(map(int, input_lengths), map(int, target_lengths), strict=True)
    ):
        word = [blank]
        # a blank between two letters, so that a repeated letter is not one long letter
        for letter in targets[index][:length]:
            word += [int(letter), blank]
        probability = _probability_of(word, x[:, index], steps, blank)
        losses.append(-log(probability))
        # as in torch, an empty target is divided by one letter
        lengths.append(max(length, 1))
    if reduction == "mean":
        by_letter = [loss / length for loss, length in zip(losses, lengths, strict=True)]
        return numpy.asarray(sum(by_letter, mpf(0)) / len(losses), dtype=object)
    return _reduce(numpy.array(losses, dtype=object), reduction)


def _elementwise_loss(f: Callable[[Array], Array]) -> Callable[..., Array]:
    """Return a loss of the gaps between two arrays from one of a single gap."""

    def g(
        x: Array,
        y: Array,
        size_average: object = None,
        reduce: object = None,
        reduction: str = "mean",
        weight: object = None,
    ) -> Array:
        _refuse(weight=weight)
        return _reduce(numpy.asarray(f(x - y), dtype=object), reduction)

    return g


# --- complex numbers ------------------------------------------------------------------------------


def _each(f: Callable[[Any], object]) -> Callable[[Array], Array]:
    return lambda x: numpy.asarray(numpy.frompyfunc(f, 1, 1)(x), dtype=object)


def _complex_power(x: object, y: object) -> object:
    if x == 0:
        if y == 0:
            return mpf(1)
        raise Undefined("a power of 0")
    return mp.exp(y * mp.log(x))


def _angle(z: object) -> object:
    if z == 0:
        raise Undefined("the angle of 0")
    return mp.arg(z)


def _addr(x: Array, a: Array, b: Array, beta: object = 1, alpha: object = 1) -> Array:
    product = alpha * a[:, None] * b[None, :]
    if not beta:
        return 0 + product  # NaN and infinities of `x` do not count then
    return x * beta + product


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
    "torch.addr": _addr,
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
_NORMALIZATIONS = ("layer_norm", "group_norm", "instance_norm", "batch_norm")


def _inputs_moved(name: str) -> int:
    """Count the first inputs that may all be shifted without a change of the result."""
    if "dist" in name:
        return 2
    if any(word in name for word in ("var", "std", "cosine", *_NORMALIZATIONS)):
        return 1
    return 0


MOVED = {name: count for name in DEFINITIONS if (count := _inputs_moved(name))}
"""Functions that a shift of their first inputs does not change, and how many inputs that is:
rounding counts relative to differences of entries."""
