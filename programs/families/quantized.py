"""Quantized numbers: whole numbers that stand for a scale times their distance from a zero point.

    per_tensor(mark, made="quint8", zero=7)      # of lines of several widths and scales

``made`` says of which dtype the whole numbers are. The definition is plain Python: the zero point
is added to a number over the scale, the sum is rounded, half to even, and stays inside of the
range. A ``fake_quantize`` of torch is documented to round before it adds.
Scales are powers of two, so that numbers half between two whole ones are so in each precision.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from programs.families.tools import Results, Row

Line = list[float]
SINGLE = torch.float32
"""The dtype of numbers that torch quantizes, whatever the precision of a check is."""
SHAPES = ((5, "rows", 0.5), (33, "columns", 0.25), (70, "with_gaps", 2.0))
"""Widths of lines, their layouts and scales, which a row takes all."""
RANGES: dict[str, tuple[int, int]] = {
    "quint8": (0, 255),
    "qint8": (-128, 127),
    "qint32": (-(2**31), 2**31 - 1),
}
ZEROS: dict[str, Sequence[int]] = {
    "quint8": (0, 7, 128, 255),
    "qint8": (-128, -3, 0, 127),
    "qint32": (0, 5, -1000),
}
SPECIAL = (math.inf, -math.inf, 1e30, -1e30, 500.0, -500.0, -0.0)
"""Numbers outside of most ranges."""


def _line(width: int, scale: float) -> Line:
    """Return whole numbers, halves and quarters times the scale, and special numbers between."""
    line = [scale * ((7 * i + 3) % 41 - 20) / 4 for i in range(width)]
    for turn, place in enumerate(range(2, width, 4)):
        line[place] = SPECIAL[turn % len(SPECIAL)]
    return line


def _matrix(width: int, scale: float) -> list[Line]:
    """Return three lines: the numbers, the same from behind, and turned by one."""
    line = _line(width, scale)
    return [line, line[::-1], line[1:] + line[:1]]


def _laid_out(x: Tensor, how: str) -> Tensor:
    """Return equal numbers in another layout."""
    if how == "columns":
        return x.t().contiguous().t()
    if how == "with_gaps":
        return x.repeat_interleave(2, 1)[:, ::2]
    return x


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a tensor that shows the dtype alone, and how numbers are quantized."""
    return _samples(RANGES)


def samples_of_bytes(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return the same for whole numbers of one byte."""
    return _samples(("quint8", "qint8"))


def _samples(words: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {"args": [{"shape": [2]}], "kwargs": {"made": made, "zero": zero}}
        for made in words
        for zero in ZEROS[made]
    ]


# --- the definition -------------------------------------------------------------------------------


def rounds_last(number: float, scale: float, zero: int) -> float:
    """Return the whole number that stands for a number, wherever the range ends."""
    if math.isinf(number):
        return number
    return round(number / scale + zero)


def rounds_first(number: float, scale: float, zero: int) -> float:
    """Return the same by the documentation of ``fake_quantize_*``."""
    if math.isinf(number):
        return number
    return round(number / scale) + zero


Rounding = Callable[[float, float, int], float]


def _wholes(
    lines: list[Line],
    scales: Sequence[float],
    zero: int,
    made: str,
    rounding: Rounding = rounds_last,
) -> Tensor:
    """Return whole numbers inside of the range, a scale for each line."""
    low, high = RANGES[made]
    return torch.tensor(
        [
            [int(min(max(rounding(number, scale, zero), low), high)) for number in line]
            for line, scale in zip(lines, scales, strict=True)
        ]
    )


def _meant(wholes: Tensor, scales: Sequence[float], zero: int) -> Tensor:
    """Return the numbers for which whole numbers stand."""
    factors = torch.tensor(scales, dtype=torch.float64)[:, None]
    meant = (wholes - zero).to(torch.float64) * factors
    return meant.to(torch.float32).to(torch.float64)


# --- rows -----------------------------------------------------------------------------------------


def _by_channel(scale: float) -> list[float]:
    return [scale, 2 * scale, scale / 2]


def _one_scale(scale: float) -> list[float]:
    return [scale] * 3


def _quantized(x: Tensor, scales: list[float], zero: int, made: str, axis: int | None) -> Tensor:
    """Return numbers quantized by torch. `axis`: the dimension of channels."""
    dtype = getattr(torch, made)
    if axis is None:
        return torch.quantize_per_tensor(x, scales[0], zero, dtype)
    zeros = torch.full((3,), zero)
    per_channel = torch.tensor(scales, dtype=torch.float64)
    if axis:
        return torch.quantize_per_channel(x.t(), per_channel, zeros, 1, dtype).t()
    return torch.quantize_per_channel(x, per_channel, zeros, 0, dtype)


def _row(
    scales_of: Callable[[float], list[float]],
    axis: int | None = None,
    then: Callable[[Any], Any] = lambda x: x,
) -> Row:
    """Return the row of quantized numbers. `then`: a function that moves or compares numbers."""

    def program(
        mark: Tensor, *, made: str, scale: float, zero: int, width: int, how: str
    ) -> Results:
        x = _laid_out(torch.tensor(_matrix(width, scale), dtype=SINGLE), how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.quantize_* is said to go
            found = then(_quantized(x, scales_of(scale), zero, made, axis))
            return found.int_repr().to(torch.int64), found.dequantize().to(torch.float64)

    def definition(
        mark: Tensor, *, made: str, scale: float, zero: int, width: int, how: str
    ) -> Results:
        scales = scales_of(scale)
        wholes = _wholes(_matrix(width, scale), scales, zero, made)
        return then(wholes), then(_meant(wholes, scales, zero))

    return Row(program, definition, may_refuse=True)


THEN: dict[str, Callable[[Any], Any]] = {
    "turned": lambda x: x.t(),
    "sliced": lambda x: x[1:],
    "picked": lambda x: x[2],
    "columns": lambda x: x[:, ::2],
    "reshaped": lambda x: x.reshape(-1),
    "unsqueezed": lambda x: x.unsqueeze(1),
    "copied": lambda x: x.clone(),
    "packed": lambda x: x.t().contiguous(),
    "selected": lambda x: x.index_select(0, torch.tensor([2, 0])),
    "turned_twice": lambda x: x.transpose(0, 1).transpose(0, 1),
    "stepped": lambda x: x.as_strided((2, 1), (1, 1)) if x.numel() > 2 else x[:2],
    "largest": lambda x: x.max(),
    "smallest": lambda x: x.min(),
    "sorted": lambda x: x.sort(1).values,
    "flipped": lambda x: x.flip(0),
    "joined": lambda x: torch.cat([x, x]),
    "split": lambda x: x.split(2)[0],
    "masked": lambda x: x[torch.tensor([True, False, True])],
}
"""Functions that move numbers or choose some, so that whole numbers move alike."""


# --- numbers that are quantized and taken back, with gradients ------------------------------------


def _fake_row(by_torch: Callable[..., Tensor], scales_of: Callable[[float], list[float]]) -> Row:
    """Return the row of a rounding to the numbers that whole ones stand for."""

    def program(
        mark: Tensor, *, made: str, scale: float, zero: int, width: int, how: str
    ) -> Results:
        x = _laid_out(torch.tensor(_matrix(width, scale), dtype=SINGLE), how)
        x = x.detach().requires_grad_()
        found = by_torch(x, scales_of(scale), zero, *RANGES[made])
        (slope,) = torch.autograd.grad(found, x, _weights(x))
        return found.detach().to(torch.float64), slope

    def definition(
        mark: Tensor, *, made: str, scale: float, zero: int, width: int, how: str
    ) -> Results:
        scales, lines = scales_of(scale), _matrix(width, scale)
        found = _meant(_wholes(lines, scales, zero, made, rounds_first), scales, zero)
        inside = _inside(lines, scales, zero, made, rounds_first)
        return found, inside * _weights(found).to(SINGLE)

    return Row(program, definition)


def _inside(
    lines: list[Line], scales: Sequence[float], zero: int, made: str, rounding: Rounding
) -> Tensor:
    """Return 1 for a number that is rounded, and 0 for one that is moved to an end."""
    low, high = RANGES[made]
    return torch.tensor(
        [
            [float(low <= rounding(number, scale, zero) <= high) for number in line]
            for line, scale in zip(lines, scales, strict=True)
        ]
    )


def _weights(x: Tensor) -> Tensor:
    return (torch.arange(x.numel()) % 5 + 1).to(x.dtype).reshape(x.shape)


def _learnable_row(scales_of: Callable[[float], list[float]], by_channel: bool) -> Row:
    """Return the row of a rounding with gradients by the scale and the zero point."""

    def program(
        mark: Tensor, *, made: str, scale: float, zero: int, width: int, how: str
    ) -> Results:
        x = _laid_out(torch.tensor(_finite(width, scale), dtype=SINGLE), how)
        x = x.detach().requires_grad_()
        scales = torch.tensor(scales_of(scale)[: 3 if by_channel else 1]).requires_grad_()
        zeros = torch.full((len(scales),), float(zero)).requires_grad_()
        found = _learnable(x, scales, zeros, RANGES[made], by_channel)
        slopes = torch.autograd.grad(found, [x, scales, zeros], _weights(x))
        return found.detach().to(torch.float64), *(one.to(torch.float64) for one in slopes)

    def definition(
        mark: Tensor, *, made: str, scale: float, zero: int, width: int, how: str
    ) -> Results:
        scales, lines = scales_of(scale), _finite(width, scale)
        found = _meant(_wholes(lines, scales, zero, made), scales, zero)
        weights = _weights(found)
        inside = _inside(lines, scales, zero, made, rounds_last).to(torch.float64)
        numbers, factors = torch.tensor(lines, dtype=torch.float64), torch.tensor(scales)[:, None]
        # a whole number less the number that it is rounded from, and an end less the zero point
        by_scale = (found / factors - inside * numbers / factors) * weights
        by_zero = -(1 - inside) * factors * weights
        slopes = [one.sum(1) if by_channel else one.sum()[None] for one in (by_scale, by_zero)]
        return found, inside * weights, *(one.to(torch.float64) for one in slopes)

    return Row(program, definition, may_refuse=True)


def _finite(width: int, scale: float) -> list[Line]:
    """Return the lines without infinities, and without numbers half between two whole ones."""
    return [
        [min(max(number, -500.0), 500.0) + scale / 8 for number in line]
        for line in _matrix(width, scale)
    ]


def _learnable(
    x: Tensor, scales: Tensor, zeros: Tensor, ends: tuple[int, int], by_channel: bool
) -> Tensor:
    if by_channel:
        return torch._fake_quantize_learnable_per_channel_affine(x, scales, zeros, 0, *ends, 1.0)
    return torch._fake_quantize_learnable_per_tensor_affine(x, scales, zeros, *ends, 1.0)


def _fake_per_channel(x: Tensor, scales: list[float], zero: int, low: int, high: int) -> Tensor:
    zeros = torch.full((3,), zero, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, torch.tensor(scales), zeros, 0, low, high)


def _fake_by_tensors(x: Tensor, scales: list[float], zero: int, low: int, high: int) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(scales[0]), torch.tensor(zero, dtype=torch.int32), low, high
    )


def _over_shapes(row: Row) -> Row:
    """Return a row as one of all widths, layouts and scales."""

    def program(mark: Tensor, *, made: str, zero: int) -> Results:
        return _in_turn(row.program, mark, made, zero)

    def definition(mark: Tensor, *, made: str, zero: int) -> Results:
        return _in_turn(row.definition, mark, made, zero)

    return Row(program, definition, row.may_refuse)


def _in_turn(f: Callable[..., Results], mark: Tensor, made: str, zero: int) -> Results:
    found: list[Tensor] = []
    for width, how, scale in SHAPES:
        found += f(mark, made=made, zero=zero, width=width, how=how, scale=scale)
    return tuple(found)


def _rows() -> dict[str, Row]:
    return {
        "per_tensor": _row(_one_scale),
        "per_channel": _row(_by_channel, 0),
        "per_channel_1": _row(_by_channel, 1),
        "rounded": _fake_row(
            lambda x, scales, *rest: torch.fake_quantize_per_tensor_affine(x, scales[0], *rest),
            _one_scale,
        ),
        "rounded_by_tensors": _fake_row(_fake_by_tensors, _one_scale),
        "rounded_per_channel": _fake_row(_fake_per_channel, _by_channel),
        "learnable": _learnable_row(_one_scale, False),
        "learnable_per_channel": _learnable_row(_by_channel, True),
    } | {f"then_{name}": _row(_one_scale, None, f) for name, f in THEN.items()}


globals().update({name: _over_shapes(row) for name, row in _rows().items()})
