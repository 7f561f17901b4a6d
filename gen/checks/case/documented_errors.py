"""Call an op with the inputs of which OpInfo or its row documents an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from gen.checks import refusals
from gen.devices.place import Place
from gen.samples.samples import Sample, make_op
from gen.targets.protocol import Jitting, Target, Values

__all__ = ["call_of", "documented_errors"]


def documented_errors(
    op: str, row: Mapping[str, Any], dtype: str
) -> list[tuple[Sample, type[Exception], str]]:
    """Return ``(sample, exception, pattern)`` for each documented error of the op."""
    return list(refusals.documented_errors(make_op(op, row), row, getattr(torch, dtype)))


def call_of(
    sample: Sample, target: Target, place: Place | None, jitted: bool
) -> Callable[[], object]:
    """Return the call of the op on the sample by the target, jitted or not."""

    def function(*tensors: object) -> Values:
        raw = sample.raw(sample.op.call, tensors)
        # A method such as `__radd__` returns this, and Python's operator makes the error.
        if raw is NotImplemented:
            raise TypeError(
                f"{sample.op.name} returned NotImplemented, of which Python makes a TypeError"
            )
        return sample.outputs(raw)

    def call() -> object:
        made = cast(Jitting, target).jit(function) if jitted else function
        whole = target.forward(made)
        if place is None:
            return whole(*sample.inputs)
        with place.entered():
            return whole(*place.moved(sample.inputs))

    return call
