"""Compute exact values and derivatives of elementwise ops, for any nesting of `vjp`, `backward` and
`jvp`.

A pipeline over :class:`Exact` is evaluated on symbols. Every stage of a pipeline passes its inputs
on, so the arguments of each function are inputs of the whole. An elementwise op then stays
elementwise: each result is a sum of products of inputs and of one partial derivative of the scalar
function. For ``vjp . vjp`` of ``sin`` with cotangents v and w the results are ``-w·v·sin x`` and
``w·cos x``.

    exact = Exact()
    _, (pushed,) = exact.jvp(exact.root, (Symbol(0),), (Symbol(1),))     # x1 · f′(x0)

:func:`partial` gives a partial derivative at a point, correct to double precision whatever the
point.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

import torch
from mpmath import mp, mpf

from gen.reference.scalars import ACCURATE, DERIVATIVES, SCALARS, Undefined

__all__ = ["Evaluated", "Exact", "Function", "Polynomial", "Symbol", "partial", "save"]

Tensor = torch.Tensor
Key = tuple[tuple[int, ...], tuple[int, ...]]
Flat = Callable[..., tuple[Any, ...]]
CACHE = Path(".cache/exact")


@dataclass(frozen=True)
class Symbol:
    """The input of a pipeline at `place`."""

    place: int


@dataclass(frozen=True)
class Polynomial:
    """A sum of terms ``count · Π inputs · ∂^orders f``."""

    # By inputs and orders the count. The inputs are cotangents and tangents, and a term is linear
    # in each. Orders count the derivatives by each argument of `f`.
    terms: Counter[Key]
    # the places of the arguments of `f` among the inputs
    arguments: tuple[int, ...]

    def by(self, place: int) -> Polynomial:
        """Return the derivative by the input at `place`."""
        terms: Counter[Key] = Counter()
        for (factors, orders), count in self.terms.items():
            if place in factors:
                # a product is linear in each factor, so one of the equal ones goes
                rest = list(factors)
                rest.remove(place)
                terms[tuple(rest), orders] += count * factors.count(place)
            if place in self.arguments:
                argument = self.arguments.index(place)
                higher = list(orders)
                higher[argument] += 1
                terms[factors, tuple(higher)] += count
        return Polynomial(terms, self.arguments)

    def times(self, place: int) -> Polynomial:
        """Return the product with the input at `place`."""
        terms: Counter[Key] = Counter()
        for (factors, orders), count in self.terms.items():
            terms[tuple(sorted((*factors, place))), orders] = count
        return Polynomial(terms, self.arguments)

    def plus(self, other: Polynomial) -> Polynomial:
        return Polynomial(self.terms + other.terms, self.arguments)


class Exact:
    """Build pipelines of symbols by the stages ``forward``, ``vjp``, ``backward`` and ``jvp`` (see
    :class:`gen.targets.protocol.Target`).
    """

    name = "exact"
    lacks: frozenset[str] = frozenset()

    def root(self, *xs: Symbol) -> tuple[Polynomial]:
        """Return the op itself. Its arguments are the symbols of all its tensors."""
        # the value itself: one term without factors, of order 0 by each argument
        places = tuple(x.place for x in xs)
        return (Polynomial(Counter({((), (0,) * len(places)): 1}), places),)

    def forward(self, f: Flat) -> Flat:
        return f

    def vjp(
        self, f: Flat, *primals: Symbol
    ) -> tuple[tuple[Any, ...], Callable[[Sequence[Symbol]], tuple[Polynomial, ...]]]:
        """Return the outputs, and the function from cotangents to gradients."""
        outputs = f(*primals)

        def pullback(cotangents: Sequence[Symbol]) -> tuple[Polynomial, ...]:
            pairs = list(zip(outputs, cotangents, strict=True))
            gradients = []
            for primal in primals:
                products = [
                    output.by(primal.place).times(cotangent.place) for output, cotangent in pairs
                ]
                gradients.append(_sum(products))
            return tuple(gradients)

        return outputs, pullback

    backward = vjp

    def jvp(
        self, f: Flat, primals: Sequence[Symbol], tangents: Sequence[Symbol]
    ) -> tuple[tuple[Any, ...], tuple[Polynomial, ...]]:
        """Return the outputs and their derivatives along `tangents`."""
        outputs = f(*primals)
        pairs = list(zip(primals, tangents, strict=True))
        pushed = []
        for output in outputs:
            products = [output.by(primal.place).times(tangent.place) for primal, tangent in pairs]
            pushed.append(_sum(products))
        return outputs, tuple(pushed)


def _sum(polynomials: Iterable[Polynomial]) -> Polynomial:
    first, *others = polynomials
    for other in others:
        first = first.plus(other)
    return first


@dataclass
class Evaluated:
    """An exact result, and what bounds the error of a floating-point one."""

    value: Tensor
    # the sum of the sizes of the terms
    scale: Tensor
    # the greatest size of a term or of its derivative
    reach: Tensor
    # the size of what cancels where a derivative is zero: inputs over powers of the argument
    noise: Tensor
    # How much larger an error on the way can be in the result. A formula multiplies a number by the
    # inputs, and by the argument at most once more than it is differentiated.
    gain: Tensor
    # marks entries without a derivative or definition
    unknown: Tensor


@dataclass
class Function:
    """A scalar function with its other arguments fixed."""

    # the op; with `constants` it names the stored results
    name: str
    # puts the tensors' elements in their places
    arguments: Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]]
    # the text of the fixed arguments
    constants: str = ""
    why: Counter[str] = field(default_factory=Counter)
    """Reasons for unknown entries."""

    def evaluate(self, polynomial: Polynomial, inputs: Sequence[Tensor]) -> Evaluated:
        """Return the polynomial at every element of `inputs`, which are vectors of one length."""
        points = [inputs[place].to(torch.float64).tolist() for place in polynomial.arguments]
        count = len(points[0])
        value, scale, reach, noise, gain = torch.zeros(5, count, dtype=torch.float64)
        unknown = torch.zeros(count, dtype=torch.bool)
        # Near an argument of 0, differences of high order leave more noise.
        sizes = torch.tensor(points, dtype=torch.float64).abs()
        nearest = torch.where(sizes == 0, 1.0, sizes).amin(0).clamp(max=1.0)
        farthest = sizes.amax(0).clamp(min=1.0)
        at_zero = (sizes == 0).any(0)
        for (factors, orders), times in polynomial.terms.items():
            partials = [self.partial(orders, point) for point in zip(*points, strict=True)]
            # A term without a derivative makes the whole entry unknown.
            unknown |= torch.tensor([number is None for number in partials])
            numbers = [number or 0.0 for number in partials]
            term = torch.tensor(numbers, dtype=torch.float64) * times
            reach = torch.maximum(reach, term.abs())
            cancels = (term == 0) | _is_noise(term, at_zero, orders)
            inner = torch.ones_like(term)
            for place in factors:
                inner = inner * inputs[place].to(torch.float64)
            term = term * inner
            value, scale, reach = value + term, scale + term.abs(), torch.maximum(reach, term.abs())
            noise += torch.where(cancels, inner.abs() * nearest ** -sum(orders), 0.0)
            gain += inner.abs() * farthest ** (sum(orders) + 1)
        return Evaluated(value, scale, reach, noise, gain, unknown)

    def at_edges(
        self, polynomial: Polynomial, inputs: Sequence[Tensor], at: Callable[..., float | None]
    ) -> tuple[Tensor, Tensor]:
        """Return the polynomial at every element of `inputs` with the partial derivatives of `at`,
        and a mask of entries where one is None.
        """
        columns = [inputs[place].to(torch.float64).tolist() for place in polynomial.arguments]
        points = list(zip(*columns, strict=True))
        terms, unknown = [], torch.zeros(len(points), dtype=torch.bool)
        for (factors, orders), times in polynomial.terms.items():
            partials = [at(self, orders, point) for point in points]
            unknown |= torch.tensor([number is None for number in partials])
            numbers = list(map(_without_noise, partials))
            term = torch.tensor(numbers, dtype=torch.float64) * times
            for place in factors:
                term = term * inputs[place].to(torch.float64)
            terms.append(term)
        if len(terms) == 1:
            return terms[0], unknown  # a sum with 0 would lose the sign of a zero
        return torch.stack(terms).sum(0), unknown

    def partial(self, orders: Sequence[int], point: Sequence[float]) -> float | None:
        """Return the partial derivative at a point, from the store if it was computed before. None
        where there is none.
        """
        store = _store(self.name)
        # differences on either side of a kink see no second derivative
        if sum(orders) > 1 and self.name not in DERIVATIVES:
            lower = _one_order_less(orders)
            if any(self.partial(some, point) is None for some in lower):
                return None
        key = f"{','.join(map(str, orders))} {','.join(map(float.hex, point))} {self.constants}"
        if key not in store.known:
            try:
                store.known[key] = float(
                    partial(self._call, orders, point, self._closed_form(), self.name in ACCURATE)
                )
            except Undefined as reason:
                store.known[key] = str(reason)
            store.changed = True
        number = store.known[key]
        if isinstance(number, str):
            self.why[number] += 1
            return None
        return number

    def _call(self, *elements: Any) -> Any:
        args, kwargs = self.arguments(elements)
        return SCALARS[self.name](*args, **kwargs)

    def _closed_form(self) -> Callable[..., Any] | None:
        """Return the derivatives of the function in closed form, by their order. None without
        one.
        """
        closed = DERIVATIVES.get(self.name)
        if closed is None:
            return None

        def derivative(order: int, *elements: Any) -> Any:
            args, kwargs = self.arguments(elements)
            return closed(order, *args, **kwargs)

        return derivative


def _is_noise(derivatives: Tensor, at_zero: Tensor, orders: Sequence[int]) -> Tensor:
    """Return which derivatives are zero but for the noise of differences.

    Only differences at 0 leave noise. Elsewhere a small number is the derivative, and a value is no
    difference.
    """
    return at_zero & (derivatives.abs() < ZERO) & any(orders)


def _without_noise(number: float | None) -> float:
    """Return a derivative, or 0 where there is none or none that shows."""
    if number is None or 0 < abs(number) < ZERO:
        return 0.0
    return number


def _one_order_less(orders: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the orders of the derivatives of which `orders` is a derivative."""
    for index, order in enumerate(orders):
        if order:
            yield (*orders[:index], order - 1, *orders[index + 1 :])


# --- one partial derivative -----------------------------------------------------------------------

ZERO = 1e-60  # a derivative below this is zero: differences at 0 leave no less
FINE = 100  # bits by which a step is smaller than the argument
UNDERFLOW = 1300  # bits below 1 that show: a double has 1074
AGREE = mpf(2) ** -60  # of the size: a double has 53 bits


def partial(
    f: Callable[..., object],
    orders: Sequence[int],
    point: Sequence[float],
    closed: Callable[..., object] | None = None,
    accurate: bool = False,
) -> Any:
    """Return ``∂^orders f`` at `point`, by differences forwards and backwards, with steps so small
    that all are exact to double precision.

    `closed` gives derivatives by their order directly. `accurate`: `f` has no cancellation, so that
    few bits do. Raises Undefined if the differences disagree, as at a kink,
    or if `f` is not defined on both sides.
    """
    order = sum(orders)
    # Enough bits for the argument, for every step that is added to it, and for what cancels.
    spread = max((abs(math.log2(abs(x))) for x in point if x), default=0.0)
    at_zero = 0.0 in point
    # At 0 a step is 2 ** -300, see `_smallest_step`.
    bits = int(UNDERFLOW + spread + order * (FINE + 20 + spread + 300 * at_zero))
    if order and closed is not None:
        bits = int(300 + 2 * spread)
    if not order and accurate:
        bits = int(200 + min(spread, 1100))
    with mp.workprec(bits):
        if order == 0:
            return _value(f, *map(mpf, point))
        if closed is not None:
            return _value(closed, order, *map(mpf, point))
        # Forwards, backwards, and by a larger step: a smooth function has one slope for all of
        # them.
        differences = [_difference(f, orders, list(map(mpf, point)), step) for step in (1, -1, 32)]
        size = max(map(abs, differences))
        vanishing = mpf(2) ** (-250 if at_zero else -1100)
        if size > vanishing and max(differences) - min(differences) > AGREE * size:
            raise Undefined("a kink: differences by several steps disagree")
        return (differences[0] + differences[1]) / 2


def _difference(
    f: Callable[..., object], orders: Sequence[int], point: Sequence[object], factor: int
) -> Any:
    """Return a difference of the order of a derivative, over the steps."""
    steps = [factor * _smallest_step(x) for x in point]
    total = mpf(0)
    # the binomial formula of differences: of order 2, f(x) - 2·f(x + h) + f(x + 2h)
    counts_of_steps = [range(order + 1) for order in orders]
    for counts in product(*counts_of_steps):
        weight = 1
        for order, count in zip(orders, counts, strict=True):
            weight *= math.comb(order, count) * (-1) ** (order - count)
        place = [x + count * h for x, count, h in zip(point, counts, steps, strict=True)]
        total += weight * _value(f, *place)
    scale = mpf(1)
    for h, order in zip(steps, orders, strict=True):
        scale *= h**order
    return total / scale


def _smallest_step(x: object) -> Any:
    """Return a power of 2 by which `x` can move and change in no digit of a double."""
    if x == 0:
        return mp.ldexp(1, -300)
    return mp.ldexp(1, int(min(0, mp.mag(x))) - FINE)


def _value(f: Callable[..., Any], *args: Any) -> Any:
    """Return `f` of the arguments. Raises Undefined unless it is a finite real number."""
    try:
        number = f(*args)
    except Undefined:
        raise
    except (ValueError, ZeroDivisionError, OverflowError, mp.NoConvergence) as error:
        # mpmath's words for poles and the like
        raise Undefined(f"no value ({type(error).__name__}: {str(error)[:60]})") from None
    if isinstance(number, mp.mpc):
        if number.imag != 0:
            raise Undefined("the value is not real")
        number = number.real
    if mp.isnan(number) or mp.isinf(number):
        raise Undefined("the value is not finite")
    return mpf(number)


# --- the store ------------------------------------------------------------------------------------


@dataclass
class _Store:
    """Partial derivatives of one op, in a file between runs."""

    path: Path
    # by order and point the number, or the reason why there is none
    known: dict[str, float | str]
    # whether the file has to be written again
    changed: bool = False

    def write(self) -> None:
        """Write the store to its file, with what another process has written there since."""
        if not self.changed:
            return
        self.changed = False
        with suppress(OSError):  # without a place for it, the next run computes them again
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(_read(self.path) | self.known), "utf-8")
            unfinished.replace(self.path)


_STORES: dict[str, _Store] = {}


def _store(name: str) -> _Store:
    """Return the store of an op. Its file is read at the first question."""
    if name not in _STORES:
        path = CACHE / f"{name}-{_digest_of_definitions()}.json"
        _STORES[name] = _Store(path, _read(path))
    return _STORES[name]


def save() -> None:
    """Write the stores that have changed."""
    for store in _STORES.values():
        store.write()


def _read(path: Path) -> dict[str, float | str]:
    """Return the content of a file of results. Without a readable one it is empty."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return content


@cache
def _digest_of_definitions() -> str:
    """Return a digest of what stored results depend on: the definitions and the way of
    differentiating."""
    here = Path(__file__).parent
    texts = [(here / name).read_bytes() for name in ("scalars.py", "exact.py")]
    return blake2b(b"".join(texts), digest_size=6).hexdigest()
