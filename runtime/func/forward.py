"""Forward-mode transforms: ``jvp`` and ``linearize``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..levels import Value
from . import trees
from .jvp import DualLevel, tangent_of


def jvp(func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """As ``torch.func.jvp``: outputs and their tangents along ``tangents``."""
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"jvp(f, primals, tangents): Expected primals to be a tuple. E.g. it should be valid to call f(*primals). Got {type(primals)}"
        )
    flat, spec = trees.flatten(primals)
    flat_t, t_spec = trees.flatten(tangents)
    if spec != t_spec:
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals and tangents to have the same python structure. For example, if primals is a "
            "tuple of 3 tensors, tangents also must be. "
            f"Got primals with structure {trees.torch_spec(spec)} and tangents with structure {trees.torch_spec(t_spec)}"
        )
    for p, t in zip(flat, flat_t, strict=True):
        if not isinstance(p, torch.Tensor) or not isinstance(t, torch.Tensor):
            raise RuntimeError(f"jvp(f, primals, tangents): Expected all primals and tangents to be Tensors, got {type(p)} and {type(t)}")
        if p.shape != t.shape:
            raise RuntimeError(
                f"jvp(f, primals, tangents): a primal of shape {tuple(p.shape)} has a tangent of shape {tuple(t.shape)}; they must be equal"
            )
    level = DualLevel()
    try:
        given = trees.unflatten([level.wrap(p, t) for p, t in zip(flat, flat_t, strict=True)], spec)
        outs = func(*given)
        aux = None
        if has_aux:
            if not (isinstance(outs, tuple) and len(outs) == 2):
                raise RuntimeError("jvp(f, primals, tangents): output of function f should be a tuple: (output, aux) if has_aux is True")
            outs, aux = outs
        flat_out, out_spec = trees.flatten(outs)
        results, result_tangents = [], []
        for o in flat_out:
            if not isinstance(o, torch.Tensor):
                raise RuntimeError(f"jvp(f, primals, tangents): Expected f to return only Tensors, got {type(o)}")
            mine = isinstance(o, Value) and o._level is level
            t = tangent_of(o) if mine else None
            inner = o._inner if isinstance(o, Value) and mine else o
            if t is None and strict:
                raise RuntimeError("jvp(f, primals, tangents, strict=True): Output of f is independent of the input.")
            results.append(inner)
            result_tangents.append(torch.zeros_like(inner) if t is None else t)
        if not flat_out:
            raise RuntimeError("jvp(f, primals, tangents): Expected f to return at least one Tensor")
        lowered = trees.map_tensors(lambda v: v._inner if isinstance(v, Value) and v._level is level else v, aux)
    finally:
        level.close()
    out = trees.unflatten(results, out_spec), trees.unflatten(result_tangents, out_spec)
    return (*out, lowered) if has_aux else out
