"""Fused steps of optimizers, on new lists and in place, beside the formulas of one parameter."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten
_RATE, _BETA1, _BETA2, _DECAY, _EPS = 0.1, 0.8, 0.9, 0.05, 1e-6
_ADAM: dict[str, Any] = {
    "beta1": _BETA1, "beta2": _BETA2, "weight_decay": _DECAY, "eps": _EPS, "amsgrad": False,
    "maximize": False,
}  # fmt: skip


def _rates(x: Tensor) -> list[tuple[str, object]]:
    """Return the rate as a number and as a tensor, each with the name of the overload."""
    return [("default", _RATE), ("tensor_lr", torch.tensor(_RATE, dtype=torch.float64))]


def _pair(x: Tensor) -> list[Tensor]:
    """Return two parameters, or what belongs to them."""
    return [x.clone(), x.flip(0).contiguous()]


def _of_adam(functional: Any, in_place: Any, *tensors: Tensor) -> list[Tensor]:
    results: list[Tensor] = []
    for name, rate in _rates(tensors[0]):

        def lists() -> list[list[Tensor]]:
            steps = [torch.tensor(3.0) for _ in range(2)]
            return [*map(_pair, tensors), [], steps]

        new = getattr(functional, name)(*lists(), lr=rate, **_ADAM)
        results += [*new[0], *new[2], *new[3]]
        given = lists()
        getattr(in_place, name)(*given, lr=rate, **_ADAM)
        results += [*given[0], *given[2], *given[3]]
    return results


def adam_steps(x: Tensor, slope: Tensor, mean: Tensor, square: Tensor) -> list[Tensor]:
    """Return parameters and moments after a step of Adam."""
    return _of_adam(_aten._fused_adam, _aten._fused_adam_, x, slope, mean, square)


def adamw_steps(x: Tensor, slope: Tensor, mean: Tensor, square: Tensor) -> list[Tensor]:
    """Return parameters and moments after a step of AdamW."""
    return _of_adam(_aten._fused_adamw, _aten._fused_adamw_, x, slope, mean, square)


def _adam(values: list[Tensor], decoupled: bool) -> list[Tensor]:
    x, slope, mean, square = values
    if decoupled:
        x = x - _RATE * _DECAY * x
    else:
        slope = slope + _DECAY * x
    mean = _BETA1 * mean + (1 - _BETA1) * slope
    square = _BETA2 * square + (1 - _BETA2) * slope * slope
    root = (square / (1 - _BETA2**3)).sqrt() + _EPS
    return [x - _RATE * (mean / (1 - _BETA1**3)) / root, mean, square]


def _of_each(tensors: tuple[Tensor, ...], decoupled: bool) -> list[Tensor]:
    first, second = zip(*map(_pair, tensors), strict=True)
    moved = zip(_adam(list(first), decoupled), _adam(list(second), decoupled), strict=True)
    return [one for pair in moved for one in pair] * 4


def adam_steps_by_definition(*tensors: Tensor) -> list[Tensor]:
    """Return the same by the formulas of Adam, the third step."""
    return _of_each(tensors, decoupled=False)


def adamw_steps_by_definition(*tensors: Tensor) -> list[Tensor]:
    """Return the same by the formulas of AdamW, the third step."""
    return _of_each(tensors, decoupled=True)


def sgd_steps(x: Tensor, slope: Tensor, momentum: Tensor) -> list[Tensor]:
    """Return parameters and momenta after a step with momentum."""
    options = {
        "weight_decay": _DECAY, "momentum": 0.7, "dampening": 0.2, "nesterov": False,
        "maximize": False, "is_first_step": False,
    }  # fmt: skip
    results: list[Tensor] = []
    for name, rate in _rates(x):
        new = getattr(_aten._fused_sgd, name)(
            _pair(x), _pair(slope), _pair(momentum), lr=rate, **options
        )
        results += [*new[0], *new[2]]
        given = [_pair(x), _pair(slope), _pair(momentum)]
        getattr(_aten._fused_sgd_, name)(*given, lr=rate, **options)
        results += [*given[0], *given[2]]
    return results


def sgd_steps_by_definition(x: Tensor, slope: Tensor, momentum: Tensor) -> list[Tensor]:
    """Return the same by the formula of momentum."""
    momenta, parameters = [], []
    for p, g, m in zip(_pair(x), _pair(slope), _pair(momentum), strict=True):
        m = 0.7 * m + (1 - 0.2) * (g + _DECAY * p)
        momenta.append(m)
        parameters.append(p - _RATE * m)
    return [*parameters, *momenta] * 4


def adagrad_steps(x: Tensor, slope: Tensor, square: Tensor) -> list[Tensor]:
    """Return parameters and sums after a step of Adagrad."""
    options = {"lr_decay": 0.1, "weight_decay": _DECAY, "eps": _EPS, "maximize": False}
    results: list[Tensor] = []
    for name, rate in _rates(x):

        def lists() -> list[list[Tensor]]:
            steps = [torch.tensor(3.0) for _ in range(2)]
            return [_pair(x), _pair(slope), _pair(square), steps]

        new = getattr(_aten._fused_adagrad, name)(*lists(), lr=rate, **options)
        results += [*new[0], *new[2]]
        given = lists()
        getattr(_aten._fused_adagrad_, name)(*given, lr=rate, **options)
        results += [*given[0], *given[2]]
    return results


def adagrad_steps_by_definition(x: Tensor, slope: Tensor, square: Tensor) -> list[Tensor]:
    """Return the same by the formula of Adagrad, the third step."""
    sums, parameters = [], []
    for p, g, total in zip(_pair(x), _pair(slope), _pair(square), strict=True):
        g = g + _DECAY * p
        total = total + g * g
        sums.append(total)
        parameters.append(p - _RATE / (1 + 2 * 0.1) * g / (total.sqrt() + _EPS))
    return [*parameters, *sums] * 4


def scaled_gradients(x: Tensor) -> list[Tensor]:
    """Return gradients without their scale, whether one was infinite, and the next scale."""
    scale, growth = torch.tensor(4.0), torch.tensor(1, dtype=torch.int32)
    found, inverse = torch.tensor(0.0), torch.tensor(0.25)
    lists = _pair(x)
    _aten._amp_foreach_non_finite_check_and_unscale_.default(lists, found, inverse)
    new, seen = _aten._amp_foreach_non_finite_check_and_unscale.default(
        _pair(x), torch.tensor(0.0), inverse
    )
    next_scale, next_growth = _aten._amp_update_scale.default(scale, growth, found, 2.0, 0.5, 2)
    return [*lists, found, *new, seen, next_scale, next_growth]


def scaled_gradients_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same: a finite step after another one doubles the scale."""
    rows = [one / 4 for one in _pair(x)]
    done = [torch.tensor(0.0)]
    return [*rows, *done, *rows, *done, torch.tensor(8.0), torch.tensor(0, dtype=torch.int32)]
