"""Differentiate functions of arrays in arbitrary precision, by differences whose steps are too
small to matter.

Values are NumPy arrays of mpmath's numbers. An op is its definition in
:mod:`gen.reference.definitions`. A first derivative takes two evaluations for each entry of an
input, a second one the square of that: samples are small.

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
# bits of a step of the outermost derivative, and by how many those inside are smaller
FIRST, DEEPER = 100, 200
FINER = 40  # bits by which the second of two steps is smaller
AGREE = mpf(2) ** -60  # of the size: a double has 53 bits


def exactly(x: torch.Tensor) -> Array:
    """Return the numbers of a tensor, none rounded; integers and booleans as NumPy has them."""
    if not (x.is_floating_point() or x.is_complex()):
        return x.numpy()
    if x.is_complex():
        numbers = [
            mp.mpc(value.real, value.imag) for value in x.to(torch.complex128).reshape(-1).tolist()
        ]
    else:
        numbers = list(map(mpf, x.to(torch.float64).reshape(-1).tolist()))
    # numpy.array would make an empty list one of float64
    array = numpy.empty(len(numbers), dtype=object)
    array[:] = numbers
    return array.reshape(tuple(x.shape))


def bits(inputs: Sequence[torch.Tensor], derivatives: int, far: int = 0) -> int:
    """Return how many bits of precision make every step and every sum of the inputs exact.

    `far`: the bits of what stands for infinity.
    """
    spread = max(map(_spread, inputs), default=0.0)
    return int(160 + 2 * spread + derivatives * (FIRST + DEEPER + FINER + spread) + 2 * far)


def _spread(x: torch.Tensor) -> float:
    """Return by how many bits the sizes of numbers differ from 1, at most."""
    if not (x.is_floating_point() or x.is_complex()):
        return 0.0
    sizes = x.abs()
    sizes = sizes[sizes.isfinite() & (sizes > 0)].to(torch.float64)
    if sizes.numel() == 0:
        return 0.0
    # the least double is 2**-1074
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
            return tuple(self._gradient(f, primals, k, cotangents) for k in range(len(primals)))

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
            for k in argnums:
                shape = args[k].shape
                units = [_unit(args, k, index, mpf(1)) for index in numpy.ndindex(shape)]
                columns = [self.along(f, args, unit) for unit in units]
                by_output = zip(*columns, strict=True)
                blocks.append([_join_columns(of_output, shape) for of_output in by_output])
            return tuple(zip(*blocks, strict=True))

        return g

    def _gradient(
        self, f: Flat, primals: Sequence[Array], k: int, cotangents: Sequence[Array]
    ) -> Array:
        """Return the gradient of input `k`, entry by entry: of a complex one, in two directions."""

        def slope(index: tuple[int, ...], way: object) -> Any:
            tangents = self.along(f, primals, _unit(primals, k, index, way))
            pairs = zip(cotangents, tangents, strict=True)
            return sum((_inner(cotangent, tangent) for cotangent, tangent in pairs), mpf(0))

        gradient = numpy.empty(primals[k].shape, dtype=object)
        # The dtype is object either way, so the numbers themselves tell.
        is_complex = any(isinstance(x, mp.mpc) for x in primals[k].flat)
        for index in numpy.ndindex(primals[k].shape):
            gradient[index] = slope(index, mpf(1))
            if is_complex:
                gradient[index] = mp.mpc(gradient[index], slope(index, mp.mpc(0, 1)))
        return gradient

    def along(
        self, f: Flat, primals: Sequence[Array], directions: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        """Return the derivative of each output along `directions`, one for each primal. None: it
        stays.
        """
        numbers = chain.from_iterable(primal.flat for primal in primals)
        # a small part of the least number, so that every number changes by a small part
        sizes = [abs(number) for number in numbers if not isinstance(number, int) and number != 0]
        # The step of an outer derivative must be far larger than those inside of it.
        step = min(sizes, default=mpf(1)) * mp.ldexp(1, -FIRST - DEEPER * self._depth)
        ahead, behind = self._slopes(f, primals, directions, step)
        if all(map(_agree, ahead, behind)):
            pairs = zip(ahead, behind, strict=True)
            return tuple(_array((one + other) / 2) for one, other in pairs)
        # A steep function agrees with itself once the step is smaller; a kink never does.
        finer_step = step * mp.ldexp(1, -FINER)
        nearer_ahead, nearer_behind = self._slopes(f, primals, directions, finer_step)
        smooth = numpy.frompyfunc(_smooth, 4, 1)
        slopes = zip(ahead, behind, nearer_ahead, nearer_behind, strict=True)
        return tuple(_array(smooth(*four)) for four in slopes)

    def _slopes(
        self, f: Flat, primals: Sequence[Array], directions: Sequence[Array | None], step: Any
    ) -> tuple[list[Array], list[Array]]:
        """Return differences by `step` ahead and behind, over the step."""
        with self._inside():
            centre = f(*primals)
            up = f(*_move(primals, directions, step))
            down = f(*_move(primals, directions, -step))
        ahead = [_array((high - mid) / step) for high, mid in zip(up, centre, strict=True)]
        behind = [_array((mid - low) / step) for mid, low in zip(centre, down, strict=True)]
        return ahead, behind

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Count what runs inside as one derivative deeper."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


def _array(x: Any) -> Array:
    return numpy.asarray(x, dtype=object)  # arithmetic of arrays without dimensions gives numbers


def _join_columns(columns: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Return the block of a Jacobian whose columns are these, one for each entry of `shape`."""
    return numpy.stack(columns, axis=-1).reshape(*columns[0].shape, *shape)


def _move(
    primals: Sequence[Array], directions: Sequence[Array | None], step: object
) -> list[Array]:
    """Return the primals, a step along their directions."""
    points = list(primals)
    for index, direction in enumerate(directions):
        if direction is not None:
            points[index] = _array(points[index] + step * direction)
    return points


def _agree(ahead: Array, behind: Array) -> bool:
    return all(
        abs(a - b) <= AGREE * max(abs(a), abs(b))
        for a, b in zip(ahead.flat, behind.flat, strict=True)
    )


def _smooth(ahead: Any, behind: Any, nearer_ahead: Any, nearer_behind: object) -> object:
    """Return the slope between differences that agree, or that come together as the step shrinks;
    NaN at a kink."""
    gap, nearer_gap = abs(ahead - behind), abs(nearer_ahead - nearer_behind)
    are_equal = gap <= AGREE * max(abs(ahead), abs(behind))
    # The gap of a smooth function shrinks as the step does.
    come_together = nearer_gap <= gap * mp.ldexp(1, -FINER // 2)
    if are_equal or come_together:
        return (nearer_ahead + nearer_behind) / 2
    return mp.nan


def _unit(
    primals: Sequence[Array], k: int, index: tuple[int, ...], way: object
) -> list[Array | None]:
    """Return the direction that moves one entry of primal `k`, by `way`."""
    direction = numpy.full(primals[k].shape, mpf(0), dtype=object)
    direction[index] = way
    directions: list[Array | None] = [None] * len(primals)
    directions[k] = direction
    return directions


def _inner(c: Array, d: Array) -> Any:
    """Return the real part of Σ conj(c)·d. A zero cotangent leaves out an entry without a
    derivative."""
    return sum(
        ((mp.conj(a) * b).real for a, b in zip(c.flat, d.flat, strict=True) if a != 0), mpf(0)
    )
