"""Take the outermost derivative by central differences; inner ones, and everything else, by the
plain engine.

Inputs must be in float64 or complex128. Differences at steps h and h/2 are extrapolated (error
O(h⁴)). The function has no derivative at a point if the two central differences disagree, or if the
jump between one-sided differences does not shrink with the step. Such entries are returned as NaN,
"not comparable". A comparison with ``numeric`` leaves them out.

Complex derivatives follow torch's convention: the gradient g of cotangent v satisfies ⟨g, u⟩ = ⟨v,
J u⟩ for every direction u, with ⟨a, b⟩ the real part of Σ conj(a)·b, so a complex coordinate has
two directions, 1 and i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from gen.reference.loop import Loop, jacobian_blocks, one_hot, with_fixed
from gen.reference.plain_engine import Flat

Tensor = torch.Tensor
# the second is tried if the first found no derivative: the function may be steep, not kinked
STEPS = (1e-3, 1e-5)
FEW = 16  # an input with at most so many real coordinates gets its full gradient
DIRECTIONS = 6  # random directions for larger inputs
LIMIT = 96  # real coordinates of all inputs, if results cannot be projected


class Numeric(Loop):
    """Differentiate by differences, see :class:`gen.targets.protocol.Target`.

    With `project`, gradients of an input of more than :data:`FEW` coordinates are returned as their
    inner products with random unit directions, of shape ``(DIRECTIONS,)``. :meth:`project` maps a
    target's gradients in the same way. Without `project`, more than :data:`LIMIT` coordinates raise
    ValueError.
    """

    name = "numeric"

    def __init__(self, project: bool = False, seed: int = 0) -> None:
        super().__init__()
        self._project = project
        self._seed = seed
        # of each input that is projected, by its number
        self._directions: dict[int, list[Tensor]] = {}
        # whether `f` is running for a difference
        self._busy = False

    def vjp(
        self, f: Flat, *primals: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
        """Return the outputs, and the function from cotangents to gradients."""
        # only the outermost derivative takes differences: inside of one, the engine differentiates
        if self._busy:
            return super().vjp(f, *primals)
        self._choose_directions(primals)
        outputs = self._evaluate(f, primals)
        pushed: list[list[tuple[Tensor, ...]]] = []

        def pullback(cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            if not pushed:  # computed once, since a Jacobian pulls back many cotangents
                for index, primal in enumerate(primals):
                    basis = self._basis(index, primal)
                    pushed.append([self._difference(f, primals, index, u) for u in basis])
            return tuple(
                self._assemble(index, primal, pushed[index], cotangents)
                for index, primal in enumerate(primals)
            )

        return outputs, pullback

    def jvp(
        self, f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        if self._busy:
            return super().jvp(f, primals, tangents)
        return self._evaluate(f, primals), self._along(f, list(primals), list(tangents))

    def jacfwd(
        self, f: Flat, argnums: Sequence[int]
    ) -> Callable[..., tuple[tuple[Tensor, ...], ...]]:
        if self._busy:
            return super().jacfwd(f, argnums)

        def g(*args: Tensor) -> tuple[tuple[Tensor, ...], ...]:
            primals = [args[place] for place in argnums]
            inner = with_fixed(f, args, argnums)
            outputs = self._evaluate(inner, primals)
            columns = []
            for index, primal in enumerate(primals):
                units = _units(primal, torch.ones_like(primal))
                columns.append([self._difference(inner, primals, index, unit) for unit in units])
            return jacobian_blocks(columns, primals, outputs)

        return g

    def project(self, gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return a target's gradients, projected as this object projected its own."""
        projected = []
        for index, gradient in enumerate(gradients):
            if index in self._directions:
                wide = gradient.to(self._directions[index][0].dtype)
                gradient = torch.stack([_inner(wide, u) for u in self._directions[index]])
            projected.append(gradient)
        return tuple(projected)

    def _choose_directions(self, primals: Sequence[Tensor]) -> None:
        """Draw directions for large inputs, the same at each call.

        Raises ValueError if inputs are large and results cannot be projected.
        """
        self._directions.clear()
        generator = torch.Generator().manual_seed(self._seed)
        if not self._project and sum(map(_coordinates, primals)) > LIMIT:
            raise ValueError(
                f"more than {LIMIT} coordinates: too large for differences in every coordinate"
            )
        for index, primal in enumerate(primals):
            if self._project and _coordinates(primal) > FEW:
                drawn = [
                    torch.randn(primal.shape, dtype=primal.dtype, generator=generator)
                    for _ in range(DIRECTIONS)
                ]
                # drawn on the CPU, so that every device has the same
                self._directions[index] = [(each / each.norm()).to(primal.device) for each in drawn]

    def _basis(self, k: int, primal: Tensor) -> Iterator[Tensor]:
        """Yield the directions along which input `k` is moved."""
        if k in self._directions:
            yield from self._directions[k]
            return
        for factor in (1, 1j) if primal.is_complex() else (1,):
            for unit in _units(primal, torch.ones(primal.shape)):
                yield unit * factor

    def _assemble(
        self,
        k: int,
        primal: Tensor,
        pushed: Sequence[tuple[Tensor, ...]],
        cotangents: Sequence[Tensor],
    ) -> Tensor:
        """Return the gradient of input `k`: the inner products of cotangents with what each
        direction pushes.
        """
        products = []
        for column in pushed:
            total = primal.real.new_zeros(())
            for cotangent, tangent in zip(cotangents, column, strict=True):
                total = total + _inner(cotangent, tangent)
            products.append(total)
        if k in self._directions:
            return torch.stack(products)
        if not products:
            return torch.zeros_like(primal)
        flat = torch.stack(products)
        # The first half has the slopes along 1, the second one those along i.
        if primal.is_complex():
            flat = torch.complex(*flat.chunk(2))
        return flat.reshape(primal.shape)

    def _difference(
        self, f: Flat, primals: Sequence[Tensor], k: int, direction: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the derivative of `f` along a direction of input `k` alone."""
        return self._along(
            f, [primals[k]], [direction], lambda x: [*primals[:k], *x, *primals[k + 1 :]]
        )

    def _along(
        self,
        f: Flat,
        points: list[Tensor],
        directions: list[Tensor],
        place: Callable[[list[Tensor]], list[Tensor]] = list,
    ) -> tuple[Tensor, ...]:
        """Return the derivative of `f` along `directions`. NaN where there is none."""
        centre = self._evaluate(f, place(points))

        def at(t: float) -> tuple[Tensor, ...]:
            """Return `f` at a step `t` along the directions."""
            moved = [
                point + t * direction for point, direction in zip(points, directions, strict=True)
            ]
            return self._evaluate(f, place(moved))

        def by(step: float) -> tuple[Tensor, ...]:
            """Return the derivative of each output by differences of this step and of its half."""
            fives = zip(centre, at(step), at(-step), at(step / 2), at(-step / 2), strict=True)
            return tuple(_extrapolate(*five, step) for five in fives)

        # A finer step only fills in what the coarse one could not give.
        first, *others = STEPS
        best = by(first)
        for step in others:
            if not any(derivative.isnan().any() for derivative in best):
                break
            finer = zip(best, by(step), strict=True)
            best = tuple(torch.where(old.isnan(), new, old) for old, new in finer)
        return best

    def _evaluate(self, f: Flat, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with self._engine_inside():
            return f(*values)

    @contextmanager
    def _engine_inside(self) -> Iterator[None]:
        was_busy, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = was_busy


def _coordinates(x: Tensor) -> int:
    """Count real coordinates: a complex number has two."""
    if x.is_complex():
        return 2 * x.numel()
    return x.numel()


def _units(like: Tensor, ones: Tensor) -> Iterator[Tensor]:
    """Yield the unit vectors of the shape of `like`. `ones` has its shape."""
    for index in ones.nonzero().tolist():
        yield one_hot([like], 0, tuple(index))[0]


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return the real part of Σ conj(a)·b. An entry with a zero cotangent counts as 0, even if its
    derivative is unknown."""
    product = a.conj() * b
    if product.is_complex():
        product = product.real
    return torch.where(a == 0, torch.zeros_like(product), product).sum()


def _extrapolate(
    centre: Tensor, up: Tensor, down: Tensor, half_up: Tensor, half_down: Tensor, h: float
) -> Tensor:
    """Return the extrapolation of two central differences. NaN where there is no derivative."""
    coarse = (up - down) / (2 * h)
    fine = (half_up - half_down) / h
    jump = (up + down - 2 * centre).abs() / h
    # One-sided differences of a smooth function differ by h times its curvature, so half the step
    # halves the jump. At a kink it stays. The .75 lies between.
    half_jump = (half_up + half_down - 2 * centre).abs() * (2 / h)
    bound = 1e-4 * (1 + fine.abs())
    disagree = (coarse - fine).abs() > bound
    # A jump below the bound may be rounding, which does not shrink with the step either.
    has_kink = (half_jump > 0.75 * jump) & (half_jump > bound)
    unknown = disagree | has_kink
    # Richardson's extrapolation: the error of the half step is a quarter of the other's.
    return torch.where(unknown, torch.full_like(fine, torch.nan), (4 * fine - coarse) / 3)
