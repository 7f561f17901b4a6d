"""Make a program of a call: what runs on a target, and what on a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gen.checks.pipelines import Program
from gen.reference.arrays import Definite
from gen.reference.exact import Exact
from gen.reference.standard import Standard
from gen.samples.samples import Sample
from gen.targets.protocol import Flat, Target

Tensor = torch.Tensor


def as_program(
    sample: Sample,
    inputs: tuple[Tensor, ...],
    label: str,
    call: Callable[..., object],
    plain: Callable[..., object] | None = None,
) -> Program:
    """Return a program that runs `call` on a target and `plain` on a reference. Inputs after the
    sample's own are buffers, not differentiable."""
    # No gradient goes to a buffer: the op overwrites what is in it.
    buffers = len(inputs) - len(sample.differentiable)
    flags = (*sample.differentiable, *[False] * buffers)

    def over(target: Target) -> Any:
        # These compute by a definition of the op, and run no code of torch.
        if isinstance(target, (Exact, Definite, Standard)):
            return target.root
        if plain is not None and is_reference(target):
            return plain
        return call

    return Program(over, inputs, flags, sample.seed, label)


def is_reference(target: Target) -> bool:
    """Return whether `target` computes expected results. It captures and compiles nothing."""
    return target.name in ("loop", "numeric")


def functional(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op itself as one program."""
    program = as_program(sample, inputs, sample.op.name, sample)

    def over(target: Target) -> Flat:
        """Return the op in torch, its definition, or the target's own implementation of it."""
        if isinstance(target, (Exact, Definite, Standard)):
            return target.root
        implementation = getattr(target, "op", None)
        if implementation is None:
            return sample
        call = implementation(sample.op.name)
        # a target with `op` has `flat` too
        return lambda *values: tuple(target.flat(sample.process(sample.raw(call, values))))  # type: ignore[attr-defined]

    return [replace(program, over=over)]


def device_of(values: Sequence[object]) -> torch.device:
    """Return the device of the first tensor among the inputs of a call."""
    return next((x.device for x in values if isinstance(x, Tensor)), torch.device("cpu"))
