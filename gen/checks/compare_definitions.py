"""Comparison with definitions of arrays in arbitrary precision: entry by entry, so that a small
entry beside a large one counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    if any(bool(x.isnan().any()) for x in program.inputs):
        raise Unsuitable("a definition says nothing of NaN")
    if sum(x.numel() for x in program.inputs) > (
        LARGEST if program.label == sample.op.name else LARGEST_DERIVATIVE
    ):
        raise Unsuitable(f"{sample.description} is too large for its definition")
    infinite = any(bool(x.isinf().any()) for x in program.inputs)
    far = FAR[1] if infinite else 0
    with mp.workprec(
        bits(program.inputs, sum(program.label.count(word) for word in ("vjp", "jvp", "jac")), far)
    ):
        held = expected = _expected(program, sample, far)
        if infinite:
            nearer = _expected(program, sample, FAR[0])
            expected = [
                _array(numpy.frompyfunc(_limit, 2, 1)(a, b))
                for a, b in zip(nearer, expected, strict=True)
            ]
        if len(expected) != len(actual):
            raise Mismatch(f"{label}: {len(actual)} outputs, expected {len(expected)}")
        slack: list[list[Any]] | None = None
        for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
            if a.shape != e.shape:
                raise Mismatch(
                    f"{label}: output {place} has shape {list(a.shape)}, expected {list(e.shape)}"
                )
            known = [not mp.isnan(v) for v in e.flat]
            tally.entries += sum(known)
            tally.unknown += len(known) - sum(known)
            tally.nonzero += sum(
                ok and (v != 0 or _number(a, k) != 0)
                for k, (ok, v) in enumerate(zip(known, e.flat, strict=True))
            )
            wrong = [
                k
                for k, v in enumerate(e.flat)
                if known[k] and not _near(_number(a, k), v, a.dtype, mpf(0))
            ]
            if wrong and slack is None:
                slack = _slack(program, sample, held, far)
            wrong = [
                k
                for k in wrong
                if slack and not _near(_number(a, k), e.flat[k], a.dtype, slack[place][k])
            ]
            if wrong:
                index = (
                    [int(i) for i in torch.unravel_index(torch.tensor(wrong[0]), a.shape)]
                    if a.ndim
                    else []
                )
                raise Mismatch(
                    f"{label}: output {place} of {len(actual)}: "
                    f"{len(wrong)} of {len(known)} entries are off; the first at {index}: "
                    f"got {_number(a, wrong[0])}, by definition {_short(e.flat[wrong[0]])}"
                )


def _array(x: Any) -> Array:
    return numpy.asarray(x, dtype=object)


def _expected(
    program: Program,
    sample: Sample,
    far: int,
    change: Callable[[Array, int], Array] = lambda x, k: x,
) -> list[Array]:
    # a target for these stages alone
    f = program.over(Definite(_root(sample)))  # type: ignore[arg-type]
    try:
        return [
            _array(y)
            for y in f(*(change(_finite(exactly(x), far), k) for k, x in enumerate(program.inputs)))
        ]
    except (Undefined, ZeroDivisionError, TypeError, IndexError, ValueError) as reason:
        raise Unsuitable(f"no definition of {sample.description}: {str(reason)[:80]}") from None


def _root(sample: Sample) -> Any:
    def root(*arrays: Array) -> tuple[Array, ...]:
        args, kwargs = sample.rebuild(arrays)
        found = DEFINITIONS[sample.op.name](*args, **kwargs)
        return tuple(
            numpy.asarray(y, dtype=object)
            for y in (found if isinstance(found, tuple) else (found,))
        )

    return root


def _finite(x: Array, far: int) -> Array:
    """`x` with numbers of `far` bits for infinities. Their order in size is another one for each
    `far`, as a limit depends on none."""
    if x.dtype != object or not far:
        return x
    order = range(x.size) if far == FAR[0] else range(x.size, 0, -1)
    flat = [
        mp.sign(v) * mp.ldexp(1 + mpf(k) / 64, far) if mp.isinf(v) else v
        for k, v in zip(order, x.flat, strict=True)
    ]
    return _array(flat).reshape(x.shape)


def _limit(near: Any, far: Any) -> Any:
    if isinstance(near, mp.mpc) or isinstance(far, mp.mpc):
        parts = [_limit(*map(part, (near, far))) for part in (mp.re, mp.im)]
        return mp.nan if any(map(mp.isnan, parts)) else mp.mpc(*parts)
    if mp.isnan(near) or mp.isnan(far):
        return mp.nan
    if near == far or abs(near - far) <= mpf(2) ** -80 * abs(far):
        return far
    if abs(far) < mpf(2) ** -140 and abs(far) < abs(near):
        return mpf(0)
    return (
        mp.sign(far) * mp.inf
        if near * far > 0 and abs(far) > max(mpf(1.5) * abs(near), LARGE)
        else mp.nan
    )


def _slack(
    program: Program, sample: Sample, expected: Sequence[Array], far: int
) -> list[list[Any]]:
    """For each entry of each output, how much it changes if inputs are off by a few ulps, up
    and down at random."""
    eps = max(
        torch.finfo(x.dtype).eps for x in program.inputs if x.is_floating_point() or x.is_complex()
    )
    found = [[mpf(0)] * e.size for e in expected]
    for turn in range(TURNS):
        source = generator(sample.seed, "slack", turn)

        def off(x: Array, k: int, source: torch.Generator = source) -> Array:
            if x.dtype != object:
                return x
            signs = (torch.randint(2, x.shape, generator=source) * 2 - 1).numpy().astype(object)
            middle = (
                sum(x.flat, mpf(0)) / x.size
                if k < MOVED.get(sample.op.name, 0) and x.size
                else mpf(0)
            )
            return _array(x + (x - middle) * signs * (ULPS * eps))

        other = _expected(program, sample, far, off)
        for place, (e, o) in enumerate(zip(expected, other, strict=True)):
            # such a gradient is a difference from an average
            if turn == 0 and sample.op.name in MOVED:
                largest = max((abs(v) for v in e.flat if mp.isfinite(v)), default=mpf(0))
                found[place] = [ULPS * eps * largest] * e.size
            changes = [abs(b - a) for a, b in zip(e.flat, o.flat, strict=True)]
            found[place] = [
                v if mp.isnan(c) else max(v, c) for v, c in zip(found[place], changes, strict=True)
            ]
    return found


def _number(a: Tensor, k: int) -> Any:
    return a.detach().reshape(-1)[k].item()


def _near(a: Any, e: Any, dtype: torch.dtype, slack: Any) -> bool:
    """Whether a number is close to the exact one. Near the end of the range of the dtype,
    infinity is too."""
    if isinstance(a, complex):
        part, size = torch.empty(0, dtype=dtype).real.dtype, abs(e) * RTOL[dtype]
        size = mpf(0) if mp.isinf(size) else size
        return _near(a.real, mp.re(e), part, slack + size) and _near(
            a.imag, mp.im(e), part, slack + size
        )
    info = torch.finfo(dtype)
    if mp.isinf(e):
        return bool(a == float(e))
    if not math.isfinite(a):
        return bool(abs(e) > info.max / 2)
    return bool(abs(mpf(a) - e) <= RTOL[dtype] * abs(e) + slack + 64 * info.smallest_normal)


def _short(v: Any) -> str:
    return str(mp.nstr(v, 12))
