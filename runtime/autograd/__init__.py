"""Reverse mode at level zero: ``backward``, ``grad`` and the grad-mode switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.grad_mode import enable_grad, inference_mode, no_grad, set_grad_enabled

from ..levels import Value
from .engine import execute
from .level import edge_of

__all__ = ["backward", "enable_grad", "forward_ad", "grad", "inference_mode", "no_grad", "set_grad_enabled"]


def _listed(x: Any) -> tuple[Any, ...]:
    if x is None:
        return ()
    return (x,) if isinstance(x, torch.Tensor) else tuple(x)


def _level(tensors: Sequence[Any]) -> Any:
    from ..tensor import ROOT

    levels = {t._level for t in tensors if isinstance(t, Value) and hasattr(t, "_edge")}
    return max(levels, key=lambda level: level.number) if levels else ROOT


def _presented(level: Any, g: Any) -> Any:
    """``g`` as a value of ``level``, unless it belongs to it or to a level further in already (a batch of cotangents)."""
    return g if isinstance(g, Value) and g._level.number >= level.number else level.wrap(g, None)


def _cotangents(outputs: Sequence[Any], given: Sequence[Any], level: Any, create_graph: bool) -> list[Any]:
    out: list[Any] = []
    if given and len(given) != len(outputs):
        raise RuntimeError(f"got {len(outputs)} tensors and {len(given)} gradients")
    for i, t in enumerate(outputs):
        g = given[i] if given else None
        if g is None:
            if not isinstance(t, Value) or edge_of(t) is None:
                out.append(None)
                continue
            if t.numel() != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            if t.dtype.is_complex:
                raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {t.dtype}")
            g = torch.ones_like(t._inner)
            g = _presented(level, g) if create_graph else g
        else:
            if g.shape != t.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{i}] has a shape of {g.shape} and output[{i}] has a shape of {t.shape}."
                )
            if t.dtype.is_complex != g.dtype.is_complex:
                raise RuntimeError(
                    "For complex Tensors, both grad_output and output are required to have the same dtype. "
                    f"Mismatch in dtype: grad_output[{i}] has a dtype of {g.dtype} and output[{i}] has a dtype of {t.dtype}."
                )
            if create_graph:
                g = _presented(level, g)
            elif isinstance(g, Value) and g._level is level:
                g = g._inner
        out.append(g)
    return out


def _run(
    outputs: Sequence[Any], given: Sequence[Any], captures: Any, retain_graph: bool | None, create_graph: bool, accumulate: bool
) -> tuple[Any, list[Any]]:
    level = _level(outputs)
    keep = create_graph if retain_graph is None else retain_graph
    on_values = create_graph or level.on_values
    cotangents = _cotangents(outputs, given, level, on_values)
    roots = []
    for i, (t, g) in enumerate(zip(outputs, cotangents, strict=True)):
        edge = edge_of(t) if isinstance(t, Value) else None
        if edge is None:
            raise RuntimeError(f"element {i} of tensors does not require grad and does not have a grad_fn")
        roots.append((edge, g))
    with torch.set_grad_enabled(create_graph):
        return level, execute(level, roots, captures, create_graph=on_values, keep_graph=keep, accumulate=accumulate)


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """As ``torch.autograd.backward``: accumulate into the ``.grad`` of leaves."""
    if grad_variables is not None:
        grad_tensors = grad_variables
    captures = None
    if inputs is not None:
        inputs = _listed(inputs)
        if not inputs:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
        captures = [edge_of(t) for t in inputs]
    level, found = _run(_listed(tensors), _listed(grad_tensors), captures, retain_graph, create_graph, True)
    for t, g in zip(inputs or (), found, strict=True):
        if t.grad_fn is not None and g is not None:
            g = _presented(level, g)
            t._grad = g if t._grad is None else t._grad + g


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """As ``torch.autograd.grad``: the gradients of ``inputs``, leaving every ``.grad`` alone."""
    if materialize_grads and allow_unused is False:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    allow_unused = materialize_grads if allow_unused is None else allow_unused
    outputs, inputs, grad_outputs = _listed(outputs), _listed(inputs), _listed(grad_outputs)
    if is_grads_batched:
        from ..func import vmap

        def one(*cotangents: Any) -> tuple[Any, ...]:
            return grad(outputs, inputs, cotangents, True, create_graph, only_inputs, allow_unused, False, materialize_grads)

        level = _level(outputs)
        return tuple(None if g is None else _presented(level, g) for g in vmap(one)(*grad_outputs))
    captures = []
    for t in inputs:
        edge = edge_of(t) if isinstance(t, Value) else None
        if edge is None:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
        captures.append(edge)
    level, found = _run(outputs, grad_outputs, captures, retain_graph, create_graph, False)
    out = []
    for t, g in zip(inputs, found, strict=True):
        if g is None:
            if not allow_unused:
                raise RuntimeError(
                    "One of the differentiated Tensors appears to not have been used in the graph. "
                    "Set allow_unused=True if this is the desired behavior."
                )
            g = torch.zeros_like(t) if materialize_grads else None
            out.append(g)
        else:
            out.append(_presented(level, g))
    return tuple(out)


from . import forward_ad  # noqa: E402, isort: skip
