"""Differentiate functions of arrays in arbitrary precision.

Derivatives are differences whose steps are too small to matter. Values are NumPy arrays of
mpmath's numbers. An op is its definition in :mod:`gen.reference.definitions`.

A first derivative evaluates the function twice for each entry of an input. A second derivative
takes the square of that. So samples have to be small.

    target = Definite(lambda x: (softmax(x, 0),))
    _, pullback = target.vjp(target.root, exactly(torch.tensor([40.0, 0.0])))
    pullback((exactly(torch.tensor([1.0, 0.0])),))     # e⁻⁴⁰ / (1 + e⁻⁴⁰)², to all digits
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy
import torch
from mpmath import mp, mpf

__all__ = ["Array", "Definite", "bits", "exactly"]

Array = Any
"""A ``numpy.ndarray`` of mpf or mpc, or of integers."""
Flat = Callable[..., tuple[Array, ...]]
# The outermost derivative takes steps of 2**-100. Each derivative inside it takes steps that are
# smaller by a factor of 2**-200.
FIRST, DEEPER = 100, 200
FINER = 40  # bits by which the second of two steps is smaller
AGREE = mpf(2) ** -60  # relative difference. A double has 53 bits, so equal doubles agree


def exactly(x: torch.Tensor) -> Array:
    """Return the numbers of a tensor without rounding. Integers and booleans keep their dtype."""
    if not (x.is_floating_point() or x.is_complex()):
        return x.numpy()
    if x.is_complex():
        values = x.to(torch.complex128).reshape(-1).tolist()
        numbers = [mp.mpc(value.real, value.imag) for value in values]
    else:
        numbers = list(map(mpf, x.to(torch.float64).reshape(-1).tolist()))
    # numpy.array would turn an empty list into an array of float64.
    array = numpy.empty(len(numbers), dtype=object)
    array[:] = numbers
    return array.reshape(tuple(x.shape))


def bits(inputs: Sequence[torch.Tensor], derivatives: int, far: int = 0) -> int:
    """Count the bits of precision with which every step and every sum of the inputs is exact.

    `far`: the bits of the number that stands for infinity.
    """
    spread = max(map(_spread, inputs), default=0.0)
    per_derivative = FIRST + DEEPER + FINER + spread
    return int(160 + 2 * spread + derivatives * per_derivative + 2 * far)


def _spread(x: torch.Tensor) -> float:
    """Return the largest magnitude of an exponent: 10 for the numbers 1024 and 0.25."""
    if not (x.is_floating_point() or x.is_complex()):
        return 0.0
    sizes = x.abs()
    sizes = sizes[sizes.isfinite() & (sizes > 0)].to(torch.float64)
    if sizes.numel() == 0:
        return 0.0
    # The smallest double is 2**-1074.
    return float(sizes.log2().abs().clamp(max=1100).max())


class Definite:
    """Differentiate definitions by the stages ``forward``, ``vjp``, ``backward``, ``jvp`` and
    ``jacrev`` (see :class:`gen.targets.protocol.Target`).

    `root` is the op. An entry is NaN if differences on either side disagree, as at a kink. Complex
    gradients follow torch's convention.
    """

    name = "definition"
    lacks: frozenset[str] = frozenset()

    def __init__(self, root: Flat) -> None:
        self.root = root
        self._depth = 0

    def forward(self, f: Flat) -> Flat:
        return f

    def vjp(
        self, f: Flat, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        """Return the outputs, and the function from cotangents to gradients."""
        with self._inside():
            outputs = f(*primals)

        def pullback(cotangents: Sequence[Array]) -> tuple[Array, ...]:
            numbers = range(len(primals))
            return tuple(self._gradient(f, primals, number, cotangents) for number in numbers)

        return outputs, pullback

    backward = vjp

    def jvp(
        self, f: Flat, primals: Sequence[Array], tangents: Sequence[Array]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return the outputs and their derivatives along `tangents`."""
        with self._inside():
            outputs = f(*primals)
        return outputs, self.along(f, primals, tangents)

    def jacrev(
        self, f: Flat, argnums: tuple[int, ...]
    ) -> Callable[..., tuple[tuple[Array, ...], ...]]:
        """Return blocks ``[output][argument]``, column by column."""

        def g(*args: Array) -> tuple[tuple[Array, ...], ...]:
            blocks: list[list[Array]] = []
            for argument in argnums:
                shape = args[argument].shape
                units = [_unit(args, argument, index, mpf(1)) for index in numpy.ndindex(shape)]
                columns = [self.along(f, args, unit) for unit in units]
                by_output = zip(*columns, strict=True)
                blocks.append([_join_columns(of_output, shape) for of_output in by_output])
            return tuple(zip(*blocks, strict=True))

        return g

    def _gradient(
        self, f: Flat, primals: Sequence[Array], argument: int, cotangents: Sequence[Array]
    ) -> Array:
        """Return the gradient of one argument, entry by entry.

        A complex entry takes two derivatives: along 1, and along i.
        """
        primal = primals[argument]

        def slope(index: tuple[int, ...], direction: object) -> Any:
            tangents = self.along(f, primals, _unit(primals, argument, index, direction))
            pairs = zip(cotangents, tangents, strict=True)
            return sum((_inner(cotangent, tangent) for cotangent, tangent in pairs), mpf(0))

        gradient = numpy.empty(primal.shape, dtype=object)
        # The dtype is object either way, so only the numbers show whether they are complex.
        is_complex = any(isinstance(number, mp.mpc) for number in primal.flat)
        for index in numpy.ndindex(primal.shape):
            gradient[index] = slope(index, mpf(1))
            if is_complex:
                gradient[index] = mp.mpc(gradient[index], slope(index, mp.mpc(0, 1)))
        return gradient

    def along(
        self, f: Flat, primals: Sequence[Array], directions: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        """Return the derivative of each output along `directions`.

        Each primal has a direction. None: the primal does not change.
        """
        numbers = chain.from_iterable(primal.flat for primal in primals)
        # The step is a small part of the smallest number, so every number changes by a small part.
        sizes = [abs(number) for number in numbers if not isinstance(number, int) and number != 0]
        # The step of an outer derivative must be far larger than those of derivatives inside it.
        step = min(sizes, default=mpf(1)) * mp.ldexp(1, -FIRST - DEEPER * self._depth)
        ahead, behind = self._slopes(f, primals, directions, step)
        if all(map(_agree, ahead, behind)):
            pairs = zip(ahead, behind, strict=True)
            return tuple(_array((one + other) / 2) for one, other in pairs)
        # The slopes of a steep function agree once the step is small enough. At a kink they never
        # do.
        finer_step = step * mp.ldexp(1, -FINER)
        nearer_ahead, nearer_behind = self._slopes(f, primals, directions, finer_step)
        smooth = numpy.frompyfunc(_smooth, 4, 1)
        slopes = zip(ahead, behind, nearer_ahead, nearer_behind, strict=True)
        return tuple(_array(smooth(*four)) for four in slopes)

    def _slopes(
        self, f: Flat, primals: Sequence[Array], directions: Sequence[Array | None], step: Any
    ) -> tuple[list[Array], list[Array]]:
        """Return the forward and the backward difference quotients of each output."""
        with self._inside():
            centre = f(*primals)
            up = f(*_move(primals, directions, step))
            down = f(*_move(primals, directions, -step))
        ahead = [_array((high - mid) / step) for high, mid in zip(up, centre, strict=True)]
        behind = [_array((mid - low) / step) for mid, low in zip(centre, down, strict=True)]
        return ahead, behind

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Count evaluations inside as part of a derivative, so that theirs take smaller steps."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


def _array(x: Any) -> Array:
    # Arithmetic of arrays without dimensions returns plain numbers.
    return numpy.asarray(x, dtype=object)


def _join_columns(columns: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Return the block of a Jacobian with these columns, one for each entry of `shape`."""
    return numpy.stack(columns, axis=-1).reshape(*columns[0].shape, *shape)


def _move(
    primals: Sequence[Array], directions: Sequence[Array | None], step: object
) -> list[Array]:
    """Return the primals, each moved by `step` along its direction."""
    points = list(primals)
    for index, direction in enumerate(directions):
        if direction is not None:
            points[index] = _array(points[index] + step * direction)
    return points


def _agree(ahead: Array, behind: Array) -> bool:
    return all(map(_nearly_equal, ahead.flat, behind.flat))


def _nearly_equal(number: Any, other: Any) -> bool:
    return bool(abs(number - other) <= AGREE * max(abs(number), abs(other)))


def _smooth(ahead: Any, behind: Any, nearer_ahead: Any, nearer_behind: object) -> object:
    """Return the slope of a smooth function, and NaN at a kink.

    A function is smooth if the slopes on both sides agree, or approach each other as the step
    shrinks.
    """
    gap, nearer_gap = abs(ahead - behind), abs(nearer_ahead - nearer_behind)
    # The gap of a smooth function shrinks as the step does. At a kink it stays as it is.
    approach_each_other = nearer_gap <= gap * mp.ldexp(1, -FINER // 2)
    if _nearly_equal(ahead, behind) or approach_each_other:
        return (nearer_ahead + nearer_behind) / 2
    return mp.nan


def _unit(
    primals: Sequence[Array], argument: int, index: tuple[int, ...], size: object
) -> list[Array | None]:
    """Return directions that move one entry of one argument by `size`, and nothing else."""
    direction = numpy.full(primals[argument].shape, mpf(0), dtype=object)
    direction[index] = size
    directions: list[Array | None] = [None] * len(primals)
    directions[argument] = direction
    return directions


def _inner(cotangent: Array, tangent: Array) -> Any:
    """Return the real part of Σ conj(c)·t over the entries of both."""
    pairs = zip(cotangent.flat, tangent.flat, strict=True)
    # An entry without a derivative is NaN. A zero cotangent says that it does not count.
    return sum(((mp.conj(c) * t).real for c, t in pairs if c != 0), mpf(0))
