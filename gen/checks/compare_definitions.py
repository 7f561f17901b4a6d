"""Compare with definitions of arrays in arbitrary precision: entry by entry, so that a small entry
counts next to a large one. In all functions `a` is an actual tensor and `e` the expected array.
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
LARGEST, LARGEST_DERIVATIVE = 400, 80  # entries of the inputs; more take too long
TURNS = 3  # how often inputs are off


def compare_with_definition(
    program: Program, sample: Sample, actual: Sequence[Tensor], tally: Tally, label: str
) -> None:
    """Raise Mismatch unless each entry is near what the definition gives. Entries that it does not
    give are counted as unknown.

    An infinite input stands for ever larger numbers. A result may be as far off as an error of a
    few ulps in each input makes it; for functions that a shift of their inputs does not change, of
    each input's distance from the average.
    """
    _require_suitable_inputs(program, sample)
    definition = _Definition(program, sample)
    # The precision is a setting of mpmath, so the comparisons stand inside as well: an operation
    # outside would round its numbers.
    with mp.workprec(definition.precision):
        expected = definition.outputs()
        if len(expected) != len(actual):
            raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(expected)}")
        for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
            where = f"{label}: output {place}"
            if a.shape != e.shape:
                raise Mismatch(f"{where} has shape {list(a.shape)}, expected {list(e.shape)}")
            wrong_entries = _wrong_entries(definition, place, a, e, tally)
            if wrong_entries:
                where = f"{where} of {len(actual)}"
                first = wrong_entries[0]
                raise Mismatch(
                    f"{where}: {_describe_wrong(wrong_entries, a, e)}",
                    expected=f"{_short(e.flat[first])} at entry {first}",
                    actual=f"{_number(a, first)} at entry {first}",
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

    Its results are those at the current precision of mpmath: see :attr:`precision`.
    """

    def __init__(self, program: Program, sample: Sample) -> None:
        self._program = program
        self._sample = sample
        infinite = any(bool(x.isinf().any()) for x in program.inputs)
        self._far = FAR[1] if infinite else 0

    @property
    def precision(self) -> int:
        """Return the bits that are enough for the inputs and for each derivative that the program
        takes.
        """
        derivatives = sum(map(self._program.label.count, ("vjp", "jvp", "jac")))
        return bits(self._program.inputs, derivatives, self._far)

    def outputs(self) -> list[Array]:
        """Return the exact results: limits where an input is infinite, NaN where none is known."""
        if not self._far:
            return self._farthest
        # the farther numbers come first, as their error is the one that is reported
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
        """Return how much each entry of each output may be off. Computed only once an entry needs
        it.
        """
        return _slack(self._program, self._sample, self._farthest, self._far)


def _wrong_entries(
    definition: _Definition, place: int, a: Tensor, e: Array, tally: Tally
) -> list[int]:
    """List the entries of one output that are off. Counts all of its entries in `tally`."""
    known_places = [entry for entry, exact in enumerate(e.flat) if not mp.isnan(exact)]
    tally.entries += len(known_places)
    tally.unknown += e.size - len(known_places)
    suspects = []
    for entry in known_places:
        number, exact = _number(a, entry), e.flat[entry]
        tally.nonzero += exact != 0 or number != 0
        if not _near(number, exact, a.dtype, mpf(0)):
            suspects.append(entry)
    if not suspects:
        return []
    # The slack takes several evaluations, so it is computed only where a result seems wrong.
    slack = definition.slack[place]
    wrong = []
    for entry in suspects:
        if not _near(_number(a, entry), e.flat[entry], a.dtype, slack[entry]):
            wrong.append(entry)
    return wrong


def _describe_wrong(wrong: Sequence[int], a: Tensor, e: Array) -> str:
    """Say how many entries are off, and show the first one."""
    first = wrong[0]
    index: list[int] = []
    if a.ndim:
        index = list(map(int, torch.unravel_index(torch.tensor(first), a.shape)))
    return (
        f"{len(wrong)} of {e.size} entries are off; the first at {index}: "
        f"got {_number(a, first)}, by definition {_short(e.flat[first])}"
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
    # a target for these stages alone
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

    Their order in size is another one for each `far`, as a limit depends on none.
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
    """Return where a result goes that is `near` at large inputs and `far` at larger ones. NaN if
    the two do not show it."""
    if isinstance(near, mp.mpc) or isinstance(far, mp.mpc):
        return _complex_limit(near, far)
    if any(map(mp.isnan, (near, far))):
        return mp.nan
    if _agree(near, far):
        return far
    # It goes to 0 if it is tiny and still shrinks, and to infinity if it is large and still grows.
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
    """Return, for each entry of each output, how much it changes if inputs are off by a few ulps.

    The inputs are off up and down at random.
    """
    op = sample.op.name
    share = ULPS * max(torch.finfo(x.dtype).eps for x in program.inputs if _is_inexact(x))
    slack = [[mpf(0)] * e.size for e in expected]
    if op in MOVED:
        # such a gradient is a difference from an average
        slack = [[share * _largest(e)] * e.size for e in expected]
    for turn in range(TURNS):
        source = generator(sample.seed, "slack", turn)
        other = _expected(program, sample, far, partial(_off, op, share, source))
        for place, (e, moved) in enumerate(zip(expected, other, strict=True)):
            changes = (abs(there - here) for here, there in zip(e.flat, moved.flat, strict=True))
            slack[place] = list(map(_larger, slack[place], changes))
    return slack


def _off(op: str, share: float, source: torch.Generator, x: Array, k: int) -> Array:
    """Return input `k` with each number off by that share of it, up or down at random."""
    if x.dtype != object:
        return x
    signs = (torch.randint(2, x.shape, generator=source) * 2 - 1).numpy().astype(object)
    middle = mpf(0)
    if k < MOVED.get(op, 0) and x.size:
        middle = sum(x.flat, mpf(0)) / x.size
    return _array(x + (x - middle) * signs * share)


def _is_inexact(x: Tensor) -> bool:
    """Return whether an input is rounded, and so may be off."""
    return is_inexact(x.dtype)


def _largest(e: Array) -> Any:
    """Return the largest size of the finite entries."""
    return max((abs(value) for value in e.flat if mp.isfinite(value)), default=mpf(0))


def _larger(slack: Any, change: Any) -> object:
    """Return the larger of two numbers. A change of NaN does not count."""
    if mp.isnan(change):
        return slack
    return max(slack, change)


def _number(a: Tensor, k: int) -> Any:
    """Return entry `k` of a result as a number of Python."""
    return a.detach().reshape(-1)[k].item()


def _near(argument: Any, e: Any, dtype: torch.dtype, slack: Any) -> bool:
    """Return whether a number is close to the exact one. Near the end of the range of the dtype,
    infinity is close too.
    """
    if isinstance(argument, complex):
        part = torch.empty(0, dtype=dtype).real.dtype
        size = abs(e) * RTOL[dtype]
        # Both parts may be off by a share of the whole number. An infinite one allows nothing.
        if not mp.isinf(size):
            slack = slack + size
        if not _near(argument.real, mp.re(e), part, slack):
            return False
        return _near(argument.imag, mp.im(e), part, slack)
    info = torch.finfo(dtype)
    if mp.isinf(e):
        return bool(argument == float(e))
    if not math.isfinite(argument):
        return bool(abs(e) > info.max / 2)
    return bool(abs(mpf(argument) - e) <= RTOL[dtype] * abs(e) + slack + 64 * info.smallest_normal)


def _short(value: object) -> str:
    """Return an exact number with the digits that a message needs."""
    return str(mp.nstr(value, 12))
