"""Interpolation, grids, patches and shuffled channels."""

import pytest
import torch

from runtime import func
from tests.runtime.rules.agreement import check

OPS = (
    "nn.functional.grid_sample",
    "nn.functional.unfold",
    "nn.functional.pixel_shuffle",
    "nn.functional.pixel_unshuffle",
    "nn.functional.channel_shuffle",
    "grid_sampler_3d",
)


@pytest.mark.parametrize("name", OPS)
def test_agrees_with_the_engine(name: str) -> None:
    check(name, torch.float64, limit=2)


@pytest.mark.parametrize(
    "mode", ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area")
)
def test_interpolate(mode: str) -> None:
    check("nn.functional.interpolate", torch.float64, mode, limit=2)


@pytest.mark.parametrize("padding_mode", ("zeros", "border", "reflection"))
@pytest.mark.parametrize("align_corners", (False, True))
def test_second_derivatives_of_sampling_in_three_dimensions(
    padding_mode: str, align_corners: bool
) -> None:
    """torch's kernel gives the first derivative; the derivative of that comes from the sampling
    written out, which must be the same op."""
    x, grid = (
        torch.randn(2, 2, 3, 4, 5, dtype=torch.float64),
        torch.rand(2, 2, 2, 3, 3, dtype=torch.float64) * 3 - 1.5,
    )

    def f(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return (
            torch.nn.functional.grid_sample(x, grid, "bilinear", padding_mode, align_corners)
            .square()
            .sum()
        )

    gradient = func.grad(f, (0, 1))
    directions = (torch.randn_like(x), torch.randn_like(grid))
    step = 1e-6
    ahead = gradient(x + step * directions[0], grid + step * directions[1])
    behind = gradient(x - step * directions[0], grid - step * directions[1])
    expected = tuple((a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True))
    torch.testing.assert_close(
        func.jvp(gradient, (x, grid), directions)[1], expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("mode", "shape", "factor", "smooth"),
    [
        *(
            ("nearest", shape, factor, False)
            for shape in ((3,), (3, 2, 3))
            for factor in (1.3, 2.3)
        ),
        ("nearest", (40, 40), 2.01, False),
        *(
            (mode, (3, 3), 1.3, smooth)
            for mode, smooth in (("bicubic", False), ("bicubic", True), ("bilinear", True))
        ),
        ("bicubic", (3, 5), 1.3, False),
    ],
)
def test_the_gradient_takes_the_scale_that_the_result_takes(
    mode: str, shape: tuple[int, ...], factor: float, smooth: bool
) -> None:
    """The sizes alone are those of a copy, or of one that shows each element twice, and torch's
    kernel takes it for one."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode, antialias=smooth)

    x, direction = torch.randn(2, 1, 2, *shape, dtype=torch.float64)
    out, pullback = func.vjp(f, x)
    cotangent = torch.randn_like(out)
    (gradient,) = pullback(cotangent)
    torch.testing.assert_close((gradient * direction).sum(), (f(direction) * cotangent).sum())
    batch = func.vmap(lambda c: pullback(c)[0])(torch.stack([cotangent, 2 * cotangent]))
    torch.testing.assert_close(batch, torch.stack([gradient, 2 * gradient]))
    torch.testing.assert_close(
        func.jvp(lambda c: pullback(c)[0], (cotangent,), (cotangent,))[1], gradient
    )
