"""Compare with exact values and derivatives, and at special points with what standards say.

Entries are compared one by one with a relative tolerance, so that tails count: 1e-300 in the place
of 2e-300 is a mistake. In all functions `a` is an actual tensor and `e` the expected one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from gen.checks.compare import Tally
from gen.checks.pipelines import Program
from gen.outcomes import Mismatch, Unsuitable
from gen.reference.exact import Evaluated, Exact, Function, Polynomial, Symbol, save
from gen.reference.limits import SIGNED, at_edge
from gen.reference.special_numbers import Near
from gen.reference.standard import Standard, is_exact, is_known, is_signed, numbers
from gen.samples import points
from gen.samples.domains import is_inexact
from gen.samples.samples import Sample

Tensor = torch.Tensor
RTOL = {torch.float64: 1e-9, torch.float32: 3e-5, torch.float16: 1e-2}
ULPS = 8  # a result may be that of arguments off by so many ulps
NEIGHBOURS = (-12, -4, 4, 12)
"""By how many ulps the arguments of neighbours are off. Two in a row are :data:`ULPS` apart, and
beside the edge of a domain there are two on one side."""
ROUNDED = frozenset(
    (
        "torch.Tensor.__rmod__", "torch.abs", "torch.ceil", "torch.clamp", "torch.clamp_max",
        "torch.clamp_min", "torch.copysign", "torch.floor", "torch.floor_divide", "torch.fmax",
        "torch.fmin", "torch.fmod", "torch.frac", "torch.max.binary", "torch.maximum",
        "torch.min.binary", "torch.minimum", "torch.neg", "torch.nn.functional.hardshrink",
        "torch.nn.functional.hardtanh", "torch.nn.functional.relu", "torch.nn.functional.relu6",
        "torch.nn.functional.threshold", "torch.positive", "torch.remainder", "torch.round",
        "torch.round.decimals_0", "torch.sgn", "torch.sign", "torch.trunc",
    )
)  # fmt: skip
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

    A result passes if it is within :data:`RTOL` of the exact one, or if exact results for arguments
    a few ulps apart are as far from one another. The word ``edges`` has infinities and NaNs, of
    which :mod:`gen.reference.limits` knows; at the ``verge`` a value may not be flushed to zero.
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
    # A derivative has cotangents and tangents as further inputs.
    are_values = len(program.inputs) == len(sample.inputs)
    at_verge = are_values and word == "verge"
    for place, (a, polynomial) in enumerate(zip(actual, polynomials, strict=True)):
        # A pipeline that returns an input itself has nothing to compare.
        if isinstance(polynomial, Symbol):
            continue
        where = f"{label}: output {place} of {len(actual)}"
        output = _Output(where, a, function, polynomial, program.inputs)
        if word == "edges":
            _compare_edges(output, tally)
        else:
            _compare_entries(output, _flush_limit(a.dtype, at_verge), tally)
    # Behind the comparisons, as the function notes its reasons while it is evaluated.
    _require_exact_value(function, tally)


def _flush_limit(dtype: torch.dtype, at_verge: bool) -> float:
    """Return how large a value may be in whose place a kernel gives zero."""
    info = torch.finfo(dtype)
    if at_verge:
        return 4 * info.eps * info.smallest_normal
    return 64 * info.smallest_normal


def _require_exact_value(function: Function, tally: Tally) -> None:
    """Raise Unsuitable, with the most frequent reasons, if no entry has an exact value."""
    if function.why and not tally.entries:
        reasons = function.why.most_common(2)
        raise Unsuitable("; ".join(f"{reason} ({count} entries)" for reason, count in reasons))


@dataclass(frozen=True)
class _Output:
    """One output of a program, and its definition: the value or a derivative of `function`."""

    where: str
    """For messages, as ``vjp(torch.sin): output 0 of 1``."""
    actual: Tensor
    function: Function
    polynomial: Polynomial
    inputs: Sequence[Tensor]

    def slack(self, wrong: Tensor) -> Tensor:
        """Return how far the exact results move where arguments move by :data:`ULPS` ulps.

        It is 0 for entries that are not `wrong`. The exact value itself takes no part: one that is
        wrong would allow its own error.
        """
        results = [
            self.function.evaluate(self.polynomial, _select(self._moved(ulps), wrong))
            for ulps in NEIGHBOURS
        ]
        widest = torch.zeros_like(results[0].value)
        for lower, upper in pairwise(results):
            change = (lower.value - upper.value).abs().nan_to_num(0.0)
            # the value of an unknown entry is 0
            is_known = ~(lower.unknown | upper.unknown)
            widest = torch.maximum(widest, change.where(is_known, 0.0))
        slack = torch.zeros(wrong.shape, dtype=torch.float64)
        slack[wrong] = widest
        return slack

    def _moved(self, ulps: int) -> list[Tensor]:
        """Return the inputs, with the arguments of the function off by so many ulps."""
        arguments = self.polynomial.arguments
        moved = list(self.inputs)
        for place in arguments:
            moved[place] = _off(moved[place], ulps)
        return moved

    def mismatch(self, e: Tensor, wrong: Tensor) -> Mismatch:
        """Return the error that shows the worst of the `wrong` entries."""
        a = self.actual
        error = torch.where(wrong, ((a.to(torch.float64) - e) / e).abs().nan_to_num(torch.inf), 0.0)
        worst = int(error.argmax())
        arguments = [self.inputs[place][worst].item() for place in self.polynomial.arguments]
        at = ", ".join(f"{argument:.17g}" for argument in arguments)
        return Mismatch(
            f"{self.where}: {int(wrong.sum())} of {wrong.numel()} entries are off; "
            f"worst at ({at}): got {a[worst].item()}, exactly {e[worst].item()}",
            expected=f"{e[worst].item()} at ({at})",
            actual=f"{a[worst].item()} at ({at})",
        )


def _compare_entries(output: _Output, flush: float, tally: Tally) -> None:
    """Compare with exact values, entry by entry."""
    a = output.actual
    expected = output.function.evaluate(output.polynomial, output.inputs)
    is_known = ~expected.unknown & ~expected.value.isnan()
    _count_entries(a, expected.value, is_known, tally)
    wrong = is_known & ~_near(a, expected, torch.zeros_like(expected.value), flush)
    # The slack takes four more evaluations, of the entries that are wrong without it.
    if bool(wrong.any()) and output.function.name not in ROUNDED:
        wrong &= ~_near(a, expected, output.slack(wrong), flush)
    save()
    if bool(wrong.any()):
        raise output.mismatch(expected.value, wrong)


def _compare_edges(output: _Output, tally: Tally) -> None:
    """Compare with limits, entry by entry: infinities and NaNs must agree, and signs of zeros where
    a standard gives them."""
    a, function, polynomial = output.actual, output.function, output.polynomial
    e, unknown = function.at_edges(polynomial, output.inputs, at_edge)
    is_known = ~unknown
    _count_entries(a, e, is_known, tally)
    actual = a.to(torch.float64)
    close = torch.isclose(
        actual,
        e,
        rtol=RTOL[a.dtype],
        atol=64 * torch.finfo(a.dtype).smallest_normal,
        equal_nan=True,
    )
    # Only of values: a standard says nothing of the sign of a slope.
    is_value = not any(any(orders) for _, orders in polynomial.terms)
    if is_value and function.name in SIGNED:
        close &= (e != 0) | (e.signbit() == actual.signbit())
    wrong = is_known & ~close
    save()
    if bool(wrong.any()):
        raise output.mismatch(e, wrong)


def _count_entries(a: Tensor, e: Tensor, is_known: Tensor, tally: Tally) -> None:
    """Count the entries of one output, and those of them that a definition gives."""
    tally.entries += int(is_known.sum())
    tally.unknown += int((~is_known).sum())
    tally.nonzero += int((e[is_known] != 0).sum()) + int((a[is_known] != 0).sum())


def _select(inputs: Sequence[Tensor], mask: Tensor) -> list[Tensor]:
    """Return the entries of each input that a mask has, since each evaluation takes long."""
    return [x[mask] for x in inputs]


def _off(x: Tensor, ulps: int) -> Tensor:
    """Return each number off by so many ulps of its size."""
    return x * (1 + ulps * torch.finfo(x.dtype).eps)


def _near(a: Tensor, expected: Evaluated, slack: Tensor, flush: float) -> Tensor:
    """Return which entries are close.

    Where a derivative is beyond the range of the dtype, a result that is not finite is right too.
    Below that range, so is zero, if the derivative is below `flush`. There each step on the way
    rounds to a multiple of the smallest number, and the steps that follow make that error larger.
    It is no error of a sign, so it is at most as large as the result.
    """
    info = torch.finfo(a.dtype)
    actual, e = a.to(torch.float64), expected.value
    smallest = info.eps * info.smallest_normal
    underflow = (smallest * expected.gain).minimum(e.abs())
    underflow = underflow.where(e.abs() < info.smallest_normal, 0.0)
    rounding = ULPS * (info.eps * expected.noise + smallest) + underflow
    close = (actual - e).abs() <= RTOL[a.dtype] * expected.scale + slack + rounding
    close |= (actual == 0) & (e.abs() <= flush)
    is_beyond_range = expected.reach.nan_to_num(torch.inf) > info.max / 2
    return close | (is_beyond_range & ~actual.isfinite())


# --- special points ------------------------------------------------------------------------------


def compare_with_standard(
    program: Program, sample: Sample, actual: Sequence[Tensor], tally: Tally, label: str
) -> None:
    """Raise Mismatch unless each entry is what the tables say. Entries of which they say nothing
    are counted as unknown.

    A result is compared as its dtype has it: an infinity or a NaN must be one, and a number may be
    off by what a kernel rounds. For values, not for slopes, the sign of a zero counts if the op's
    rule is `signed`, and nothing may be off if it is `exact`.
    """
    if not is_known(sample.op.name):
        raise Unsuitable(f"no table has {sample.op.name}")
    inputs = [numbers(x.cpu()) for x in program.inputs]
    # a target for these stages alone
    expected = program.over(Standard(sample))(*inputs)  # type: ignore[arg-type]
    if len(expected) != len(actual):
        raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(expected)}")
    are_values = len(program.inputs) == len(sample.inputs)
    # Slopes are rounded in any case, and no table has the signs of zero slopes.
    equality = _Equality(
        signed=are_values and is_signed(sample.op.name),
        exact=are_values and is_exact(sample.op.name),
    )
    for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
        where = f"{label}: output {place} of {len(actual)}"
        if tuple(a.shape) != e.shape:
            raise Mismatch(
                f"{where} has shape {list(a.shape)}, expected {list(e.shape)}",
                expected=f"shape {list(e.shape)}",
                actual=f"shape {list(a.shape)}",
            )
        pairs = list(zip(a.detach().reshape(-1).tolist(), e.reshape(-1).tolist(), strict=True))
        wrong = _wrong_pairs(pairs, a.dtype, equality, tally)
        if wrong:
            got, right = pairs[wrong[0]]
            raise Mismatch(
                f"{where}: {_first_of(wrong, pairs, program.inputs, a)}",
                expected=f"{right} at entry {wrong[0]}",
                actual=f"{got} at entry {wrong[0]}",
            )


def _wrong_pairs(
    pairs: Sequence[tuple[object, object]], dtype: torch.dtype, equality: _Equality, tally: Tally
) -> list[int]:
    """List the places of results that are not as expected. Counts all results in `tally`."""
    known_places = [place for place, (_, e) in enumerate(pairs) if _is_said(e, dtype)]
    tally.entries += len(known_places)
    tally.unknown += len(pairs) - len(known_places)
    wrong = []
    for place in known_places:
        a, e = pairs[place]
        tally.nonzero += a != 0 or e != 0
        if not equality.holds(a, e, dtype):
            wrong.append(place)
    return wrong


def _is_said(e: Any, dtype: torch.dtype) -> bool:
    """Return whether something is said of an entry, in a dtype that has it."""
    if e is None:
        return False
    if dtype.is_floating_point:
        return True
    # A dtype of whole numbers has no NaN, and no number beyond its range.
    if e != e:
        return False
    if dtype.is_complex or dtype is torch.bool:
        return True
    return bool(torch.iinfo(dtype).min <= e <= torch.iinfo(dtype).max)


@dataclass(frozen=True)
class _Equality:
    """When a result counts as the expected number: `signed` if the sign of a zero counts, `exact`
    if nothing may be off."""

    signed: bool
    exact: bool

    def holds(self, argument: Any, e: object, dtype: torch.dtype) -> bool:
        """Return whether a result is the expected number, as its dtype has it."""
        if not is_inexact(dtype):
            return _is_same_integer(argument, e, dtype)
        # A table has 1e300, which is infinite in a narrow dtype.
        rounded = torch.tensor(e, dtype=torch.float64).to(dtype).item()
        are_nan = {math.isnan(rounded), math.isnan(argument)}
        if True in are_nan:
            return are_nan == {True}
        if argument == rounded:
            return not self.signed or _has_same_sign(argument, rounded)
        if math.isinf(rounded) or (self.exact and not isinstance(e, Near)):
            return False
        return _is_close(argument, rounded, dtype)


def _is_same_integer(argument: object, e: object, dtype: torch.dtype) -> bool:
    """Return whether a result without rounding is the expected number; of a boolean, whether both
    are zero or neither is.
    """
    if dtype is torch.bool:
        return bool(argument == bool(e))
    return bool(argument == e)


def _is_close(a: float, e: float, dtype: torch.dtype) -> bool:
    """Return whether a result is as near as rounding allows."""
    # A relative bound alone would allow nothing near 0.
    allowed = RTOL[dtype] * abs(e) + ULPS * torch.finfo(dtype).eps
    return math.isfinite(a) and abs(a - e) <= allowed


def _has_same_sign(a: float, equal: float) -> bool:
    """Return whether two equal numbers have the same sign. Zeros need not."""
    return a != 0 or math.copysign(1, a) == math.copysign(1, equal)


def _first_of(
    wrong: Sequence[int],
    pairs: Sequence[tuple[object, object]],
    inputs: Sequence[Tensor],
    a: Tensor,
) -> str:
    """Show the first wrong entry, with the inputs there and both results."""
    first = wrong[0]
    # Entry 3 of a sum over rows is of no entry 3 of the inputs, so these are shown whole.
    are_elementwise = all(x.numel() == a.numel() for x in inputs)
    shown: list[object] = [x.tolist() for x in inputs]
    if are_elementwise:
        shown = [x.reshape(-1)[first].item() for x in inputs]
    got, right = pairs[first]
    return (
        f"{len(wrong)} of {len(pairs)} entries are off; the first is entry {first}, at {shown}: "
        f"got {got}, by the tables {right}"
    )
