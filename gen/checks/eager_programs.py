"""Whole programs of the eager session: checkpoints, and torch.autograd.functional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from gen.checks.pipelines import Program, cornered, extend, restricted
from gen.reference.loop import sum_of_squares
from gen.targets.protocol import Eager, Flat, Target, Values

Tensor = torch.Tensor


def checkpointed(program: Program, reentrant: bool) -> Program:
    """Outputs and gradients of `program` with random factors on its outputs, computed again in
    the backward pass.

    The reference computes once. So the gradients differ if the second run draws other
    factors than the first.
    """
    kept, flags, count = program.active_outputs, program.differentiable, len(program.inputs)
    inputs = extend(program, "vjp").inputs

    def over(target: Target) -> Flat:
        inner = restricted(program.over(target), [None] * count, range(count), kept)

        def drawn(*values: Any) -> Values:
            return tuple(
                y * torch.rand(y.shape, dtype=torch.float64).to(y.dtype) for y in inner(*values)
            )

        def g(*values: Any) -> Values:
            outputs, gradients = cast(Eager, target).checkpoint(
                drawn, _recorded(values[:count], flags), values[count:], reentrant=reentrant
            )
            return (*outputs, *gradients)

        return g

    return Program(
        over, inputs, (*flags, *(True for _ in kept)), program.seed, f"checkpoint({program.label})"
    )


def session(program: Program) -> Program:
    """Outputs and gradients of `program`. Outputs that have no gradient on the reference
    are compared too."""
    kept, flags, count = program.active_outputs, program.differentiable, len(program.inputs)
    inputs = extend(program, "vjp").inputs

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: Any) -> Values:
            outputs, gradients = cast(Eager, target).session(
                f, _recorded(values[:count], flags), values[count:], kept
            )
            return (*outputs, *gradients)

        return g

    return Program(
        over, inputs, (*flags, *(True for _ in kept)), program.seed, f"session({program.label})"
    )


def _recorded(values: Sequence[Tensor], flags: Sequence[bool]) -> list[Tensor]:
    return [
        x.detach().clone().requires_grad_() if flag else x
        for x, flag in zip(values, flags, strict=True)
    ]


def functional(name: str, program: Program) -> Program:
    """``torch.autograd.functional``'s function of this name. ``hessian``, ``vhp`` and ``hvp`` get
    the sum of |output|²."""
    if name in ("jacobian", "hessian"):
        program = cornered(program, {"jacobian": "jacrev"}.get(name, name))
    active, kept, count = program.active_inputs, program.active_outputs, len(program.inputs)
    along: tuple[Tensor, ...] = ()
    if name == "vjp":
        along = program.drawn_like([program.observed[0][place] for place in kept], "cotangents")
    elif name not in ("jacobian", "hessian"):
        along = program.drawn_like([program.inputs[place] for place in active], "tangents")

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: Any) -> Values:
            inner = restricted(f, values[:count], active, kept)
            flat: Flat = (
                (lambda *some: (sum_of_squares(inner(*some)),))
                if name in ("hessian", "vhp", "hvp")
                else inner
            )
            return tuple(
                cast(Eager, target).functional(
                    name, flat, tuple(values[place] for place in active), tuple(values[count:])
                )
            )

        return g

    flags = (*program.differentiable, *(True for _ in along))
    return Program(
        over, (*program.inputs, *along), flags, program.seed, f"functional.{name}({program.label})"
    )
