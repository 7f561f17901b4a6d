"""Computes Jacobians by the tape and by dual tensors, in the orientation of ``numerical``:
(elements of the input, elements of the output).

Example: of ``y = x.sum()`` with ``x`` of shape (2, 3) the Jacobian has shape (6, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..session.backward import grad
from . import forward_ad
from .numerical import dense, one_hots, plain, zeros


def as_tuple(result: object) -> tuple[Any, ...]:
    """Return the result of a function as a tuple of tensors."""
    outputs: tuple[Any, ...] = (result,)
    if isinstance(result, (tuple, list)):
        outputs = tuple(result)
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                "gradcheck: func must return a tensor or a sequence of tensors, "
                f"but there is a {type(output).__name__} among them"
            )
    return outputs


def pull(
    out: object, inputs: Sequence[object], cotangent: torch.Tensor
) -> list[torch.Tensor | None]:
    """Return plain dense gradients of ``inputs``, None for an input without a gradient."""
    # the caller pulls one cotangent after the other through the same graph
    grads = grad(out, inputs, cotangent, retain_graph=True, allow_unused=True)
    return [None if gradient is None else dense(gradient) for gradient in grads]


def jacobians_by_backward(
    out: object, inputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], bool]:
    """Return the Jacobian of ``out`` by each input, and whether all gradients had the dtype of
    their input. Each backward pass gives a column."""
    columns: list[list[torch.Tensor]] = [[] for _ in inputs]
    same_dtype = True
    for cotangent in one_hots(out):
        for x, g, column in zip(inputs, pull(out, inputs, cotangent), columns, strict=True):
            if g is None:
                column.append(zeros(x, x.numel()))
                continue
            same_dtype = same_dtype and g.dtype == x.dtype
            column.append(g.reshape(-1))
    # an output without elements has no column to stack
    jacobians = []
    for column, x in zip(columns, inputs, strict=True):
        if column:
            jacobians.append(torch.stack(column, 1))
        else:
            jacobians.append(zeros(x, x.numel(), 0))
    return jacobians, same_dtype


def push(
    func: Callable[..., Any], inputs: Sequence[Any], tangents: Mapping[int, Any]
) -> list[tuple[Any, Any]]:
    """Return (primal, tangent or None) of each output of ``func``. Inputs with a number in
    ``tangents`` are dual tensors."""
    with forward_ad.dual_level():
        # without the tape, whose nodes nobody would use
        args = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
        for index, tangent in tangents.items():
            args[index] = forward_ad.make_dual(args[index], tangent)
        unpacked = list(map(forward_ad.unpack_dual, as_tuple(func(*args))))
        return [(dual.primal, dual.tangent) for dual in unpacked]


def push_densely(
    func: Callable[..., object], inputs: Sequence[object], tangents: Mapping[int, object]
) -> list[torch.Tensor]:
    """Return the plain tangents of the outputs, zeros for an output without one."""
    plain_tangents = []
    for primal, tangent in push(func, inputs, tangents):
        if tangent is None:
            plain_tangents.append(torch.zeros_like(plain(primal)))
        else:
            plain_tangents.append(plain(tangent))
    return plain_tangents


def zero_tangents(inputs: Sequence[object], at: Sequence[int]) -> dict[int, torch.Tensor]:
    """Return a zero tangent for each input whose number is in ``at``."""
    return {index: torch.zeros_like(plain(inputs[index])) for index in at}


def jacobians_by_forward(
    func: Callable[..., object],
    inputs: Sequence[object],
    at: Sequence[int],
    index: int,
    outputs: Sequence[int],
) -> list[torch.Tensor]:
    """Return the Jacobians of the numbered outputs by the real input ``index``. Each forward pass
    gives a row. All inputs of ``at`` are dual."""
    x = inputs[index]
    # a formula may treat a missing tangent apart; `undefined_tangents` checks that it is a zero one
    still = zero_tangents(inputs, at)
    rows = []
    for direction in one_hots(x):
        row = push_densely(func, inputs, {**still, index: direction})
        rows.append([row[output].reshape(-1) for output in outputs])
    # an input without elements: a pass shows the sizes of the outputs
    if not rows:
        row = push_densely(func, inputs, still)
        return [row[output].new_zeros(0, row[output].numel()) for output in outputs]
    return list(map(torch.stack, zip(*rows, strict=True)))
