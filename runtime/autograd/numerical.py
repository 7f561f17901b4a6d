"""Derivatives by central differences: what ``gradcheck`` compares the tape and the tangents with.

A Jacobian has one row per element of the input and one column per element of the output. Inputs are perturbed in place, below the tape
and without a change of their version, and are given their values back. A real function of a complex number has two derivatives; they
are put together as the tape does, ``d/dx + i d/dy``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch

from ..levels import Value

Outputs = Callable[[], Sequence[Any]]


def plain(t: Any) -> torch.Tensor:
    """The tensor under a value of level zero, without history."""
    from ..tensor import unwrap

    return unwrap(t).detach() if isinstance(t, Value) else t.detach()


def memory_of(x: Any) -> torch.Tensor:
    """``x``'s own memory, to be written without anybody noticing."""
    data: torch.Tensor = plain(x).data
    return data


def _snapshot(outputs: Outputs) -> list[torch.Tensor]:
    found = [plain(o).clone() for o in outputs()]
    return [o if o.is_floating_point() or o.is_complex() else o.double() for o in found]


def along(outputs: Outputs, x: Any, direction: torch.Tensor, eps: float, where: str = "") -> list[torch.Tensor]:
    """The derivatives of all outputs as ``x`` moves along ``direction``. ``where`` says in an error which element moves."""
    data = memory_of(x)
    before = data.clone()
    try:
        data.copy_(before - eps * direction)
        low = _snapshot(outputs)
        data.copy_(before + eps * direction)
        high = _snapshot(outputs)
    finally:
        data.copy_(before)
    for a, b in zip(low, high, strict=True):
        for what in ("shape", "dtype"):
            if getattr(a, what) != getattr(b, what):
                raise AssertionError(
                    f"Expected `func` to return outputs with the same {what} when inputs are perturbed {where}by {eps}, "
                    f"but got: {what}s {getattr(a, what)} and {getattr(b, what)}."
                )
    return [(b - a) / (2 * eps) for a, b in zip(low, high, strict=True)]


def one_hots(x: Any) -> Iterator[torch.Tensor]:
    """For each element of ``x`` a tensor of its shape that is one there and zero elsewhere."""
    for index in product(*map(range, x.shape)):
        step = plain(x).new_zeros(x.shape)
        step[index] = 1
        yield step


def jacobian(outputs: Outputs, x: Any, eps: float) -> list[torch.Tensor]:
    """The Jacobian of each output by ``x``, (elements of x, elements of output). With complex ``x`` the outputs must be real."""
    rows: list[list[torch.Tensor]] = []
    for index, step in zip(product(*map(range, x.shape)), one_hots(x), strict=True):
        where = f"on index {index} "
        moved = along(outputs, x, step, eps, where)
        if x.is_complex():
            moved = [a + 1j * b for a, b in zip(moved, along(outputs, x, 1j * step, eps, where), strict=True)]
        rows.append([m.reshape(-1) for m in moved])
    if not rows:
        return [o.new_zeros(0, o.numel()) for o in _snapshot(outputs)]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def vector_product(outputs: Outputs, x: Any, u: Sequence[torch.Tensor], eps: float) -> list[torch.Tensor]:
    """Each Jacobian times a direction in the space of ``x``: ``u`` holds one for the real and, of complex ``x``, one for the
    imaginary axis; the two derivatives become real and imaginary part."""
    real = along(outputs, x, u[0].reshape(x.shape).to(x.dtype), eps)
    if not x.is_complex():
        return real
    imaginary = along(outputs, x, 1j * u[1].reshape(x.shape), eps)
    return [a + 1j * b for a, b in zip(real, imaginary, strict=True)]
