"""Compute what a program gives in double precision, and derivatives there by differences.

A reference that computes as the target does, in the same dtype, rounds as it does. In double
precision its rounding is too small to count, so what differs is the target's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from gen.checks.pipelines import Outputs, Program, nudged, widened
from gen.language.pipeline import DERIVING
from gen.outcomes import Unsuitable
from gen.reference import Numeric
from gen.samples.domains import is_inexact
from gen.samples.samples import Sample
from gen.samples.seeds import seeded

Tensor = torch.Tensor


def has_inexact_dtype(x: Tensor) -> bool:
    """Return whether results of the dtype of `x` are rounded: it is floating or complex."""
    return is_inexact(x.dtype)


def are_wide(tensors: Sequence[Tensor]) -> bool:
    """Return whether all floating and complex tensors have double precision already."""
    inexact = filter(has_inexact_dtype, tensors)
    return all(x.dtype in (torch.float64, torch.complex128) for x in inexact)


def coarsest_dtype(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """Return the dtype of the largest rounding errors; None if all tensors are exact."""
    dtypes = (x.dtype for x in filter(has_inexact_dtype, tensors))
    return max(dtypes, key=_eps, default=None)


def _eps(dtype: torch.dtype) -> float:
    """Return the distance of 1 to the next number, by which results of the dtype are rounded."""
    return torch.finfo(dtype).eps


def nudged_and_widened(x: Tensor) -> Tensor:
    """Return `x` in double precision, off by an ulp of its narrow dtype."""
    return widened(nudged(x))


def require_differences(program: Program, sample: Sample, stages: Sequence[str]) -> None:
    """Raise Unsuitable if differences of values in float64 say nothing about the program."""
    if sample.facts.random and not are_wide(program.inputs):
        raise Unsuitable("the op draws random numbers: other ones in float64")
    if DERIVING.isdisjoint(stages):
        raise Unsuitable("no derivative to take differences for")
    if are_wide(sample.inputs) and not are_wide(sample.facts.outputs):
        raise Unsuitable("the op rounds to a narrower dtype: differences of its values say nothing")


def by_differences(program: Program, numeric: Numeric) -> Outputs:
    """Return the program's results with its outermost derivative by differences of values.

    Raises Unsuitable if an input has too many elements for them, see
    :data:`gen.reference.numeric.LIMIT`.
    """
    # In a narrow dtype a difference is mostly rounding.
    inputs = tuple(map(widened, program.inputs))
    try:
        with seeded(program.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reference's own
            return tuple(program.over(numeric)(*inputs))
    except ValueError as error:
        # An op raises ValueError as well, and that one is a failure.
        if "too large for differences" not in str(error):
            raise
        raise Unsuitable(str(error)) from None


def project(program: Program, numeric: Numeric, results: Outputs) -> Outputs:
    """Return the projections of the results of each call of the program.

    A large gradient becomes its products with the random directions that `numeric` has drawn.
    """
    # `Numeric.project` tells inputs by the places of their gradients, so it takes one call's alone.
    share = len(results) // program.calls
    projections: list[Tensor] = []
    for call in range(program.calls):
        projections += numeric.project(results[call * share : (call + 1) * share])
    return tuple(projections)
