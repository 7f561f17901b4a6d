"""List the ops that are defined on arrays in arbitrary precision.

Reductions and norms lie in `reduction_definitions`, losses in `loss_definitions`. Normalizations,
quantiles, ranges, products and functions of complex numbers are here.

``DEFINITIONS["torch.softmax"](x, 0)`` takes the op's arguments in the op's order, with NumPy arrays
of mpmath's numbers in place of tensors, and gives an array or a tuple of arrays. It raises
:class:`gen.reference.scalars.Undefined` for arguments that it does not define.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpmath import mp, mpf

from gen.reference.arrays import Array
from gen.reference.loss_definitions import cross_entropy, ctc_loss, elementwise_loss, kl_div
from gen.reference.reduction_definitions import (
    along_rows,
    cdist,
    cosine_similarity,
    log_or_infinity,
    log_softmax,
    logcumsumexp,
    logsumexp,
    mean,
    normalize,
    p_norm,
    pairwise_distance,
    pdist,
    prod,
    reduction,
    row,
    softmax,
    sqrt,
    variance,
    vector_norm,
)
from gen.reference.scalars import Undefined

__all__ = ["DEFINITIONS", "MOVED"]

# --- normalizations -------------------------------------------------------------------------------


def _standardize(x: Array, axis: tuple[int, ...], eps: float) -> Array:
    # Normalizations divide by n and not by n - 1: the variance is that of the rows themselves.
    gaps = x - mean(x, axis, True)
    return gaps / sqrt(mean(gaps * gaps, axis, True) + mpf(eps))


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Return `x`, scaled and shifted."""
    if weight is not None:
        x = x * weight
    if bias is not None:
        x = x + bias
    return x


def _by_channel(vector: Array | None, x: Array) -> Array | None:
    """Return a vector in the shape that lays it along the channels of `x`, its dimension 1."""
    if vector is None:
        return None
    return vector.reshape(1, -1, *[1] * (x.ndim - 2))


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
    rows = row(x).reshape(-1) if dim is None else numpy.moveaxis(row(x), dim, -1)
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
    windows = [x[..., start : start + size] for start in starts]
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
        # by weights, so that the last point is `end` itself
        points = [(start * (last - step) + end * step) / mpf(last) for step in range(steps)]
    return numpy.stack([numpy.asarray(point, dtype=object).reshape(()) for point in points])


# --- complex numbers ------------------------------------------------------------------------------


def _each(f: Callable[[Any], object]) -> Callable[[Array], Array]:
    """Return the function of arrays that takes `f` of each number."""
    return lambda x: numpy.asarray(numpy.frompyfunc(f, 1, 1)(x), dtype=object)


def _complex_power(x: object, y: object) -> object:
    """Return the principal value of ``x ** y``."""
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
    "torch.softmax": along_rows(softmax),
    "torch.log_softmax": along_rows(log_softmax),
    "torch.nn.functional.softmin": along_rows(lambda x, dim: softmax(-x, dim)),
    "torch.logsumexp": logsumexp,
    "torch.logcumsumexp": along_rows(logcumsumexp),
    "torch.cumsum": along_rows(lambda x, dim: numpy.cumsum(x, axis=dim)),
    "torch.cumprod": along_rows(lambda x, dim: numpy.cumprod(x, axis=dim)),
    # --- reductions
    "torch.sum": reduction(numpy.sum),
    "torch.mean": reduction(mean),
    "torch.prod": reduction(prod),
    "torch.var": variance,
    "torch.var.unbiased": variance,
    "torch.std": lambda *args, **kwargs: sqrt(variance(*args, **kwargs)),
    "torch.std.unbiased": lambda *args, **kwargs: sqrt(variance(*args, **kwargs)),
    "torch.quantile": _quantile,
    "torch.nanquantile": _quantile,
    "torch.nn.functional.avg_pool1d": _avg_pool1d,
    "torch.linspace.tensor_overload": _linspace,
    # --- norms and distances
    "torch.linalg.vector_norm": vector_norm,
    "torch.norm": p_norm,
    "torch.norm.fro": p_norm,
    "torch.norm.inf": p_norm,
    "torch.dist": lambda x, y, p=2: vector_norm(x - y, p),
    "torch.cdist": cdist,
    "torch.nn.functional.pdist": pdist,
    "torch.nn.functional.pairwise_distance": pairwise_distance,
    "torch.nn.functional.normalize": normalize,
    "torch.nn.functional.cosine_similarity": cosine_similarity,
    # --- normalizations
    "torch.nn.functional.layer_norm": _layer_norm,
    "torch.nn.functional.group_norm": _group_norm,
    "torch.nn.functional.instance_norm": _instance_norm,
    "torch.nn.functional.batch_norm": _batch_norm,
    # --- losses
    "torch.nn.functional.cross_entropy": cross_entropy,
    "torch.nn.functional.kl_div": kl_div,
    "torch.nn.functional.ctc_loss": ctc_loss,
    "torch.nn.functional.mse_loss": elementwise_loss(lambda d: d * d),
    "torch.nn.functional.l1_loss": elementwise_loss(abs),
    # --- products
    "torch.addr": _addr,
    "torch.outer": lambda a, b: a[:, None] * b[None, :],
    # --- complex numbers
    "torch.angle": _each(_angle),
    "torch.pow": numpy.frompyfunc(_complex_power, 2, 1),
    "torch.exp": _each(mp.exp),
    "torch.log": _each(log_or_infinity),
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
