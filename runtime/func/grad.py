"""Reverse-mode transforms: ``vjp``, ``grad``, ``grad_and_value``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..autograd.engine import execute
from ..autograd.level import GradLevel, edge_of
from ..levels import Value
from . import trees

_set_grad_enabled = torch._C._set_grad_enabled


def _recorded(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``func(*args, **kwargs)`` with grad mode on; ``torch.enable_grad`` costs six times as much."""
    before = torch.is_grad_enabled()
    _set_grad_enabled(True)
    try:
        return func(*args, **kwargs)
    finally:
        _set_grad_enabled(before)


def _opened(level: GradLevel, tree: Any) -> Any:
    return trees.map_tensors(level.input, tree)


def _lowered(level: GradLevel, tree: Any) -> Any:
    """``tree`` with the values of ``level`` replaced by what they hold."""
    return trees.map_tensors(lambda v: v._inner if isinstance(v, Value) and v._level is level else v, tree)


def _edge(level: GradLevel, v: Any) -> Any:
    return edge_of(v) if isinstance(v, Value) and v._level is level else None


def _pull(level: GradLevel, outs: list[Any], cotangents: list[Any], inputs: list[Any], keep: bool) -> list[Any]:
    """Cotangents of ``inputs``; zeros where none arrives."""
    roots = [(e, g) for o, g in zip(outs, cotangents, strict=True) if (e := _edge(level, o)) is not None]
    captures = [_edge(level, x) for x in inputs]
    found = execute(level, roots, captures, create_graph=False, keep_graph=keep, accumulate=False)
    return [torch.zeros_like(x._inner) if g is None else g for g, x in zip(found, inputs, strict=True)]


def _tensors(what: str, flat: list[Any]) -> None:
    for t in flat:
        if not isinstance(t, torch.Tensor):
            raise RuntimeError(
                f"{what}: Expected all {'outputs' if 'returned' in what else 'inputs'} to be Tensors, got unsupported type {type(t)}"
            )


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """As ``torch.func.vjp``: outputs, and a function from their cotangents to a tuple with those of ``primals``."""
    level = GradLevel()
    try:
        given = _opened(level, primals)
        outs = _recorded(func, given, {})
        aux = None
        if has_aux:
            if not (isinstance(outs, tuple) and len(outs) == 2):
                raise RuntimeError("vjp(f, *primals): output of function f should be a tuple: (output, aux) if has_aux is True")
            outs, aux = outs
            aux = _lowered(level, aux)
        flat, spec = trees.flatten(outs)
        for t in flat:
            if not isinstance(t, torch.Tensor):
                raise RuntimeError(f"vjp(f, *primals): Expected f to be a function that has Tensor outputs, got {type(t)}")
        if not flat:
            raise RuntimeError("vjp(f, *primals): Expected f to be a function that has non-empty output")
        results = trees.unflatten([v._inner if isinstance(v, Value) and v._level is level else v for v in flat], spec)
        inputs, in_spec = trees.flatten(given)
    finally:
        level.close()

    def pullback(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        flat_ct, ct_spec = trees.flatten(cotangents)
        if ct_spec != spec:
            raise RuntimeError(
                f"Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function. "
                f"cotangents: {pytree.treespec_pprint(trees.torch_spec(ct_spec))}, "
                f"primal output: {pytree.treespec_pprint(trees.torch_spec(spec))}"
            )
        for i, (g, o) in enumerate(zip(flat_ct, flat, strict=True)):
            if g.shape != o.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{i}] has a shape of {g.shape} and output[{i}] has a shape of {o.shape}."
                )
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        found = iter(_pull(level, flat, flat_ct, tensors, retain_graph))
        return trees.unflatten([next(found) if isinstance(x, torch.Tensor) else None for x in inputs], in_spec)

    return (results, pullback, aux) if has_aux else (results, pullback)


def grad_and_value(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """As ``torch.func.grad_and_value``: (gradients by ``argnums``, value) or (gradients, (value, aux))."""

    @wraps(func)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        which = normalize_argnums(argnums, len(args))
        level = GradLevel()
        try:
            given = list(args)
            for i in which if isinstance(which, tuple) else (which,):
                given[i] = _opened(level, given[i])
            out = _recorded(func, given, kwargs)
            aux = None
            if has_aux:
                if not (isinstance(out, tuple) and len(out) == 2):
                    raise RuntimeError("grad_and_value(f)(*args): output of function f should be a tuple: (output, aux) if has_aux is True")
                out, aux = out
            if not isinstance(out, torch.Tensor):
                raise RuntimeError(
                    f"grad_and_value(f)(*args): Expected f(*args) to return a single tensor, got {type(out)}"
                    if not isinstance(out, (tuple, list))
                    else "grad_and_value(f)(*args): Expected f(*args) to return a single scalar tensor, got a collection of outputs"
                )
            if out.dim() != 0:
                raise RuntimeError(
                    "grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got tensor with "
                    f"{out.dim()} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
                )
            value = _lowered(level, out)
            selected = tuple(given[i] for i in which) if isinstance(which, tuple) else given[which]
            inputs, spec = trees.flatten(selected)
            tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
            found = iter(_pull(level, [out], [torch.ones_like(value)], tensors, False))
            grads = trees.unflatten([next(found) if isinstance(x, torch.Tensor) else None for x in inputs], spec)
            return (grads, (value, _lowered(level, aux))) if has_aux else (grads, value)
        finally:
            level.close()

    return transformed


def grad(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """As ``torch.func.grad``: gradients of a function with a scalar result."""
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        grads, value = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return transformed


def normalize_argnums(argnums: int | tuple[int, ...], n: int) -> int | tuple[int, ...]:
    """Non-negative argument numbers; out-of-range and repeated ones are errors."""
    if type(argnums) is int and 0 <= argnums < n:
        return argnums
    each = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(isinstance(i, int) for i in each):
        raise RuntimeError(f"argnum must be int or Tuple[int, ...], got: {type(argnums)}")
    if not each:
        raise RuntimeError("argnums must be non-empty")
    for i in each:
        if not -n <= i < n:
            raise RuntimeError(f"Got argnum={i}, but only {n} positional inputs")
    fixed = tuple(i % n for i in each)
    if len(set(fixed)) != len(fixed):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return fixed if isinstance(argnums, tuple) else fixed[0]
