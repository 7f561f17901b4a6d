"""Register interpolation, sampling on a grid, patches and shuffled channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...seam.call_types import Arguments, Kernel
from ...torch_private.native_functions import sampled_2d
from ..derive.batch_rules import shaped_by_one
from ..derive.families import linear
from ..derive.fixed_layouts import fold, same
from ..derive.optional import add_present
from ..record import asking, overload, register

aten = torch.ops.aten

# Interpolation is linear; ``name_backward(g, output_size, input_size, …)`` is its transpose.


def _upsample(name: str, spatial: int) -> None:
    """Register an interpolation and its backward op, each the transpose of the other."""
    forward, backward = overload(name), overload(f"{name}_backward")
    options = [argument.name for argument in forward._schema.arguments[2:]]
    cost = "low"
    if "bicubic" in name:
        cost = "high"

    def resample_back(
        g: torch.Tensor, shape: Sequence[int], size: Sequence[int], *rest: Any
    ) -> torch.Tensor:
        """Return the transpose, by matrices where the backward kernel would ignore the scale."""
        # the last options are the scales, one for each spatial dimension
        if _takes_another_way(name, shape[2:], size, rest[len(rest) - spatial :]):
            return _by_matrices(forward, g, shape[2:], size, rest)
        gradient: torch.Tensor = backward(g, size, shape, *rest)
        return gradient

    linear(
        name,
        {"self": asking("g", "self_shape", "output_size", *options)(resample_back)},
        fold(spatial + 2),
        cost=cost,
    )
    linear(
        f"{name}_backward",
        {
            "grad_output": asking("g", "output_size", *options)(
                lambda g, size, *rest: forward(g, size, *rest)
            )
        },
        fold(spatial + 2, size_at=2),
    )


def _takes_another_way(
    name: str, input_size: Sequence[int], output_size: Sequence[int], scales: Sequence[float | None]
) -> bool:
    """Return whether the kernel of the gradient reads the sizes alone, but that of the result takes
    a scale that does not fit them.

    3 elements by a scale of 1.3 are 3 elements. They are no copy of the old ones, but their
    gradient is that of a copy.
    """
    with_scale = [index for index, scale in enumerate(scales) if scale is not None]
    if name.startswith("upsample_nearest"):
        return any(_misleads_nearest(input_size[i], output_size[i], scales[i]) for i in with_scale)
    if "bicubic" in name or name.endswith("_aa"):
        return list(input_size) == list(output_size) and any(scales[i] != 1 for i in with_scale)
    return False


def _misleads_nearest(n: int, m: int, scale: float | None) -> bool:
    """Return whether the gradient of a nearest kernel copies or doubles ``n`` elements, and the
    scale is another."""
    seems_a_copy = m == n and scale != 1
    seems_doubled = m == 2 * n and scale != 2
    return seems_a_copy or seems_doubled


def _by_matrices(
    forward: object,
    g: torch.Tensor,
    input_size: Sequence[int],
    output_size: Sequence[int],
    rest: Sequence[object],
) -> torch.Tensor:
    """Return the transpose by a matrix for each dimension: what ``forward`` makes of images of one
    element."""
    spatial = len(input_size)
    options, scales = rest[: len(rest) - spatial], rest[len(rest) - spatial :]
    # the interpolation of an image is that of each of its dimensions, one after the other
    for d in range(spatial):
        if forward is overload(f"upsample_nearest{spatial}d"):
            matrix = _matrix_of_nearest(forward, g, input_size, output_size, scales, d)
        else:
            matrix = _matrix_of(forward, g, input_size[d], output_size[d], options, scales, d)
        g = (g.movedim(2 + d, -1) @ matrix.t()).movedim(-1, 2 + d)
    return g


def _matrix_of_nearest(
    forward: Callable[..., torch.Tensor],
    g: torch.Tensor,
    input_size: Sequence[int],
    output_size: Sequence[int],
    scales: Sequence[object],
    d: int,
) -> torch.Tensor:
    """Return what dimension ``d`` multiplies with, of a kernel that asks for the whole size."""
    n, m, behind = input_size[d], output_size[d], len(input_size) - 1 - d
    # Each element of the image is its own number, so the result says which ones were copied. In
    # double precision they are exact.
    numbers = torch.arange(n, dtype=torch.float64, device=g.device)
    ramp = numbers.reshape(n, *[1] * behind).expand(*input_size)
    image = forward(ramp.expand(1, 1, *input_size).contiguous(), list(output_size), *scales)[0, 0]
    taken = image.movedim(d, 0).reshape(m, -1)[:, 0]
    matrix: torch.Tensor = taken == torch.arange(n, device=g.device)[:, None]
    return matrix.to(g.dtype)


def _matrix_of(
    forward: Any,
    g: torch.Tensor,
    n: int,
    m: int,
    options: Sequence[object],
    scales: Sequence[object],
    d: int,
) -> torch.Tensor:
    """Return what dimension ``d`` multiplies with, for ``n`` elements to ``m``. The other
    dimensions of the images have one element, which has no scale."""
    image, size = [1] * len(scales), [1] * len(scales)
    scale: list[Any] = [None] * len(scales)
    image[d], size[d], scale[d] = n, m, scales[d]
    units = torch.eye(n, dtype=g.dtype, device=g.device).reshape(1, n, *image)
    matrix: torch.Tensor = forward(units, size, *options, *scale).reshape(n, m)
    return matrix


for _name, _spatial in {
    "upsample_nearest1d": 1,
    "upsample_nearest2d": 2,
    "upsample_nearest3d": 3,
    "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 2,
    "_upsample_nearest_exact3d": 3,
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_trilinear3d": 3,
    "upsample_bicubic2d": 2,
    "_upsample_bilinear2d_aa": 2,
    "_upsample_bicubic2d_aa": 2,
}.items():
    _upsample(_name, _spatial)

# Sampling on a grid. First derivatives have kernels.


def _sampled_3d(
    a: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> torch.Tensor:
    """Sample (N, C, D, H, W) at (N, …, 3) points, trilinear (0) or nearest (1). The coordinates of
    a point are x, y, z in [-1, 1]."""
    sizes = a.shape[:1:-1]
    points = [_source(grid[..., d], sizes[d], padding_mode, align_corners) for d in range(3)]
    # one index for each sample and each coordinate picks all channels at once
    lines = torch.arange(a.shape[0], device=a.device).reshape(-1, 1, 1, 1)
    channels_last = a.permute(0, 2, 3, 4, 1)

    def element(at: Sequence[torch.Tensor], weight: torch.Tensor | None) -> torch.Tensor:
        """Return the elements at whole coordinates, times ``weight``. Zero outside."""
        inside = torch.ones_like(at[0], dtype=torch.bool)
        for place, size in zip(at, sizes, strict=True):
            inside = inside & (place >= 0) & (place < size)
        # an index must be valid also where its element is dropped
        x, y, z = (torch.where(inside, place, 0).long() for place in at)
        scale = inside.to(a.dtype) if weight is None else torch.where(inside, weight, 0)
        return channels_last[lines, z, y, x] * scale.unsqueeze(-1)

    if interpolation_mode == 1:
        out = element([point.detach().round() for point in points], None)
    else:
        # the eight corners of the cell around a point, each with its weight
        low = [point.detach().floor() for point in points]
        part = [point - corner for point, corner in zip(points, low, strict=True)]
        out = add_present(*(element(*_corner(low, part, bits)) for bits in range(8)))
    return out.permute(0, 4, 1, 2, 3)


def _corner(
    low: Sequence[torch.Tensor], part: Sequence[torch.Tensor], bits: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return a corner of the cells of points, and its weights. ``low``: the lowest corners.
    ``part``: how far the points are from them. ``bits``: in which dimensions to take the upper
    corner."""
    upper = [d for d in range(3) if bits >> d & 1]
    weight = torch.ones_like(part[0])
    for d in range(3):
        share = part[d] if d in upper else 1 - part[d]
        weight = weight * share
    at = list(low)
    for d in upper:
        at[d] = low[d] + 1
    return at, weight


def _source(x: torch.Tensor, n: int, padding_mode: int, align_corners: bool) -> torch.Tensor:
    """Return the position among ``n`` elements for a coordinate in [-1, 1], after padding: zeros
    (0), border (1) or reflection (2)."""
    # with `align_corners` -1 and 1 are the centres of the first and last element, else their edges
    if align_corners:
        x = (x + 1) / 2 * (n - 1)
        low, span = 0.0, n - 1.0
    else:
        x = ((x + 1) * n - 1) / 2
        low, span = -0.5, float(n)
    if padding_mode == 0:
        return x
    if padding_mode == 2:
        x = _reflect(x, low, span)
    return x.clamp(0, n - 1)


def _reflect(x: torch.Tensor, low: float, span: float) -> torch.Tensor:
    """Return positions reflected at ``low`` and ``low + span`` until they lie between."""
    if span == 0:
        return torch.zeros_like(x)
    past = (x - low).abs()
    flips = (past / span).detach().floor()
    return torch.where(flips % 2 == 0, past - flips * span, span - (past - flips * span)) + low


def _grid_sampler(name: str, rank: int) -> None:
    """Register a grid sampler, whose gradients have a kernel."""
    backward = overload(f"{name}_backward")

    def vjp(
        g: object,
        input: torch.Tensor,
        grid: torch.Tensor,
        interpolation_mode: object,
        padding_mode: object,
        align_corners: object,
        needs: frozenset[str],
    ) -> Any:
        """Return the gradients by input and grid that are wanted."""
        mask = ["input" in needs, "grid" in needs]
        return backward(g, input, grid, interpolation_mode, padding_mode, align_corners, mask)

    register(name, vjp={("input", "grid"): vjp}, batch=fold(rank), cost="high", family="resampling")


# By name: the number of dimensions, and the sampling in plain ops.
# `runtime.func.grid_sampler_backward` derives the backward from it.
GRID_SAMPLERS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "grid_sampler_2d": (4, sampled_2d),
    "grid_sampler_3d": (5, _sampled_3d),
}
for _name, (_rank, _) in GRID_SAMPLERS.items():
    _grid_sampler(_name, _rank)

# Patches

linear(
    "im2col",
    {
        "self": lambda g, self_shape, kernel_size, dilation, padding, stride: aten.col2im(
            g, self_shape[-2:], kernel_size, dilation, padding, stride
        )
    },
    fold(4),
)
linear(
    "col2im",
    {
        "self": lambda g, kernel_size, dilation, padding, stride: aten.im2col(
            g, kernel_size, dilation, padding, stride
        )
    },
    fold(3),
)

# Channels

linear(
    "pixel_shuffle",
    {"self": lambda g, upscale_factor: torch.pixel_unshuffle(g, upscale_factor)},
    shaped_by_one(same),
)
linear(
    "pixel_unshuffle",
    {"self": lambda g, downscale_factor: torch.pixel_shuffle(g, downscale_factor)},
    shaped_by_one(same),
)


def _channel_shuffle_batch(
    func: Kernel, size: int, batched: object, args: Arguments, kwargs: object
) -> object:
    return func(args[0].flatten(0, 1), *args[1:]).unflatten(0, args[0].shape[:2])


linear(
    "channel_shuffle",
    {"self": lambda g, groups: torch.channel_shuffle(g, g.shape[1] // groups)},
    _channel_shuffle_batch,
)
