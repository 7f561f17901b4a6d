"""Register histograms, counts, positions of elements, and evenly spaced numbers between tensors.
Most records are decompositions, for vmap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import BatchingError, MissingRule
from ...seam.call_types import Arguments, BatchFlags, Kernel
from ..derive.batch_rules import expand, positional
from ..record import asking, overload, register

aten = torch.ops.aten

# Counts of integers


def _bincount_batch(
    func: Kernel, size: int, batched: BatchFlags, args: Arguments, kwargs: object
) -> object:
    """Run one ``bincount`` for the whole batch. The integers of each element are first shifted to
    their own range."""
    x = expand(args[0], batched[0], size)
    weights, minlength = positional(args, 1, None), positional(args, 2, 0)
    width = torch.bincount(x.reshape(-1), None, minlength).shape[0]  # raises for negative numbers
    if x.shape[1]:
        widths = (x.amax(1) + 1).clamp(min=minlength)
        if not torch.equal(widths, torch.full_like(widths, width)):
            raise BatchingError(
                "vmap: torch.bincount returns results whose lengths differ between the elements "
                "of the batch; pass a minlength that is larger than every integer."
            )
    if weights is not None:
        weights = expand(weights, batched[1], size).reshape(-1)
    # bins of element b start at b * width
    moved = x.long() + width * torch.arange(size, device=x.device).unsqueeze(1)
    return func(moved.reshape(-1), weights, size * width).reshape(size, width)


# torch has no derivative by the weights either; a gradient raises MissingRule
register("bincount", batch=_bincount_batch, cost="high", family="counting")


def _nonzero_static(self: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """Return the positions of the first ``size`` true elements, one per row.

    The i-th one is written to row i. Further ones go to row ``size``, which is cut off.
    """
    mask = (self != 0).reshape(-1)
    rank = mask.cumsum(0) - 1
    row = torch.where(mask & (rank < size), rank, size)
    flat = row.new_zeros(size + 1).scatter(0, row, torch.arange(row.shape[0], device=row.device))
    exists = torch.arange(size, device=row.device) < mask.sum()
    # from the last dimension to the first: the remainder is the coordinate
    columns: list[torch.Tensor] = []
    rest = flat[:size]
    for length in reversed(self.shape):
        columns.insert(0, torch.where(exists, rest % max(length, 1), fill_value))
        rest = rest // max(length, 1)
    if not columns:
        return row.new_zeros(size, 0)
    return torch.stack(columns, 1)


register("nonzero_static", decomposition=_nonzero_static, family="counting")

# Histograms


def _space_evenly(start: torch.Tensor, end: torch.Tensor, steps: int) -> torch.Tensor:
    """Return ``steps`` numbers from start to end. As in ATen, the first half is counted from the
    start and the second half from the end."""
    step = (end - start) / max(steps - 1, 1)
    i = torch.arange(steps, device=step.device)
    if steps == 1:
        return start.reshape(1)
    return torch.where(i < steps // 2, start + step * i, end - step * (steps - 1 - i))


def _ends(
    x: torch.Tensor, bounds: Sequence[float] | None, margin: float
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the first and last bin edge for each dimension of (points, dimensions).

    ``bounds``: the edges that the caller names. None: the extrema. Equal edges get a margin.
    """
    if bounds is not None:
        low, high = torch.tensor(bounds, dtype=x.dtype, device=x.device).reshape(-1, 2).unbind(1)
    elif x.shape[0]:
        low, high = x.amin(0), x.amax(0)
    # without points there are no extrema
    else:
        low, high = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    same = low == high
    first = torch.where(same, low - margin, low).unbind()
    last = torch.where(same, high + margin, high).unbind()
    return list(zip(first, last, strict=True))


def _tally(
    places: Sequence[torch.Tensor],
    lengths: Sequence[int],
    inside: torch.Tensor,
    weight: torch.Tensor,
) -> torch.Tensor:
    """Return the sum of weights per bin. ``places``: the bin numbers of the points in each
    dimension."""
    # one number for the bin of a point in all dimensions together
    flat, total = torch.zeros_like(places[0]), 1
    for place, length in zip(places, lengths, strict=True):
        # clamped: a point at the upper edge of all belongs to the last bin
        flat = flat * length + place.clamp(0, length - 1)
        total *= length
    sums = weight.new_zeros(total).scatter_add(0, flat, torch.where(inside, weight, 0))
    return sums.reshape(list(lengths))


def _histogram(
    x: torch.Tensor, edges: Sequence[torch.Tensor], weight: torch.Tensor | None, density: bool
) -> torch.Tensor:
    """Return the histogram of points (points, dimensions) in the bins between edges. The last bin
    includes its upper edge."""
    places, inside = [], torch.ones_like(x[:, 0], dtype=torch.bool)
    for value, edge in zip(x.unbind(1), edges, strict=True):
        places.append(torch.searchsorted(edge, value.contiguous(), right=True) - 1)
        inside = inside & (value >= edge[0]) & (value <= edge[-1])
    weight = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1)
    counts = _tally(places, [edge.shape[0] - 1 for edge in edges], inside, weight)
    # a density is a share divided by the volume of its bin
    if density:
        counts = counts / counts.sum()
        for dim, edge in enumerate(edges):
            along = [1] * len(edges)
            along[dim] = -1
            counts = counts / edge.diff().reshape(along)
    return counts


def _edges(
    self: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Any = None,
    weight: object = None,
    density: bool = False,
) -> list[torch.Tensor]:
    """Return the edges of bins of equal width, in each dimension."""
    ends = _ends(self.reshape(-1, self.shape[-1]), range, 0.5)
    return [_space_evenly(low, high, n + 1) for (low, high), n in zip(ends, bins, strict=True)]


def _from_counts(
    self: torch.Tensor,
    bins: Sequence[int],
    *,
    range: object = None,
    weight: Any = None,
    density: bool = False,
) -> torch.Tensor:
    """Return the histogram for numbers of bins in each dimension."""
    points = self.reshape(-1, self.shape[-1])
    return _histogram(points, _edges(self, bins, range=range), weight, density)


def _from_edges(
    self: torch.Tensor,
    bins: Sequence[torch.Tensor],
    *,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> torch.Tensor:
    return _histogram(self.reshape(-1, self.shape[-1]), bins, weight, density)


def _by_count(
    self: torch.Tensor,
    bins: int = 100,
    *,
    range: object = None,
    weight: object = None,
    density: bool = False,
) -> object:
    """Return the histogram of one dimension for a number of bins, and the edges."""
    points = self.reshape(-1, 1)
    counts = _from_counts(points, [bins], range=range, weight=weight, density=density)
    return counts, _edges(points, [bins], range=range)[0]


def _by_edges(
    self: torch.Tensor,
    bins: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> object:
    return _histogram(self.reshape(-1, 1), [bins], weight, density), bins.clone()


def _histc(self: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> torch.Tensor:
    """Return the counts of ``histc``. Equal bounds mean the extrema."""
    x = self.reshape(-1)
    bounds = None
    if min != max:
        bounds = (min, max)
    ((low, high),) = _ends(x.unsqueeze(1), bounds, 1)
    place = ((x - low) * bins / (high - low)).long()
    inside = (x >= low) & (x <= high)
    return _tally([place], [bins], inside, torch.ones_like(x))


def _without(name: str, rule: str) -> Any:
    """Return a formula that refuses the derivative, because torch declares none. The decomposition
    serves batches only."""

    def formula(*_: object) -> Any:
        raise MissingRule(str(overload(name)), rule)

    formula.refuses = True  # type: ignore[attr-defined]  # no rule to be tested
    return formula


for _name, _decomposition in (
    ("histc", _histc),
    ("histogram.bin_ct", _by_count),
    ("histogram.bins_tensor", _by_edges),
    ("_histogramdd_bin_edges", _edges),
    ("_histogramdd_from_bin_cts", _from_counts),
    ("_histogramdd_from_bin_tensors", _from_edges),
):
    register(
        _name,
        vjp={"self": asking("gs")(_without(_name, "vjp"))},
        jvp=asking("self_t")(_without(_name, "jvp")),
        decomposition=_decomposition,
        cost="high",
        family="counting",
    )

# Evenly spaced numbers


def _ramp(
    start: object, end: object, steps: int, dtype: torch.dtype | None, device: object
) -> tuple[torch.Tensor, torch.dtype]:
    """Return the numbers in order, in double precision for an integer dtype, and the dtype of the
    result."""
    if dtype is None:
        dtype = torch.get_default_dtype()
        if _is_complex(start) or _is_complex(end):
            dtype = dtype.to_complex()
    tensors = [end_point for end_point in (start, end) if isinstance(end_point, torch.Tensor)]
    if any(tensor.dim() for tensor in tensors):
        raise RuntimeError("linspace and logspace only support 0-dimensional start and end tensors")
    example = tensors[0]
    # steps between integers are fractions
    wide = dtype
    if _is_integer(dtype):
        wide = torch.float64

    def bound(a: Any) -> torch.Tensor:
        """Return a bound as a tensor."""
        if not isinstance(a, torch.Tensor):
            a = example.new_tensor(a, dtype=wide)
        # a bound is rounded as the result is
        rounded: torch.Tensor = a.to(device or example.device, dtype).to(wide)
        return rounded

    return _space_evenly(bound(start), bound(end), steps), dtype


def _is_complex(a: object) -> bool:
    if isinstance(a, torch.Tensor):
        return a.is_complex()
    return isinstance(a, complex)


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _linspace(
    start: object,
    end: object,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    device: object = None,
    **memory: object,
) -> object:
    """Return evenly spaced numbers."""
    values, dtype = _ramp(start, end, steps, dtype, device)
    return values.to(dtype)


def _logspace(
    start: torch.Tensor | int,
    end: object,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    device: object = None,
    **memory: object,
) -> object:
    """Return powers of ``base`` with evenly spaced exponents."""
    values, dtype = _ramp(start, end, steps, dtype, device)
    if steps == 1:  # with more than one number, ATen rounds the exponents
        if isinstance(start, torch.Tensor):
            values = start.to(values.device).reshape(1)
        else:
            values = torch.full_like(values, start)
    elif _is_integer(dtype):
        base = int(base)
    return torch.pow(base, values).to(dtype)


for _overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
    register(f"linspace.{_overload}", decomposition=_linspace, family="counting")
    register(f"logspace.{_overload}", decomposition=_logspace, family="counting")
