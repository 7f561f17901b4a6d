"""Push tangents through a function: the forward-mode transform ``jvp``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import NestedTensor
from ..seam.escapes import refuse_closed
from ..seam.levels import Value
from ..seam.scope import is_floating
from ..tape.foreign import pass_mark_on
from ..tape.running import with_forward_mode
from ..tape.view_history import aliases
from . import trees
from .dual_level import DualLevel, tangent_of
from .grad import check_outputs, outside_inference, versioned, with_aux
from .tangent_rules import fit


def own_memory(
    tensor: torch.Tensor, tangents: list[torch.Tensor], result: torch.Tensor
) -> torch.Tensor:
    """Return ``tensor``, the tangent of ``result``, or a copy of it that is safe to write to.

    It is copied if it shares memory with one of ``tangents``, those of the caller, or if its
    elements share memory and those of ``result`` do not.
    """
    geometry = zip(tensor.shape, tensor.stride(), result.stride(), strict=True)
    is_expanded = any(
        stride == 0 and stride_of_result != 0 and size > 1
        for size, stride, stride_of_result in geometry
    )
    if is_expanded:
        return tensor.clone(memory_format=torch.contiguous_format)
    # the caller may write to a tangent that it gave, or to one that it got
    if any(aliases(tensor, tangent) for tangent in tangents):
        return tensor.clone()
    return tensor


@outside_inference
def jvp(
    func: Callable[..., object],
    primals: trees.Tree,
    tangents: trees.Tree,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """Return ``func(*primals)`` and its derivative along ``tangents``, as ``torch.func.jvp``.

    >>> jvp(torch.sin, (torch.zeros(2),), (torch.tensor([1.0, 2.0]),))
    (tensor([0., 0.]), tensor([1., 2.]))

    ``primals``: a tuple of arguments, each a pytree of real or complex tensors. ``tangents``: the
    same structure and shapes. Each output gets a tangent of its own shape and dtype. An output that
    does not depend on the primals gets zeros, or with ``strict`` a ``RuntimeError``. ``has_aux``:
    ``func`` returns (outputs, aux), and ``jvp`` returns (outputs, tangents, aux).
    """
    flat, flat_t, spec = _check_arguments(primals, tangents)
    level = DualLevel()
    try:
        duals = trees.unflatten(
            [
                level.wrap(versioned(primal), fit(versioned(tangent), primal))
                for primal, tangent in zip(flat, flat_t, strict=True)
            ],
            spec,
        )
        outputs = with_forward_mode(level, func, duals)
        aux = None
        if has_aux:
            outputs, aux = with_aux("jvp(f, primals, tangents)", outputs)
        flat_out, out_spec = trees.flatten(outputs)
        check_outputs("jvp(f, primals, tangents)", flat_out)
        results, result_tangents = [], []
        for output in flat_out:
            refuse_closed(output, "the derivative")
            # a constant output is no value of the level, and has no tangent
            inner, tangent = output, None
            if isinstance(output, Value) and output._level is level:
                inner, tangent = output._inner, tangent_of(output)
            if tangent is None and strict:
                raise RuntimeError(
                    "jvp(f, primals, tangents, strict=True): The output of f is independent "
                    "of the inputs. With strict=False its tangent is zero."
                )
            results.append(inner)
            if tangent is None:
                result_tangents.append(torch.zeros_like(inner))
            else:
                result_tangents.append(own_memory(tangent, flat_t, inner))
        pass_mark_on(flat_out, (*results, *result_tangents))
        lowered = trees.map_tensors(level.lowered, aux)
    finally:
        level.close()
    out = trees.unflatten(results, out_spec), trees.unflatten(result_tangents, out_spec)
    if has_aux:
        return *out, lowered
    return out


def _check_arguments(
    primals: trees.Tree, tangents: trees.Tree
) -> tuple[list[torch.Tensor], list[torch.Tensor], trees.Spec]:
    """Return the leaves of primals and tangents, and their common structure. Raise if they do not
    fit each other."""
    if not isinstance(primals, tuple):
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals to be a tuple. "
            "f is called with its elements."
        )
    flat, spec = trees.flatten(primals)
    flat_t, t_spec = trees.flatten(tangents)
    if spec != t_spec:
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals and tangents to have "
            f"the same python structure. That of primals is {trees.torch_spec(spec)}, "
            f"that of tangents {trees.torch_spec(t_spec)}"
        )
    if not flat:
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals to contain at least one Tensor."
        )
    for x in flat:
        _refuse_no_float(x, "primals")
    for x in flat_t:
        _refuse_no_float(x, "tangents")
    for primal, tangent in zip(flat, flat_t, strict=True):
        _refuse_unfit_tangent(primal, tangent)
    return flat, flat_t, spec


def _refuse_no_float(value: object, what: str) -> None:
    """Raise unless ``value``, one of the leaves of ``what``, is a real or complex tensor."""
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(
            f"jvp(f, primals, tangents): Expected {what} to only contain Tensors, got {type(value)}"
        )
    if value.is_nested:
        raise NestedTensor
    if not is_floating(value):
        raise ValueError(
            f"Expected {what.removesuffix('s')} to be floating point or complex, but got: "
            f"{value.dtype}"
        )


def _refuse_unfit_tangent(primal: torch.Tensor, tangent: torch.Tensor) -> None:
    """Raise unless ``primal`` can have ``tangent``."""
    if primal.shape != tangent.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size "
            "than that of the original Tensor, this is not supported. "
            f"The tensor is of size {list(primal.shape)}, its tangent of size "
            f"{list(tangent.shape)}."
        )
    if tangent.is_complex() and not primal.is_complex():
        raise RuntimeError(
            "jvp(f, primals, tangents): "
            f"a primal of dtype {primal.dtype} cannot have a complex tangent ({tangent.dtype})."
        )
