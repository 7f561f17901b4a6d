"""Products of narrow numbers, observers, and kernels behind fronts, beside plain products."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten


def _whole(x: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    """Return whole numbers between `low` and `high` that follow from the elements of `x`."""
    span = high - low + 1
    return ((x * 1000).round().long() % span + low).to(dtype)


def narrow_products(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return products of matrices in 4, 8 and 16 bits. x (32, 32), y (32, 32)."""
    whole, other = _whole(x, -9, 9, torch.int8), _whole(y, -9, 9, torch.int8)
    one = torch.tensor(1.0, device=x.device)
    eights, others = x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn)
    small = _whole(x, -3, 3, torch.bfloat16)
    half, third = small[None, :16], _whole(y, -3, 3, torch.bfloat16)[None, :, :16]
    weights = _whole(y, 0, 15, torch.int32)
    packed = _aten._convert_weight_to_int4pack_for_cpu.default(weights, 2)
    levels = torch.stack([x.new_ones(1, 32), x.new_zeros(1, 32)], -1)
    return [
        _aten._int_mm.default(whole, other),
        _aten._scaled_mm.default(eights, others.t(), one, one, None, None, torch.float32),
        _aten._grouped_mm.default(half.contiguous(), third.contiguous()),
        _aten._weight_int8pack_mm.default(small, other, small.new_ones(32)),
        _aten._weight_int4pack_mm_for_cpu.default(x, packed, 32, levels),
    ]


def narrow_products_by_definition(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the same by sums of products in double precision."""

    def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.einsum("ij,jk->ik", a.double(), b.double()).to(dtype)

    whole, other = _whole(x, -9, 9, torch.int8), _whole(y, -9, 9, torch.int8)
    eights, others = x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn)
    small, third = _whole(x, -3, 3, torch.bfloat16), _whole(y, -3, 3, torch.bfloat16)
    weights = _whole(y, 0, 15, torch.int32) - 8
    return [
        product(whole, other, torch.int32),
        product(eights, others.t(), torch.float32),
        product(small[:16], third[:, :16], torch.bfloat16)[None],
        product(small, other.t(), torch.bfloat16),
        product(x, weights.t(), torch.float32),
    ]


def observers(x: Tensor) -> list[Tensor]:
    """Return numbers that were rounded to a range that follows them. x (3, 4)."""
    results: list[Tensor] = []
    for call in (
        _aten._fused_moving_avg_obs_fq_helper.default,
        _aten.fused_moving_avg_obs_fake_quant.default,
    ):
        given = _observer(x)
        found = call(x, *given, 0.5, 0, 255, 0)
        results += [found if isinstance(found, Tensor) else found[0], *given[2:4]]
    found = _aten._fused_moving_avg_obs_fq_helper_functional.default(
        x, *_observer(x), 0.5, 0, 255, 0
    )
    return [*results, found[0], *found[2:4]]


def _observer(x: Tensor) -> list[Tensor]:
    """Return the state of an observer that has seen numbers from −1 to 1."""
    on = torch.tensor([1])
    zero = torch.tensor([0], dtype=torch.int32)
    return [on, on.clone(), x.new_tensor([-1.0]), x.new_tensor([1.0]), x.new_ones(1), zero]


def observers_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by means of ends, and by rounding."""
    low = -1.0 + 0.5 * (float(x.min()) + 1.0)
    high = 1.0 + 0.5 * (float(x.max()) - 1.0)
    scale = (max(high, 0.0) - min(low, 0.0)) / 255
    zero = round(-min(low, 0.0) / scale)
    rounded = ((x / scale).round() + zero).clamp(0, 255).sub(zero) * scale
    return [rounded, x.new_tensor([low]), x.new_tensor([high])] * 3


def behind_fronts(x: Tensor) -> list[Tensor]:
    """Return what kernels behind the fronts of Python give. x (3, 3)."""
    image, zero = x[None, None], torch.zeros_like(x)
    grid = torch.stack(
        torch.meshgrid(torch.linspace(-1, 1, 3), torch.linspace(-1, 1, 3), indexing="xy"), -1
    )[None].to(x.dtype)
    first, *others = _aten._transform_bias_rescale_qkv.default(x[None], x.new_zeros(3), 1)
    return [
        *_aten._foreach_powsum.Scalar([x, x + 1], 3),
        _aten._grid_sampler_2d_cpu_fallback.default(image, grid, 0, 0, True)[0, 0],
        _aten.matrix_exp_backward.default(zero, x),
        _aten._gather_sparse_backward.default(
            x, 1, torch.zeros(3, 1, dtype=torch.int64), x[:, :1]
        ).to_dense(),
        _aten._upsample_lanczos2d_aa.default(image, [3, 3], False, None, None)[0, 0],
        _aten._upsample_lanczos2d_aa.vec(image, [3, 3], False, None)[0, 0],
        first[0, 0],
        *(one[0, 0] for one in others),
        torch.tensor(_aten._fused_sdp_choice.default(image, image, image) in (0, 1, 2)),
        _aten._cholesky_solve_helper.default(x, torch.eye(3, dtype=x.dtype) * 2, False),
    ]


def behind_fronts_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same: powers, copies at the same places, thirds of rows."""
    gathered = torch.zeros_like(x)
    gathered[:, 0] = x[:, 0]
    return [
        (x.abs() ** 3).sum(), ((x + 1).abs() ** 3).sum(), x, x, gathered, x, x, x[:, :1],
        x[:, 1:2], x[:, 2:], torch.tensor(True), x / 4,
    ]  # fmt: skip


def laws(x: Tensor) -> list[Tensor]:
    """Return draws of certain laws, which leave nothing to chance, and slopes. x (2, 3)."""
    many = torch.full_like(x, 8)
    shares = _aten._sample_dirichlet.default(many)
    slope = _aten._dirichlet_grad.default(shares, many, many.sum(-1, keepdim=True).expand_as(many))
    gamma = _aten._standard_gamma.default(many)
    return [
        shares.sum(-1),
        (shares > 0).all(),
        torch.isfinite(slope).all(),
        (gamma > 0).all(),
        _aten.binomial.default(many, torch.ones_like(x)),
        _aten.binomial.default(many, torch.zeros_like(x)),
        _aten.poisson.default(torch.zeros_like(x)),
        (_aten._standard_gamma_grad.default(many, gamma) > 0).all(),
        *(one.sort().values for one in (_aten.randperm.default(5), _aten.randperm.generator(
            5, generator=torch.Generator().manual_seed(3)))),
    ]  # fmt: skip


def laws_by_definition(x: Tensor) -> list[Tensor]:
    """Return what is certain: shares sum to one, and so on."""
    yes, places = torch.tensor(True), torch.tensor([0, 1, 2, 3, 4])
    none = torch.zeros_like(x)
    return [x.new_ones(2), yes, yes, yes, none + 8, none, none, yes, places, places]
