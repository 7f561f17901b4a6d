"""Derivatives of functions of arrays in arbitrary precision, by differences whose steps are too
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
AGREE = mpf(2) ** -60


def exactly(x: torch.Tensor) -> Array:
    """Return the numbers of a tensor, none rounded; integers and booleans as NumPy has them."""
    if not (x.is_floating_point() or x.is_complex()):
        return x.numpy()
    flat = x.to(torch.complex128 if x.is_complex() else torch.float64).reshape(-1).tolist()
    made = numpy.empty(len(flat), dtype=object)
    made[:] = [mp.mpc(v.real, v.imag) if isinstance(v, complex) else mpf(v) for v in flat]
    return made.reshape(tuple(x.shape))


def bits(inputs: Sequence[torch.Tensor], derivatives: int, far: int = 0) -> int:
    """Return how many bits of precision make every step and every sum of the inputs exact. `far`:
    the bits of what stands for infinity."""
    sizes = [
        v
        for x in inputs
        if x.is_floating_point() or x.is_complex()
        for v in (x.abs(), x.abs()[x != 0])
        if v.numel()
    ]
    finite = [v[v.isfinite()].to(torch.float64) for v in sizes]
    spread = max(
        (
            float(v.log2().abs().clamp(max=1100).max())
            for v in (v[v > 0] for v in finite)
            if v.numel()
        ),
        default=0.0,
    )
    return int(160 + 2 * spread + derivatives * (FIRST + DEEPER + FINER + spread) + 2 * far)


class Definite:
    """The stages ``forward``, ``vjp``, ``backward``, ``jvp`` and ``jacrev`` (see
    :class:`gen.targets.protocol.Target`). `root` is the op.

    An entry is NaN if differences on either side disagree, as at a kink. Complex gradients follow
    torch's convention."""

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
        with self._inside():
            outputs = f(*primals)

        def pullback(cotangents: Sequence[Array]) -> tuple[Array, ...]:
            return tuple(self._gradient(f, primals, k, cotangents) for k in range(len(primals)))

        return outputs, pullback

    backward = vjp

    def jvp(
        self, f: Flat, primals: Sequence[Array], tangents: Sequence[Array]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        with self._inside():
            outputs = f(*primals)
        return outputs, self.along(f, primals, tangents)

    def jacrev(
        self, f: Flat, argnums: tuple[int, ...]
    ) -> Callable[..., tuple[tuple[Array, ...], ...]]:
        """Blocks ``[output][argument]``, column by column."""

        def g(*args: Array) -> tuple[tuple[Array, ...], ...]:
            blocks: list[list[Array]] = []
            for k in argnums:
                columns = [
                    self.along(f, args, _unit(args, k, index, mpf(1)))
                    for index in numpy.ndindex(args[k].shape)
                ]
                blocks.append(
                    [
                        numpy.stack(parts, axis=-1).reshape(*parts[0].shape, *args[k].shape)
                        for parts in zip(*columns, strict=True)
                    ]
                )
            return tuple(zip(*blocks, strict=True))

        return g

    def _gradient(
        self, f: Flat, primals: Sequence[Array], k: int, cotangents: Sequence[Array]
    ) -> Array:
        gradient = numpy.empty(primals[k].shape, dtype=object)
        is_complex = any(isinstance(x, mp.mpc) for x in primals[k].flat)
        for index in numpy.ndindex(primals[k].shape):
            parts = [
                sum(
                    (
                        _inner(c, d)
                        for c, d in zip(
                            cotangents,
                            self.along(f, primals, _unit(primals, k, index, way)),
                            strict=True,
                        )
                    ),
                    mpf(0),
                )
                for way in ((mpf(1), mp.mpc(0, 1)) if is_complex else (mpf(1),))
            ]
            gradient[index] = mp.mpc(*parts) if is_complex else parts[0]
        return gradient

    def along(
        self, f: Flat, primals: Sequence[Array], directions: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        """Return the derivative of each output along `directions`, one for each primal; None: it
        stays."""
        sizes = [abs(v) for x in primals for v in x.flat if not isinstance(v, int) and v != 0]
        step = min(sizes, default=mpf(1)) * mp.ldexp(1, -FIRST - DEEPER * self._depth)
        ahead, behind = self._slopes(f, primals, directions, step)
        if all(map(_agree, ahead, behind)):
            return tuple(_array((a + b) / 2) for a, b in zip(ahead, behind, strict=True))
        nearer = zip(*self._slopes(f, primals, directions, step * mp.ldexp(1, -FINER)), strict=True)
        smooth = numpy.frompyfunc(_smooth, 4, 1)
        return tuple(
            _array(smooth(a, b, c, d)) for a, b, (c, d) in zip(ahead, behind, nearer, strict=True)
        )

    def _slopes(
        self, f: Flat, primals: Sequence[Array], directions: Sequence[Array | None], step: Any
    ) -> tuple[list[Array], list[Array]]:
        """Differences by `step` ahead and behind, over the step."""
        with self._inside():
            centre = f(*primals)
            up, down = (
                f(
                    *[
                        x if u is None else _array(x + s * u)
                        for x, u in zip(primals, directions, strict=True)
                    ]
                )
                for s in (step, -step)
            )
        pairs = zip(up, centre, down, strict=True)
        slopes = [(_array((u - c) / step), _array((c - d) / step)) for u, c, d in pairs]
        return [a for a, _ in slopes], [b for _, b in slopes]

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


def _array(x: Any) -> Array:
    return numpy.asarray(x, dtype=object)  # arithmetic of arrays without dimensions gives numbers


def _agree(ahead: Array, behind: Array) -> bool:
    return all(
        abs(a - b) <= AGREE * max(abs(a), abs(b))
        for a, b in zip(ahead.flat, behind.flat, strict=True)
    )


def _smooth(ahead: Any, behind: Any, nearer_ahead: Any, nearer_behind: Any) -> Any:
    """Return the slope between differences that agree, or that come together as the step shrinks;
    NaN at a kink."""
    gap, nearer = abs(ahead - behind), abs(nearer_ahead - nearer_behind)
    if gap <= AGREE * max(abs(ahead), abs(behind)) or nearer <= gap * mp.ldexp(1, -FINER // 2):
        return (nearer_ahead + nearer_behind) / 2
    return mp.nan


def _unit(primals: Sequence[Array], k: int, index: tuple[int, ...], way: Any) -> list[Array | None]:
    direction = numpy.full(primals[k].shape, mpf(0), dtype=object)
    direction[index] = way
    return [direction if place == k else None for place in range(len(primals))]


def _inner(c: Array, d: Array) -> Any:
    """Return the real part of Σ conj(c)·d. A zero cotangent leaves out an entry without a
    derivative."""
    return sum(
        ((mp.conj(a) * b).real for a, b in zip(c.flat, d.flat, strict=True) if a != 0), mpf(0)
    )
