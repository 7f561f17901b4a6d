"""Comparison with exact values and derivatives: entry by entry, with a relative tolerance, so
that tails count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gen.checks.compare import Tally
from gen.checks.pipelines import Program
from gen.outcomes import Mismatch, Unsuitable
from gen.reference.exact import Evaluated, Exact, Function, Polynomial, Symbol, save
from gen.reference.limits import SIGNED, at_edge
from gen.samples import points
from gen.samples.samples import Sample

Tensor = torch.Tensor
RTOL = {torch.float64: 1e-9, torch.float32: 3e-5, torch.float16: 1e-2}
ULPS = 8  # a result may be that of arguments off by so many ulps
ROUNDED = frozenset(
    ("torch.floor_divide", "torch.fmod", "torch.remainder", "torch.Tensor.__rmod__")
)
"""Functions whose results floating-point arithmetic can give to the last bit, so that no
argument may be off."""


def compare_with_exact(
    program: Program,
    sample: Sample,
    actual: Sequence[Tensor],
    tally: Tally,
    label: str,
    word: str = "",
) -> None:
    """Raise Mismatch unless each entry is near the exact value. Entries without one are
    counted as unknown.

    A result passes if it is within :data:`RTOL` of the exact one, or if the exact result for
    arguments off by a few ulps is as far away. The word ``edges`` has infinities and NaNs, of which
    :mod:`gen.reference.limits` knows; at the ``verge`` a value may not be flushed to zero.
    """
    if not points.is_scalar(sample):
        raise Unsuitable(f"{sample.op.name} has no exact definition on these inputs")
    actual = [a.cpu() for a in actual]  # exact values are computed on the CPU
    program = replace(program, inputs=tuple(x.cpu() for x in program.inputs))
    function = points.function(sample)
    exact = Exact()
    symbols = tuple(map(Symbol, range(len(program.inputs))))
    # a target for these stages alone
    polynomials = program.over(exact)(*symbols)  # type: ignore[arg-type]
    if len(polynomials) != len(actual):
        raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(polynomials)}")
    for place, (a, polynomial) in enumerate(zip(actual, polynomials, strict=True)):
        if isinstance(polynomial, Symbol):
            continue
        if word == "edges":
            _compare_edges(function, polynomial, program, (place, len(actual)), a, tally, label)
            continue
        expected = function.evaluate(polynomial, program.inputs)
        info = torch.finfo(a.dtype)
        flush = info.smallest_normal * (
            4 * info.eps if word == "verge" and len(program.inputs) == len(sample.inputs) else 64
        )
        known = ~expected.unknown & ~expected.value.isnan()
        tally.entries += int(known.sum())
        tally.unknown += int((~known).sum())
        tally.nonzero += int((expected.value[known] != 0).sum()) + int((a[known] != 0).sum())
        wrong = known & ~_near(a, expected, torch.zeros_like(expected.value), flush)
        for sign in () if sample.op.name in ROUNDED else (1, -1):
            if bool(wrong.any()):
                nudged = [
                    _off(x, sign) if k in polynomial.arguments else x
                    for k, x in enumerate(program.inputs)
                ]
                other = function.evaluate(polynomial, _only(nudged, wrong))
                slack = torch.zeros_like(expected.value)
                slack[wrong] = (other.value - expected.value[wrong]).abs().nan_to_num(0.0)
                wrong &= ~_near(a, expected, slack, flush)
        save()
        if bool(wrong.any()):
            raise Mismatch(
                f"{label}: "
                f"{_describe(place, len(actual), a, expected.value, wrong, program.inputs, polynomial.arguments)}"  # noqa: E501
            )
    if function.why and not tally.entries:
        raise Unsuitable(
            "; ".join(
                f"{reason} ({count} entries)" for reason, count in function.why.most_common(2)
            )
        )


def _compare_edges(
    function: Function,
    polynomial: Polynomial,
    program: Program,
    place: tuple[int, int],
    a: Tensor,
    tally: Tally,
    label: str,
) -> None:
    """Compare with limits, entry by entry: infinities and NaNs must agree, and signs of zeros where
    a standard gives them."""
    e, unknown = function.at_edges(polynomial, program.inputs, at_edge)
    known = ~unknown
    tally.entries += int(known.sum())
    tally.unknown += int((~known).sum())
    tally.nonzero += int((e[known] != 0).sum()) + int((a[known] != 0).sum())
    given = a.to(torch.float64)
    close = torch.isclose(
        given, e, rtol=RTOL[a.dtype], atol=64 * torch.finfo(a.dtype).smallest_normal, equal_nan=True
    )
    if function.name in SIGNED and not any(any(orders) for _, orders in polynomial.terms):
        close &= (e != 0) | (e.signbit() == given.signbit())
    wrong = known & ~close
    save()
    if bool(wrong.any()):
        raise Mismatch(
            f"{label}: {_describe(*place, a, e, wrong, program.inputs, polynomial.arguments)}"
        )


def _only(inputs: Sequence[Tensor], mask: Tensor) -> list[Tensor]:
    return [x[mask] for x in inputs]


def _off(x: Tensor, sign: int) -> Tensor:
    return x * (1 + sign * ULPS * torch.finfo(x.dtype).eps)


def _near(a: Tensor, expected: Evaluated, slack: Tensor, flush: float) -> Tensor:
    """Whether entries are close. Where a derivative is beyond the range of the dtype, a result that
    is not finite is right too; below its range, zero, if it is below `flush`.
    """
    info = torch.finfo(a.dtype)
    given, e = a.to(torch.float64), expected.value
    allowed = RTOL[a.dtype] * expected.scale + slack + ULPS * info.eps * expected.noise + flush
    close = (given - e).abs() <= allowed
    return close | (expected.reach.nan_to_num(torch.inf) > info.max / 2) & ~given.isfinite()


def _describe(
    place: int,
    count: int,
    a: Tensor,
    e: Tensor,
    wrong: Tensor,
    inputs: Sequence[Tensor],
    arguments: Sequence[int],
) -> str:
    error = torch.where(wrong, ((a.to(torch.float64) - e) / e).abs().nan_to_num(torch.inf), 0.0)
    worst = int(error.argmax())
    at = ", ".join(f"{inputs[k][worst].item():.17g}" for k in arguments)
    return (
        f"output {place} of {count}: {int(wrong.sum())} of {wrong.numel()} entries are off; "
        f"worst at ({at}): got {a[worst].item()}, exactly {e[worst].item()}"
    )
