"""Constructors, facts and pools of quantized tensors, and fake quantization, beside rounding."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten
_SCALE, _ZERO = 0.25, 3
_LOW, _HIGH = -128, 127


def _code(x: Tensor, scale: object = _SCALE, zero: object = _ZERO) -> Tensor:
    """Return the whole numbers that stand for `x` in eight bits."""
    return (torch.round(x / scale) + zero).clamp(_LOW, _HIGH)  # type: ignore[operator]


def _value(x: Tensor, scale: object = _SCALE, zero: object = _ZERO) -> Tensor:
    """Return `x` as eight bits have it."""
    return (_code(x, scale, zero) - zero) * scale  # type: ignore[operator]


def _quantized(x: Tensor) -> Tensor:
    made: Tensor = _aten.quantize_per_tensor.default(x, _SCALE, _ZERO, torch.qint8)
    return made


def quantizers(x: Tensor) -> list[Tensor]:
    """Return numbers that were quantized by each overload. x (3, 4)."""
    scale, zero = torch.tensor(_SCALE), torch.tensor(_ZERO)
    scales = torch.tensor([0.25, 0.5, 0.125], dtype=torch.float64)
    zeros = torch.tensor([3, -2, 0])
    q = _quantized(x)
    rows = _aten.quantize_per_channel.default(x, scales, zeros, 0, torch.qint8)
    pair = _aten.quantize_per_tensor.tensors(
        [x, x + 1], torch.stack([scale, scale]), torch.stack([zero, zero]), torch.qint8
    )
    code = _aten.int_repr.default(q)
    made = _aten._make_per_tensor_quantized_tensor.default(code, _SCALE, _ZERO)
    row_code = _aten.int_repr.default(rows)
    made_rows = _aten._make_per_channel_quantized_tensor.default(row_code, scales, zeros, 0)
    return [
        _aten.dequantize.self(q),
        _aten.dequantize.self(
            _aten.quantize_per_tensor.tensor_qparams(x, scale, zero, torch.qint8)
        ),
        *_aten.dequantize.tensors(list(pair)),
        _aten.dequantize.self(rows),
        code.float(),
        _aten.dequantize.self(made),
        _aten.dequantize.self(made_rows),
        torch.tensor(_aten.q_scale.default(q)),
        torch.tensor(_aten.q_zero_point.default(q)),
        _aten.q_per_channel_scales.default(rows),
        _aten.q_per_channel_zero_points.default(rows),
        torch.tensor(_aten.q_per_channel_axis.default(rows)),
    ]


def quantizers_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by rounding."""
    scales = torch.tensor([0.25, 0.5, 0.125], dtype=torch.float64)
    zeros = torch.tensor([3, -2, 0])
    of_rows = torch.stack(
        [_value(row, s, z) for row, s, z in zip(x, scales.tolist(), zeros.tolist(), strict=True)]
    )
    return [
        _value(x), _value(x), _value(x), _value(x + 1), of_rows, _code(x), _value(x), of_rows,
        torch.tensor(_SCALE), torch.tensor(_ZERO), scales, zeros, torch.tensor(0),
    ]  # fmt: skip


def empty_quantized(x: Tensor) -> list[Tensor]:
    """Return quantized tensors of a size, filled afterwards, and dynamic parameters."""
    scales, zeros = torch.tensor([0.25, 0.5, 0.125], dtype=torch.float64), torch.zeros(3).long()
    kind = {"dtype": torch.qint8}
    one = _aten._empty_affine_quantized.default([3, 4], scale=_SCALE, zero_point=_ZERO, **kind)
    rows = _aten._empty_per_channel_affine_quantized.default(
        [3, 4], scales=scales, zero_points=zeros, axis=0, **kind
    )
    like = _aten.empty_quantized.default([3, 4], one)
    results = [target.copy_(x).dequantize() for target in (one, rows, like)]
    dynamic = _aten.quantize_per_tensor_dynamic.default(x, torch.qint8, False)
    chosen, zero = _aten._choose_qparams_per_tensor.default(x, False)
    error = (dynamic.dequantize() - x).abs().max() <= dynamic.q_scale()
    return [*results, error, torch.tensor(0.0 < chosen < 1.0 and 0 <= zero <= 255)]


def empty_quantized_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by rounding."""
    rows = torch.stack([_value(row, s, 0) for row, s in zip(x, (0.25, 0.5, 0.125), strict=True)])
    return [_value(x), rows, _value(x), torch.tensor(True), torch.tensor(True)]


def fake_quantizers(x: Tensor) -> list[Tensor]:
    """Return numbers as eight bits would have them, and where these are no limit."""
    scales, zeros = torch.tensor([0.25, 0.5, 0.125]), torch.tensor([3, -2, 0])
    scale, zero, on = torch.tensor(_SCALE), torch.tensor(_ZERO), torch.tensor(1)
    of_tensor = (_LOW, _HIGH)
    return [
        *_aten.fake_quantize_per_tensor_affine_cachemask.default(x, _SCALE, _ZERO, *of_tensor),
        *_aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default(
            x, scale, zero.int(), on, *of_tensor
        ),
        *_aten.fake_quantize_per_channel_affine_cachemask.default(
            x, scales, zeros.int(), 0, *of_tensor
        ),
        _aten._fake_quantize_learnable_per_tensor_affine.default(
            x, scale[None], zero[None].float(), *of_tensor
        ),
        _aten._fake_quantize_learnable_per_channel_affine.default(
            x, scales, zeros.float(), 0, *of_tensor
        ),
    ]


def fake_quantizers_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by rounding."""
    pairs = ((0.25, 3), (0.5, -2), (0.125, 0))
    rows = torch.stack([_value(row, *pair) for row, pair in zip(x, pairs, strict=True)])
    whole = torch.ones(3, 4, dtype=torch.bool)
    return [_value(x), whole, _value(x), whole, rows, whole, _value(x), rows]


def quantized_pools(x: Tensor) -> list[Tensor]:
    """Return maxima of windows of quantized numbers, and a norm of them. x (1, 2, 4, 4)."""
    q = _quantized(x)
    code = x.abs().max()
    one, two = x.new_ones(2), x.new_zeros(2)
    normed = _aten.quantized_batch_norm.default(q, one, two, two, one, 0.0, _SCALE, _ZERO)
    return [
        _aten.quantized_max_pool1d.default(_quantized(x[0]), [2], [2]).dequantize(),
        _aten.quantized_max_pool2d.default(q, [2, 2], [2, 2]).dequantize(),
        normed.dequantize(),
        code,
    ]


def quantized_pools_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same of the rounded numbers."""
    rounded = _value(x)
    rows = rounded[0].reshape(2, 4, 2, 2).amax(3)
    blocks = rounded.reshape(1, 2, 2, 2, 2, 2).amax((3, 5))
    return [rows, blocks, rounded, x.abs().max()]
