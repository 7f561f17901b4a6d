"""Compare with definitions of arrays in arbitrary precision.

They are compared entry by entry, so that a small entry counts next to a large one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy
import torch
from mpmath import mp, mpf

from gen.checks.compare import Tally
from gen.checks.pipelines import Program
from gen.outcomes import Mismatch, Unsuitable
from gen.reference.arrays import Array, Definite, bits, exactly
from gen.reference.definitions import DEFINITIONS, MOVED
from gen.reference.scalars import Undefined
from gen.samples.domains import is_inexact
from gen.samples.samples import Sample
from gen.samples.seeds import generator

__all__ = ["compare_with_definition"]

Tensor = torch.Tensor
RTOL = {torch.float64: 1e-9, torch.float32: 3e-5, torch.complex64: 3e-5, torch.complex128: 1e-9}
ULPS = 8  # a result may be that of inputs off by so many ulps
LARGE = mpf(2) ** 30  # what grows beyond it goes to infinity
FAR = (200, 400)  # bits of the numbers that stand for infinity
# entries of the inputs; an evaluation in arbitrary precision of more takes minutes
LARGEST, LARGEST_DERIVATIVE = 400, 80
TURNS = 3  # runs with inputs that are off; one of them may leave a result unchanged by chance


def compare_with_definition(
    program: Program, sample: Sample, actual: Sequence[Tensor], tally: Tally, label: str
) -> None:
    """Raise Mismatch unless each entry is near what the definition gives.

    Entries that it does not give are counted as unknown. An infinite input stands for ever larger
    numbers.

    A result may be as far off as an error of a few ulps in each input makes it. Some functions do
    not change if all of their inputs are shifted. For these the error is one in each input's
    distance from the average.
    """
    _require_suitable_inputs(program, sample)
    definition = _Definition(program, sample)
    # The precision is a setting of mpmath. So the comparisons stand inside as well, because an
    # operation outside would round its numbers.
    with mp.workprec(definition.precision):
        expected = definition.outputs()
        if len(expected) != len(actual):
            raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(expected)}")
        for place, (output, exact) in enumerate(zip(actual, expected, strict=True)):
            where = f"{label}: output {place}"
            if output.shape != exact.shape:
                raise Mismatch(
                    f"{where} has shape {list(output.shape)}, expected {list(exact.shape)}"
                )
            wrong_entries = _wrong_entries(definition, place, output, exact, tally)
            if wrong_entries:
                where = f"{where} of {len(actual)}"
                first = wrong_entries[0]
                raise Mismatch(
                    f"{where}: {_describe_wrong(wrong_entries, output, exact)}",
                    expected=f"{_short(exact.flat[first])} at entry {first}",
                    actual=f"{_number(output, first)} at entry {first}",
                )


def _require_suitable_inputs(program: Program, sample: Sample) -> None:
    """Raise Unsuitable for inputs of which a definition says nothing, or that take too long."""
    if any(bool(x.isnan().any()) for x in program.inputs):
        raise Unsuitable("a definition says nothing of NaN")
    is_value = program.label == sample.op.name
    largest = LARGEST if is_value else LARGEST_DERIVATIVE
    if sum(x.numel() for x in program.inputs) > largest:
        raise Unsuitable(f"{sample.description} is too large for its definition")


class _Definition:
    """The definition of a program, at the inputs of the program.

    Its results have the current precision of mpmath, see :attr:`precision`.
    """

    def __init__(self, program: Program, sample: Sample) -> None:
        self._program = program
        self._sample = sample
        infinite = any(bool(x.isinf().any()) for x in program.inputs)
        self._far = FAR[1] if infinite else 0

    @property
    def precision(self) -> int:
        """Return the bits that the inputs and the derivatives of the program need."""
        derivatives = sum(map(self._program.label.count, ("vjp", "jvp", "jac")))
        return bits(self._program.inputs, derivatives, self._far)

    def outputs(self) -> list[Array]:
        """Return the exact results.

        They are limits where an input is infinite, and NaN where no limit is known.
        """
        if not self._far:
            return self._farthest
        # The farther numbers come first, because their error is the one that is reported.
        farthest = self._farthest
        # Two finite numbers in the place of each infinity show where a result goes.
        nearer = _expected(self._program, self._sample, FAR[0])
        limits = numpy.frompyfunc(_limit, 2, 1)
        return [_array(limits(near, far)) for near, far in zip(nearer, farthest, strict=True)]

    @cached_property
    def _farthest(self) -> list[Array]:
        """Return the results at the inputs, or at the largest numbers that stand for infinities."""
        return _expected(self._program, self._sample, self._far)

    @cached_property
    def slack(self) -> list[list[Any]]:
        """Return how much each entry of each output may be off."""
        return _slack(self._program, self._sample, self._farthest, self._far)


def _wrong_entries(
    definition: _Definition, place: int, actual: Tensor, expected: Array, tally: Tally
) -> list[int]:
    """List the entries of one output that are off, and count all of its entries in `tally`."""
    known_places = [entry for entry, exact in enumerate(expected.flat) if not mp.isnan(exact)]
    tally.entries += len(known_places)
    tally.unknown += expected.size - len(known_places)
    suspects = []
    for entry in known_places:
        number, exact = _number(actual, entry), expected.flat[entry]
        tally.nonzero += exact != 0 or number != 0
        if not _near(number, exact, actual.dtype, mpf(0)):
            suspects.append(entry)
    if not suspects:
        return []
    # The slack takes several evaluations, so it is computed only where a result seems wrong.
    slack = definition.slack[place]
    wrong = []
    for entry in suspects:
        if not _near(_number(actual, entry), expected.flat[entry], actual.dtype, slack[entry]):
            wrong.append(entry)
    return wrong


def _describe_wrong(wrong: Sequence[int], actual: Tensor, expected: Array) -> str:
    """Say how many entries are off, and show the first one."""
    first = wrong[0]
    index: list[int] = []
    if actual.ndim:
        index = list(map(int, torch.unravel_index(torch.tensor(first), actual.shape)))
    return (
        f"{len(wrong)} of {expected.size} entries are off; the first at {index}: "
        f"got {_number(actual, first)}, by definition {_short(expected.flat[first])}"
    )


def _array(value: Any) -> Array:
    """Return an array of Python objects, as NumPy's own numbers have too few bits."""
    return numpy.asarray(value, dtype=object)


def _expected(
    program: Program,
    sample: Sample,
    far: int,
    change: Callable[[Array, int], Array] = lambda x, k: x,
) -> list[Array]:
    """Return the exact results at the inputs, with numbers of `far` bits for infinities.

    `change` is applied to each input and its place. Raises Unsuitable if no definition covers the
    call.
    """
    # Definite is no whole target. It has only the stages that programs with a definition use.
    definition = program.over(Definite(_root(sample)))  # type: ignore[arg-type]
    try:
        arrays = []
        for place, x in enumerate(program.inputs):
            arrays.append(change(_replace_infinities(exactly(x), far), place))
        return list(map(_array, definition(*arrays)))
    except (Undefined, ZeroDivisionError, TypeError, IndexError, ValueError) as reason:
        raise Unsuitable(f"no definition of {sample.description}: {str(reason)[:80]}") from None


def _root(sample: Sample) -> Any:
    """Return the definition of the sample's op, as a function of the arrays alone."""

    def root(*arrays: Array) -> tuple[Array, ...]:
        args, kwargs = sample.rebuild(arrays)
        results = DEFINITIONS[sample.op.name](*args, **kwargs)
        if not isinstance(results, tuple):
            results = (results,)
        return tuple(map(_array, results))

    return root


def _replace_infinities(x: Array, far: int) -> Array:
    """Return `x` with numbers of `far` bits for infinities.

    The order of these numbers differs between the two values of `far`. A result that depends on
    the order is no limit, and the difference shows that.
    """
    if x.dtype != object or not far:
        return x
    order = range(x.size) if far == FAR[0] else range(x.size, 0, -1)
    flat = []
    for rank, value in zip(order, x.flat, strict=True):
        # Two infinities become two numbers, whose difference is not 0.
        if mp.isinf(value):
            value = mp.sign(value) * mp.ldexp(1 + mpf(rank) / 64, far)
        flat.append(value)
    return _array(flat).reshape(x.shape)


def _limit(near: Any, far: Any) -> object:
    """Return the limit of a result that is `near` at large inputs and `far` at larger ones.

    The limit is NaN if the two do not show it.
    """
    if isinstance(near, mp.mpc) or isinstance(far, mp.mpc):
        return _complex_limit(near, far)
    if any(map(mp.isnan, (near, far))):
        return mp.nan
    if _agree(near, far):
        return far
    # A result goes to 0 if it is tiny and still shrinks. It goes to infinity if it is large and
    # still grows.
    if abs(far) < mpf(2) ** -140 and abs(far) < abs(near):
        return mpf(0)
    if near * far > 0 and abs(far) > max(mpf(1.5) * abs(near), LARGE):
        return mp.sign(far) * mp.inf
    return mp.nan


def _agree(near: Any, far: Any) -> bool:
    """Return whether a result no longer moves while the inputs grow."""
    return bool(near == far or abs(near - far) <= mpf(2) ** -80 * abs(far))


def _complex_limit(near: object, far: object) -> object:
    """Return the limit of a complex result, part by part."""
    real = _limit(mp.re(near), mp.re(far))
    imaginary = _limit(mp.im(near), mp.im(far))
    if any(map(mp.isnan, (real, imaginary))):
        return mp.nan
    return mp.mpc(real, imaginary)


def _slack(
    program: Program, sample: Sample, expected: Sequence[Array], far: int
) -> list[list[object]]:
    """Return the change of each entry of each output if inputs are off by a few ulps.

    Each number of an input is off up or down at random.
    """
    op = sample.op.name
    share = ULPS * max(torch.finfo(x.dtype).eps for x in program.inputs if _is_inexact(x))
    slack = [[mpf(0)] * exact.size for exact in expected]
    if op in MOVED:
        # Such a gradient is a difference from an average, which cancels most of its digits.
        slack = [[share * _largest(exact)] * exact.size for exact in expected]
    for turn in range(TURNS):
        source = generator(sample.seed, "slack", turn)
        other = _expected(program, sample, far, partial(_off, op, share, source))
        for place, (exact, moved) in enumerate(zip(expected, other, strict=True)):
            changes = (
                abs(there - here) for here, there in zip(exact.flat, moved.flat, strict=True)
            )
            slack[place] = list(map(_larger, slack[place], changes))
    return slack


def _off(op: str, share: float, source: torch.Generator, x: Array, place: int) -> Array:
    """Return the input at `place` with each number off by a share of it, up or down at random."""
    if x.dtype != object:
        return x
    signs = (torch.randint(2, x.shape, generator=source) * 2 - 1).numpy().astype(object)
    middle = mpf(0)
    if place < MOVED.get(op, 0) and x.size:
        middle = sum(x.flat, mpf(0)) / x.size
    return _array(x + (x - middle) * signs * share)


def _is_inexact(x: Tensor) -> bool:
    """Return whether an input is rounded, and so may be off."""
    return is_inexact(x.dtype)


def _largest(expected: Array) -> Any:
    """Return the largest size of the finite entries."""
    return max((abs(value) for value in expected.flat if mp.isfinite(value)), default=mpf(0))


def _larger(slack: Any, change: Any) -> object:
    """Return the larger of two numbers. A change of NaN does not count."""
    if mp.isnan(change):
        return slack
    return max(slack, change)


def _number(actual: Tensor, entry: int) -> Any:
    """Return an entry of a result as a number of Python."""
    return actual.detach().reshape(-1)[entry].item()


def _near(actual: Any, exact: Any, dtype: torch.dtype, slack: Any) -> bool:
    """Return whether a number is close to the exact one.

    Near the end of the range of the dtype, infinity is close too.
    """
    if isinstance(actual, complex):
        part = torch.empty(0, dtype=dtype).real.dtype
        size = abs(exact) * RTOL[dtype]
        # Both parts may be off by a share of the whole number. An infinite one allows nothing.
        if not mp.isinf(size):
            slack = slack + size
        if not _near(actual.real, mp.re(exact), part, slack):
            return False
        return _near(actual.imag, mp.im(exact), part, slack)
    info = torch.finfo(dtype)
    if mp.isinf(exact):
        return bool(actual == float(exact))
    if not math.isfinite(actual):
        return bool(abs(exact) > info.max / 2)
    return bool(
        abs(mpf(actual) - exact) <= RTOL[dtype] * abs(exact) + slack + 64 * info.smallest_normal
    )


def _short(value: object) -> str:
    """Return an exact number with the digits that a message needs."""
    return str(mp.nstr(value, 12))
