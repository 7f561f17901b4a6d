"""Families: one line per op, from which the rest of its record follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import derive_batch
from .record import Formula, Record, asking, declare, made_of, parameters, register


def conj(x: Any) -> Any:
    """The conjugate of a tensor or number; itself when real."""
    if isinstance(x, torch.Tensor):
        return x.conj() if x.is_complex() else x
    return x.conjugate() if isinstance(x, complex) else x


# What follows for every op that computes each element of its result from those at the same place.
_ELEMENTWISE: dict[str, Any] = {"batch": derive_batch.elementwise, "in_place": True, "cost": "low", "family": "pointwise"}


def pointwise(names: str, *, nondiff: Any = (), commutes: bool = False, **partials: Formula) -> Record:
    """Elementwise holomorphic (or real) ops: ``NAME=partial derivative of the result by NAME``, a tensor or a number.

    From it follow: vjp ``g·conj(p)``, jvp ``t·p``, and batching by broadcasting. ``pointwise("sin", self=lambda self: self.cos())``.
    """
    vjp: dict[str, Formula] = {}
    jvp: dict[str, Formula] = {}
    for name, partial in partials.items():
        asks = parameters(partial)

        def backward(g: Any, *values: Any, partial: Formula = partial) -> Any:
            return g * conj(partial(*values))

        def forward(t: Any, *values: Any, partial: Formula = partial) -> Any:
            return t * partial(*values)

        vjp[name] = made_of("g * conj({})", partial, declare(backward, "g", *asks))
        jvp[name] = made_of(f"{name}_t * {{}}", partial, declare(forward, f"{name}_t", *asks))
    return register(names, vjp=vjp, jvp=jvp, elementwise=True, nondiff=nondiff, commutes=commutes, **_ELEMENTWISE)


def diagonal(names: str, elementwise: bool = True, **maps: Formula) -> Record:
    """Elementwise real ops whose derivative is easier applied than written: ``NAME=lambda g, …: g scaled``, used for vjp and jvp alike.

    The first parameter is the cotangent or the tangent. Right for real dtypes, and for complex where the scale is real.
    ``elementwise=False``: a formula runs a kernel that does not broadcast.
    """
    jvp = {name: asking(f"{name}_t", *parameters(f)[1:])(f) for name, f in maps.items()}
    vjp = {name: asking("g", *parameters(f)[1:])(f) for name, f in maps.items()}
    return register(names, vjp=vjp, jvp=jvp, elementwise=elementwise, **_ELEMENTWISE)


def elementwise(names: str, vjp: Mapping[Any, Formula], jvp: Any = None, *, commutes: bool = False) -> Record:
    """Elementwise ops with rules written out (not holomorphic, joint formulas)."""
    return register(names, vjp=vjp, jvp=jvp, elementwise=True, commutes=commutes, **_ELEMENTWISE)


def nondifferentiable(names: str, batch: Any = derive_batch.elementwise, **facts: Any) -> None:
    """Ops whose results have no gradient by nature: comparisons, roundings to integers, bit operations."""
    facts.setdefault("in_place", batch is derive_batch.elementwise)
    for name in names.split():
        register(name, nondiff=True, batch=batch, family="nondifferentiable", **facts)


def flat(names: str, *args: str, batch: Any = derive_batch.elementwise, **facts: Any) -> None:
    """Ops that are constant wherever they are differentiable (``floor``, ``sign``): a derivative that is zero, as a value."""
    for name in names.split():
        vjp = {a: asking("g")(lambda g: torch.zeros_like(g)) for a in args}
        jvp = {a: asking(f"{a}_t")(lambda t: torch.zeros_like(t)) for a in args}
        register(name, vjp=vjp, jvp=jvp, **{**_ELEMENTWISE, "batch": batch, "in_place": batch is derive_batch.elementwise, **facts})


def linear(names: str, vjp: Mapping[Any, Formula], batch: Any = None, **more: Any) -> Record:
    """Ops linear in all differentiable arguments together: only the transpose is written; the jvp is the op itself."""
    return register(names, vjp=vjp, jvp="linear", batch=batch, family=more.pop("family", "linear"), **more)


def multilinear(names: str, vjp: Mapping[Any, Formula], batch: Any = None, **more: Any) -> Record:
    """Ops linear in each differentiable argument: the jvp is the sum over arguments of the op with one replaced by its tangent."""
    return register(names, vjp=vjp, jvp="multilinear", batch=batch, family=more.pop("family", "multilinear"), **more)


def view(names: str, transpose: Formula, batch: Any = None, *, arg: str = "self", inverse: Formula | None = None) -> Record:
    """View ops: ``transpose`` puts a cotangent of the view back in place, zeros elsewhere. In-place and aliasing follow from the schema."""
    return register(names, vjp={arg: transpose}, jvp="linear", batch=batch, inverse=inverse, family="view")


def random(names: str, batch: Any = derive_batch.trailing, *, shape_only: bool = False, **rules: Any) -> Record:
    """Random ops. vmap's ``randomness`` decides whether the batch rule runs (one draw per element) or one draw serves all;
    ``shape_only``: the draw depends on an argument's shape alone (``rand_like``), so that one can."""
    rules.setdefault("nondiff", not rules.get("vjp"))
    return register(names, batch=batch, draws="shape" if shape_only else "values", family="random", **rules)
