"""Make a whole record from one line, with one helper per family of ops.

``pointwise("sin", self=lambda self: self.cos())`` registers vjp, jvp and batch rule of ``sin``.
"""

from __future__ import annotations

from typing import Any

import torch

from ..record import (
    Formula,
    JvpRules,
    Record,
    VjpRules,
    asking,
    declare,
    made_of,
    parameters,
    register,
)
from . import batch_rules
from .batch_rules import BatchRule


def conj(x: object) -> Any:
    """Return the conjugate of a tensor or number. A real one is returned as it is."""
    if isinstance(x, torch.Tensor):
        if x.is_complex():
            return x.conj()
    elif isinstance(x, complex):
        return x.conjugate()
    return x


def real(t: torch.Tensor) -> torch.Tensor:
    """Return the real part of ``t``."""
    if t.is_complex():
        return t.real
    return t


def scaled(t: Any, partial: object) -> Any:
    """Return ``t``, a tangent or cotangent, times a partial derivative.

    The derivative may be a pair ``(where, slope)``. Then it is ``slope`` where the mask ``where``
    is true, and zero elsewhere, also where ``t`` is infinite or undefined: the elements that a
    maximum leaves out have a gradient of zero in any case. ``where`` is False if there is no
    element that counts.
    """
    if not isinstance(partial, tuple):
        return t * partial
    where, slope = partial
    # the product has the shape to which the two are broadcast
    if where is False and isinstance(slope, torch.Tensor):
        return torch.zeros_like(t) * torch.zeros_like(slope)
    if where is False:
        return torch.zeros_like(t)
    return torch.where(where, t * slope, 0)


def conj_of(partial: object) -> Any:
    """Return the conjugate of a partial derivative, which may be a pair, as in :func:`scaled`."""
    if isinstance(partial, tuple):
        where, slope = partial
        return where, conj(slope)
    return conj(partial)


# The fields of every elementwise op: each element of the result depends on the elements at the
# same place only.
_ELEMENTWISE: dict[str, Any] = {
    "batch": batch_rules.elementwise,
    "in_place": True,
    "cost": "low",
    "family": "pointwise",
}


def pointwise(
    names: str, *, nondiff: bool | tuple[int, ...] = (), commutes: bool = False, **partials: Formula
) -> Record:
    """Register elementwise ops that are holomorphic (or real) by their partial derivatives.

    Example: ``pointwise("sin", self=lambda self: self.cos())``. The name of a keyword is that of
    an argument. Its formula returns the derivative p of the result by this argument: a tensor, a
    number, or a pair as in :func:`scaled`. From p follow the vjp ``g·conj(p)``, the jvp ``t·p``,
    and a batch rule by broadcasting.
    """
    vjp: dict[str, Formula] = {}
    jvp: dict[str, Formula] = {}
    for name, partial in partials.items():
        asks = parameters(partial)

        # the default binds the formula of this turn of the loop
        def backward(g: object, *values: object, partial: Formula = partial) -> object:
            """Return the cotangent times the conjugate of the partial derivative."""
            return scaled(g, conj_of(partial(*values)))

        def forward(t: object, *values: object, partial: Formula = partial) -> Any:
            """Return the tangent times the partial derivative."""
            return scaled(t, partial(*values))

        # the page of records shows these texts with the author's formula in the braces
        vjp[name] = made_of("g * conj({})", partial, declare(backward, "g", *asks))
        jvp[name] = made_of(f"{name}_t * {{}}", partial, declare(forward, f"{name}_t", *asks))
    return register(
        names,
        vjp=vjp,
        jvp=jvp,
        elementwise=True,
        nondiff=nondiff,
        commutes=commutes,
        **_ELEMENTWISE,
    )


def diagonal(names: str, elementwise: bool = True, **maps: Formula) -> Record:
    """Register elementwise real ops by functions that multiply with a derivative.

    Example: ``diagonal("relu", self=lambda g, result: g * (result > 0))``. The first parameter is
    a cotangent in the vjp and a tangent in the jvp. One formula serves as both for real dtypes,
    and for complex dtypes if the derivative is real. ``elementwise=False``: a formula runs a
    kernel that does not broadcast.
    """
    jvp = {name: asking(f"{name}_t", *parameters(rule)[1:])(rule) for name, rule in maps.items()}
    vjp = {name: asking("g", *parameters(rule)[1:])(rule) for name, rule in maps.items()}
    return register(names, vjp=vjp, jvp=jvp, elementwise=elementwise, **_ELEMENTWISE)


def elementwise(
    names: str, vjp: VjpRules, jvp: JvpRules | None = None, *, commutes: bool = False
) -> Record:
    """Register elementwise ops with a vjp and a jvp written out, for ops that are not holomorphic
    and for joint formulas."""
    return register(names, vjp=vjp, jvp=jvp, elementwise=True, commutes=commutes, **_ELEMENTWISE)


def nondifferentiable(
    names: str, batch: BatchRule | None = batch_rules.elementwise, **facts: Any
) -> None:
    """Register ops whose results have no gradient: comparisons, roundings to
    integers, bit operations."""
    facts.setdefault("in_place", batch is batch_rules.elementwise)
    for name in names.split():
        register(name, nondiff=True, batch=batch, family="nondifferentiable", **facts)


def flat(names: str, *args: str, batch: BatchRule = batch_rules.elementwise, **facts: Any) -> None:
    """Register ops that are constant wherever they are differentiable (``floor``, ``sign``).
    Gradients by ``args`` are zeros, not None."""
    rules = {**_ELEMENTWISE, "batch": batch, "in_place": batch is batch_rules.elementwise, **facts}
    for name in names.split():
        vjp = {argument: asking("g")(lambda g: torch.zeros_like(g)) for argument in args}
        jvp = {
            argument: asking(f"{argument}_t")(lambda t: torch.zeros_like(t)) for argument in args
        }
        register(name, vjp=vjp, jvp=jvp, **rules)


def linear(names: str, vjp: VjpRules, batch: BatchRule | None = None, **more: Any) -> Record:
    """Register ops that are linear in all differentiable arguments together. ``vjp`` is the
    transpose; the jvp is the op itself.

    Example: ``linear("flip", {"self": lambda g, dims: g.flip(dims)}, dims(1))``. ``batch``: the
    batch rule. None: vmap runs a decomposition, or a loop. ``more``: further facts of the record.
    """
    return register(
        names, vjp=vjp, jvp="linear", batch=batch, family=more.pop("family", "linear"), **more
    )


def multilinear(names: str, vjp: VjpRules, batch: BatchRule | None = None, **more: Any) -> Record:
    """Register ops that are linear in each differentiable argument. The jvp sums the calls with one
    argument replaced by its tangent. Other parameters: as for :func:`linear`.

    Example: ``dot`` has the gradients ``g * tensor.conj()`` and ``g * self.conj()``, and the
    tangent ``dot(self_t, tensor) + dot(self, tensor_t)``.
    """
    return register(
        names,
        vjp=vjp,
        jvp="multilinear",
        batch=batch,
        family=more.pop("family", "multilinear"),
        **more,
    )


def view(
    names: str,
    transpose: Formula,
    batch: BatchRule | None = None,
    *,
    arg: str = "self",
    inverse: Formula | None = None,
) -> Record:
    """Register view ops. ``transpose`` puts a cotangent of the view into zeros of the base's shape.
    The schema tells the rest. ``arg``: the name of the base among the op's arguments."""
    return register(
        names, vjp={arg: transpose}, jvp="linear", batch=batch, inverse=inverse, family="view"
    )


def random(
    names: str, batch: BatchRule = batch_rules.trailing, *, shape_only: bool = False, **rules: Any
) -> Record:
    """Register random ops. Under ``randomness="different"`` vmap runs the batch rule, which draws
    once per element.

    ``shape_only``: the draw depends only on the shape of an argument (``rand_like``), so one draw
    can serve all elements."""
    rules.setdefault("nondiff", not rules.get("vjp"))
    draws = "shape" if shape_only else "values"
    return register(names, batch=batch, draws=draws, family="random", **rules)
