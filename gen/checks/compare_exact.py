"""Compare with exact values and derivatives, and at special points with what standards say.

Entries are compared one by one with a relative tolerance, so that tails count. For example, 1e-300
in the place of 2e-300 is a mistake.
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
"""Distances of an argument's neighbours from it, in ulps. Two in a row are :data:`ULPS` apart. At
the edge of a domain there are still two on one side."""
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
    """Raise Mismatch unless each entry is near the exact value.

    Entries without an exact value are counted as unknown. A result passes if it is within
    :data:`RTOL` of the exact one, or if exact results for arguments a few ulps apart are as far
    from one another. Two words change that. Samples of ``edges`` have infinities and NaNs, whose
    results are the limits of :mod:`gen.reference.limits`. Values of ``verge`` must not be flushed
    to zero.
    """
    if not points.is_scalar(sample):
        raise Unsuitable(f"{sample.op.name} has no exact definition on these inputs")
    # Exact values are computed on the CPU.
    actual = [result.cpu() for result in actual]
    program = replace(program, inputs=tuple(x.cpu() for x in program.inputs))
    function = points.function(sample)
    exact = Exact()
    symbols = tuple(map(Symbol, range(len(program.inputs))))
    # Exact is no whole target. It has only the stages that programs of scalars use.
    polynomials = program.over(exact)(*symbols)  # type: ignore[arg-type]
    if len(polynomials) != len(actual):
        raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(polynomials)}")
    # A derivative has cotangents and tangents as further inputs.
    are_values = len(program.inputs) == len(sample.inputs)
    at_verge = are_values and word == "verge"
    for place, (result, polynomial) in enumerate(zip(actual, polynomials, strict=True)):
        # A pipeline that returns an input itself has nothing to compare.
        if isinstance(polynomial, Symbol):
            continue
        where = f"{label}: output {place} of {len(actual)}"
        output = _Output(where, result, function, polynomial, program.inputs)
        if word == "edges":
            _compare_edges(output, tally)
        else:
            _compare_entries(output, _flush_limit(result.dtype, at_verge), tally)
    # Behind the comparisons, as the function notes its reasons while it is evaluated.
    _require_exact_value(function, tally)


def _flush_limit(dtype: torch.dtype, at_verge: bool) -> float:
    """Return the largest value in whose place a kernel may give zero."""
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

    # the output in messages, such as ``vjp(torch.sin): output 0 of 1``
    where: str
    actual: Tensor
    function: Function
    polynomial: Polynomial
    inputs: Sequence[Tensor]

    def slack(self, wrong: Tensor) -> Tensor:
        """Return how far the exact results move where arguments move by :data:`ULPS` ulps.

        It is 0 for entries that are not `wrong`. The exact value itself takes no part, because a
        wrong one would allow its own error.
        """
        results = [
            self.function.evaluate(self.polynomial, _select(self._moved(ulps), wrong))
            for ulps in NEIGHBOURS
        ]
        widest = torch.zeros_like(results[0].value)
        for lower, upper in pairwise(results):
            change = (lower.value - upper.value).abs().nan_to_num(0.0)
            # The value of an unknown entry is 0, so it says nothing of the slope.
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

    def mismatch(self, expected: Tensor, wrong: Tensor) -> Mismatch:
        """Return the error that shows the worst of the `wrong` entries."""
        actual = self.actual
        error = torch.where(
            wrong,
            ((actual.to(torch.float64) - expected) / expected).abs().nan_to_num(torch.inf),
            0.0,
        )
        worst = int(error.argmax())
        arguments = [self.inputs[place][worst].item() for place in self.polynomial.arguments]
        at = ", ".join(f"{argument:.17g}" for argument in arguments)
        return Mismatch(
            f"{self.where}: {int(wrong.sum())} of {wrong.numel()} entries are off; "
            f"worst at ({at}): got {actual[worst].item()}, exactly {expected[worst].item()}",
            expected=f"{expected[worst].item()} at ({at})",
            actual=f"{actual[worst].item()} at ({at})",
        )


def _compare_entries(output: _Output, flush: float, tally: Tally) -> None:
    """Compare with exact values, entry by entry."""
    actual = output.actual
    expected = output.function.evaluate(output.polynomial, output.inputs)
    is_known = ~expected.unknown & ~expected.value.isnan()
    _count_entries(actual, expected.value, is_known, tally)
    wrong = is_known & ~_near(actual, expected, torch.zeros_like(expected.value), flush)
    # The slack takes four more evaluations, of the entries that are wrong without it.
    if bool(wrong.any()) and output.function.name not in ROUNDED:
        wrong &= ~_near(actual, expected, output.slack(wrong), flush)
    save()
    if bool(wrong.any()):
        raise output.mismatch(expected.value, wrong)


def _compare_edges(output: _Output, tally: Tally) -> None:
    """Compare with limits, entry by entry.

    Infinities and NaNs must agree. Signs of zeros must agree where a standard gives them.
    """
    actual, function, polynomial = output.actual, output.function, output.polynomial
    expected, unknown = function.at_edges(polynomial, output.inputs, at_edge)
    is_known = ~unknown
    _count_entries(actual, expected, is_known, tally)
    wide = actual.to(torch.float64)
    close = torch.isclose(
        wide,
        expected,
        rtol=RTOL[actual.dtype],
        atol=64 * torch.finfo(actual.dtype).smallest_normal,
        equal_nan=True,
    )
    # Only signs of values are compared. A standard says nothing of the sign of a slope.
    is_value = not any(any(orders) for _, orders in polynomial.terms)
    if is_value and function.name in SIGNED:
        close &= (expected != 0) | (expected.signbit() == wide.signbit())
    wrong = is_known & ~close
    save()
    if bool(wrong.any()):
        raise output.mismatch(expected, wrong)


def _count_entries(actual: Tensor, expected: Tensor, is_known: Tensor, tally: Tally) -> None:
    """Count the entries of one output, and those of them that a definition gives."""
    tally.entries += int(is_known.sum())
    tally.unknown += int((~is_known).sum())
    tally.nonzero += int((expected[is_known] != 0).sum()) + int((actual[is_known] != 0).sum())


def _select(inputs: Sequence[Tensor], mask: Tensor) -> list[Tensor]:
    """Return the entries of each input that a mask has, since each evaluation takes long."""
    return [x[mask] for x in inputs]


def _off(x: Tensor, ulps: int) -> Tensor:
    """Return each number off by a number of ulps of its size."""
    return x * (1 + ulps * torch.finfo(x.dtype).eps)


def _near(actual: Tensor, expected: Evaluated, slack: Tensor, flush: float) -> Tensor:
    """Return a mask of the entries that are close.

    Two ends of the range of the dtype allow more. Beyond the largest number, a result that is not
    finite is right too. Zero is right too if the exact result is at most `flush`.
    """
    info = torch.finfo(actual.dtype)
    wide, exact = actual.to(torch.float64), expected.value
    smallest = info.eps * info.smallest_normal
    # Below the normal numbers each step on the way rounds to a multiple of the smallest number, and
    # the steps that follow make that error larger. Such an error changes no sign, so it is at most
    # as large as the result.
    underflow = (smallest * expected.gain).minimum(exact.abs())
    underflow = underflow.where(exact.abs() < info.smallest_normal, 0.0)
    rounding = ULPS * (info.eps * expected.noise + smallest) + underflow
    close = (wide - exact).abs() <= RTOL[actual.dtype] * expected.scale + slack + rounding
    close |= (wide == 0) & (exact.abs() <= flush)
    is_beyond_range = expected.reach.nan_to_num(torch.inf) > info.max / 2
    return close | (is_beyond_range & ~wide.isfinite())


# --- special points ------------------------------------------------------------------------------


def compare_with_standard(
    program: Program, sample: Sample, actual: Sequence[Tensor], tally: Tally, label: str
) -> None:
    """Raise Mismatch unless each entry is what the tables say.

    Entries of which they say nothing are counted as unknown. A result is compared with the number
    of the table in its own dtype. An infinity or a NaN must be one, and another number may be off
    by what a kernel rounds. The rule of an op may ask for more of its values, but not of slopes.
    The sign of a zero counts if the rule is `signed`, and nothing may be off if it is `exact`.
    """
    if not is_known(sample.op.name):
        raise Unsuitable(f"no table has {sample.op.name}")
    inputs = [numbers(x.cpu()) for x in program.inputs]
    # Standard is no whole target. It has only the stages that the tables serve.
    expected = program.over(Standard(sample))(*inputs)  # type: ignore[arg-type]
    if len(expected) != len(actual):
        raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(expected)}")
    are_values = len(program.inputs) == len(sample.inputs)
    # Slopes are rounded in any case, and no table has the signs of zero slopes.
    equality = _Equality(
        signed=are_values and is_signed(sample.op.name),
        exact=are_values and is_exact(sample.op.name),
    )
    for place, (output, table) in enumerate(zip(actual, expected, strict=True)):
        where = f"{label}: output {place} of {len(actual)}"
        if tuple(output.shape) != table.shape:
            raise Mismatch(
                f"{where} has shape {list(output.shape)}, expected {list(table.shape)}",
                expected=f"shape {list(table.shape)}",
                actual=f"shape {list(output.shape)}",
            )
        pairs = list(
            zip(output.detach().reshape(-1).tolist(), table.reshape(-1).tolist(), strict=True)
        )
        wrong = _wrong_pairs(pairs, output.dtype, equality, tally)
        if wrong:
            got, right = pairs[wrong[0]]
            raise Mismatch(
                f"{where}: {_first_of(wrong, pairs, program.inputs, output)}",
                expected=f"{right} at entry {wrong[0]}",
                actual=f"{got} at entry {wrong[0]}",
            )


def _wrong_pairs(
    pairs: Sequence[tuple[object, object]], dtype: torch.dtype, equality: _Equality, tally: Tally
) -> list[int]:
    """List the places of results that are not as expected, and count all results in `tally`."""
    known_places = [place for place, (_, expected) in enumerate(pairs) if _is_said(expected, dtype)]
    tally.entries += len(known_places)
    tally.unknown += len(pairs) - len(known_places)
    wrong = []
    for place in known_places:
        actual, expected = pairs[place]
        tally.nonzero += actual != 0 or expected != 0
        if not equality.holds(actual, expected, dtype):
            wrong.append(place)
    return wrong


def _is_said(expected: Any, dtype: torch.dtype) -> bool:
    """Return whether the tables give a number for an entry, and its dtype has that number."""
    if expected is None:
        return False
    if dtype.is_floating_point:
        return True
    # A dtype of whole numbers has no NaN, and no number beyond its range.
    if expected != expected:
        return False
    if dtype.is_complex or dtype is torch.bool:
        return True
    return bool(torch.iinfo(dtype).min <= expected <= torch.iinfo(dtype).max)


@dataclass(frozen=True)
class _Equality:
    """A rule by which a result counts as the expected number."""

    # whether the sign of a zero counts
    signed: bool
    # whether nothing may be off
    exact: bool

    def holds(self, actual: Any, expected: object, dtype: torch.dtype) -> bool:
        """Return whether a result is the expected number, as its dtype has it."""
        if not is_inexact(dtype):
            return _is_same_integer(actual, expected, dtype)
        # A table has 1e300, which is infinite in a narrow dtype.
        rounded = torch.tensor(expected, dtype=torch.float64).to(dtype).item()
        are_nan = {math.isnan(rounded), math.isnan(actual)}
        if True in are_nan:
            return are_nan == {True}
        if actual == rounded:
            return not self.signed or _has_same_sign(actual, rounded)
        if math.isinf(rounded) or (self.exact and not isinstance(expected, Near)):
            return False
        return _is_close(actual, rounded, dtype)


def _is_same_integer(actual: object, expected: object, dtype: torch.dtype) -> bool:
    """Return whether a result without rounding is the expected number.

    A boolean is the expected one if both are zero or neither is.
    """
    if dtype is torch.bool:
        return bool(actual == bool(expected))
    return bool(actual == expected)


def _is_close(actual: float, expected: float, dtype: torch.dtype) -> bool:
    """Return whether a result is as near as rounding allows."""
    # A relative bound alone would allow nothing near 0.
    allowed = RTOL[dtype] * abs(expected) + ULPS * torch.finfo(dtype).eps
    return math.isfinite(actual) and abs(actual - expected) <= allowed


def _has_same_sign(actual: float, expected: float) -> bool:
    """Return whether two equal numbers have the same sign. Only zeros may differ in it."""
    return actual != 0 or math.copysign(1, actual) == math.copysign(1, expected)


def _first_of(
    wrong: Sequence[int],
    pairs: Sequence[tuple[object, object]],
    inputs: Sequence[Tensor],
    actual: Tensor,
) -> str:
    """Show the first wrong entry, with the inputs there and both results."""
    first = wrong[0]
    # Entry 3 of a sum over rows does not belong to entry 3 of the inputs, so these are shown whole.
    are_elementwise = all(x.numel() == actual.numel() for x in inputs)
    shown: list[object] = [x.tolist() for x in inputs]
    if are_elementwise:
        shown = [x.reshape(-1)[first].item() for x in inputs]
    got, right = pairs[first]
    return (
        f"{len(wrong)} of {len(pairs)} entries are off; the first is entry {first}, at {shown}: "
        f"got {got}, by the tables {right}"
    )
