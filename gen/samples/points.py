"""Make degenerate points: inputs at which formulas divide by zero, tie, overflow or lose every
digit.

A word of the axis ``values`` names a kind of points. It makes fillings of a sample: other values
for its inputs, in the same shapes. An elementwise op with an exact definition gets a vector of
chosen numbers instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import torch

from gen.reference.exact import Function
from gen.reference.scalars import SCALARS
from gen.samples.argument_points import ARGUMENT_WORDS
from gen.samples.domains import is_inexact
from gen.samples.samples import Sample
from gen.samples.seeds import generator

__all__ = ["WORDS", "chosen", "fillings", "is_scalar"]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]

_USUAL = (0.3, 1.0, 1.5, 2.0, 3.3, 5.5, 10.0, 20.0)
_VERGE: dict[int, tuple[float, ...]] = {
    64: (
        700.0,
        705.0,
        708.5,
        709.5,
        711.0,
        713.0,
        716.0,
        720.0,
        740.0,
        745.0,
        1020.0,
        1022.5,
        1024.0,
        1030.0,
        1070.0,
    ),
    32: (85.0, 87.5, 88.5, 89.5, 91.0, 92.0, 95.0, 100.0, 103.0, 125.0, 126.5, 128.0, 130.0, 148.0),
    16: (8.0, 10.0, 11.0, 12.0, 14.0, 15.5, 16.0, 17.0, 24.0),
}
"""Where exponentials leave the range of a dtype, by its bits.

In double precision exp overflows at 709.8 and gives 0 from about -745 on. exp2 overflows at 1024.
"""
_TAILS = (
    0.0, 1e-30, 1e-8, 1e-3, 0.1, *_USUAL, 30.0, 50.0, 80.0, 100.0, 300.0, 700.0, 1e3, 1e5, 1e8,
    1e15, 1e30,
)  # fmt: skip


def _of_either_sign(sizes: Iterable[float]) -> list[float]:
    return [sign * size for size in sizes for sign in (1, -1)]


def _tails(info: torch.finfo) -> list[float]:
    numbers = _of_either_sign(x for x in _TAILS if x < info.max / 8)
    # The second number is the zero with a minus, which belongs to `edges`.
    del numbers[1]
    return [*numbers, 1 - 8 * info.eps, 8 * info.eps - 1, 1 + 8 * info.eps, 0.25, 0.75]


def _powers(base: float, exponents: Iterable[float]) -> list[float]:
    return _of_either_sign(base**exponent for exponent in exponents)


def _subnormal(info: torch.finfo, parts: Iterable[float]) -> list[float]:
    return [sign * info.smallest_normal * part for part in parts for sign in (1, -1)]


def _mixed_numbers(info: torch.finfo) -> list[float]:
    far = [info.max**0.51, 0.9 * info.max, -0.9 * info.max]
    near = [info.tiny**0.25, info.tiny**0.9]
    return [0.0, 1.0, 0.5, -3.0, *far, *near]


NUMBERS: dict[str, Callable[[torch.finfo], list[float]]] = {
    "tails": _tails,
    "huge": lambda info: _powers(info.max, (0.51, 0.7, 0.9, 0.99)),
    "tiny": lambda info: _powers(info.tiny, (0.51, 0.7, 0.9, 1.0)),
    "subnormal": lambda info: _subnormal(info, (0.5, 2**-10, 2**-20)),
    "mixed": _mixed_numbers,
    "edges": lambda info: [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -2.0, 0.5, -0.5],
    "verge": lambda info: _of_either_sign(_VERGE[info.bits]) + _subnormal(info, (0.5, 2**-10)),
}
"""The numbers of a word for functions of one number.

A power of 0.51 of the largest number is one whose square overflows."""
UNARY = frozenset(("verge",))
"""Words for functions of one number alone."""
# Functions of two numbers get every pair of so many numbers. The word `edges` has as many.
PAIRED = 9
# Functions of more numbers get every combination of fewer, since their count is a power.
TRIPLED = 4


def is_scalar(sample: Sample) -> bool:
    """Return whether the op has an exact definition, and all tensors of the sample are floating
    point."""
    if sample.op.name not in SCALARS or not sample.inputs:
        return False
    return all(x.is_floating_point() for x in sample.inputs)


def chosen(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first of elementwise samples that differ only in shapes, which are replaced."""
    first: dict[object, Sample] = {}
    for sample in samples:
        outputs = sample.facts.outputs
        if len(outputs) != 1 or outputs[0].numel() < 2:
            continue
        # The result of a reduced loss has another shape, so the op is not elementwise here.
        if outputs[0].shape != torch.broadcast_shapes(*(x.shape for x in sample.inputs)):
            continue
        # The first entry of a signature has the shapes, which are left out here.
        first.setdefault((len(sample.inputs), *sample.signature[1:]), sample)
    return list(first.values())


def fillings(sample: Sample, word: str) -> list[tuple[str, Inputs]]:
    """Return ``(label, inputs)`` for the points of `word` for this sample. Empty if the word has
    none for it.
    """
    if is_scalar(sample) and word in NUMBERS:
        if word in UNARY and len(sample.inputs) > 1:
            return []
        vectors = _vectors(sample.inputs, word)
        # At `edges` a point beyond the domain has a result too, which is NaN or an infinity.
        if word != "edges":
            vectors = _restrict_to_domain(sample, vectors)
        points_of_word = [(word, vectors)]
        if word == "verge":
            # A kernel may have other code for a single number than for a vector.
            points_of_word.append(("one number", tuple(x[-1:] for x in vectors)))
        return points_of_word
    changed = WORDS[word](sample)
    return [(label, inputs) for label, inputs in changed if not _same(inputs, sample.inputs)]


def _same(inputs: Inputs, others: Inputs) -> bool:
    """Return whether two fillings have the same shapes and numbers."""
    return all(map(torch.equal, inputs, others))


def _vectors(inputs: Inputs, word: str) -> Inputs:
    """Return vectors of one length, one per input. Their entries take every combination of
    numbers.
    """
    info = torch.finfo(inputs[0].dtype)
    numbers = NUMBERS[word](info)
    if len(inputs) == 1:
        return (torch.tensor(numbers, dtype=inputs[0].dtype, device=inputs[0].device),)
    count = PAIRED if len(inputs) == 2 else TRIPLED
    if word == "tails":
        far = [1e-8, 1e15]
        if inputs[0].dtype is torch.float32:
            far = [1e-3, 1e4]
        numbers = [0.0, 0.3, -1.0, 2.0, -2.5, 20.0, -80.0, *far]
    rows = list(product(numbers[:count], repeat=len(inputs)))
    columns = zip(*rows, strict=True)
    return tuple(
        torch.tensor(column, dtype=x.dtype, device=x.device)
        for column, x in zip(columns, inputs, strict=True)
    )


def function(sample: Sample) -> Function:
    """Return the op's definition with the sample's other arguments."""
    return Function(
        sample.op.name, lambda elements: sample.rebuild(elements), " ".join(sample.signature[2])
    )


def _restrict_to_domain(sample: Sample, vectors: Inputs) -> Inputs:
    """Return the entries at which the op has a value, if there are any.

    At others nothing is compared, and a kernel may run for ever.
    """
    definition, orders = function(sample), (0,) * len(vectors)
    points = zip(*(x.to(torch.float64).tolist() for x in vectors), strict=True)
    is_defined = [definition.partial(orders, point) is not None for point in points]
    if not any(is_defined):
        return vectors
    mask = torch.tensor(is_defined, device=vectors[0].device)
    return tuple(x[mask] for x in vectors)


# --- fillings of a sample's own shapes ------------------------------------------------------------


def _each(sample: Sample, label: str, change: Callable[[Tensor], Tensor]) -> tuple[str, Inputs]:
    """Return all inputs, with floating ones changed."""
    inputs = list(sample.inputs)
    for place, x in enumerate(inputs):
        if _is_inexact(x) and x.numel():
            inputs[place] = change(x.clone())
    return label, tuple(inputs)


def _with(sample: Sample, place: int, x: Tensor) -> Inputs:
    """Return the inputs with another one at `place`."""
    return (*sample.inputs[:place], x, *sample.inputs[place + 1 :])


def _is_inexact(x: Tensor) -> bool:
    return is_inexact(x.dtype)


def _ties(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Fill in numbers of which many are equal."""

    def some(x: Tensor) -> Tensor:
        drawn = torch.randint(1, 3, x.shape, generator=generator(sample.seed, "ties"))
        return drawn.to(x)

    yield _each(sample, "ties", some)
    yield _each(sample, "all equal", torch.ones_like)


def _zero_factor(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Fill in zeros: one, two along each dimension, or everywhere."""

    def at(*places: int) -> Callable[[Tensor], Tensor]:
        """Return what sets entries at these places of each dimension to zero."""

        def change(x: Tensor) -> Tensor:
            if x.ndim == 0:
                return x.zero_()
            for place in places:
                for dim, size in enumerate(x.shape):
                    x.narrow(dim, place % size, 1).narrow(dim - 1, 0, 1).zero_()
            return x

        return change

    yield _each(sample, "one zero", at(0))
    yield _each(sample, "two zeros", at(0, -1))
    yield _each(sample, "all zero", torch.zeros_like)


def _one(number: float) -> Callable[[Sample], Iterator[tuple[str, Inputs]]]:
    """Return the fillings in which one entry of one input is `number`."""

    def words(sample: Sample) -> Iterator[tuple[str, Inputs]]:
        """Change one entry of one input at a time."""
        for place, x in enumerate(sample.inputs):
            if _is_inexact(x) and x.numel():
                changed = x.clone()
                changed.view(-1)[x.numel() // 2] = number
                yield f"{number} in input {place}", _with(sample, place, changed)

    return words


def _both_infinities(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _one(float("inf"))(sample)
    yield from _one(float("-inf"))(sample)


def _masked_row(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Fill a row with minus infinity, and the first row of masks so that it hides everything."""
    inputs = list(sample.inputs)
    for place, x in enumerate(inputs):
        if x.dtype is torch.bool and x.numel():
            inputs[place] = _fill_row(x, False)
    if any(x is not y for x, y in zip(inputs, sample.inputs, strict=True)):
        yield "a row of the mask hides all", tuple(inputs)
    for place, x in enumerate(sample.inputs):
        if x.is_floating_point() and x.numel():
            hidden = _fill_row(x, -math.inf)
            yield "-inf in a row", _with(sample, place, hidden)
            all_but_one = hidden.clone()
            _first_row(all_but_one)[-1:] = 0.5
            yield "-inf in all but one of a row", _with(sample, place, all_but_one)
            return


def _first_row(x: Tensor) -> Tensor:
    """Return the first vector of the last dimension."""
    if x.ndim < 2:
        return x.view(-1)
    return x[(0,) * (x.ndim - 1)]


def _fill_row(x: Tensor, number: float | bool) -> Tensor:
    changed = x.clone()
    _first_row(changed).fill_(number)
    return changed


def _scale_all(
    label: str, power: Callable[[torch.finfo], float]
) -> Callable[[Sample], Iterator[tuple[str, Inputs]]]:
    """Return the fillings in which every number is scaled by a power of the range."""

    def words(sample: Sample) -> Iterator[tuple[str, Inputs]]:
        yield _each(sample, label, lambda x: x * power(torch.finfo(x.dtype)))

    return words


def _offset(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Fill in whole numbers close to one another and far from 0. Their average is a number of the
    dtype.
    """
    for far, step in ((1e4, 1), (1e8, 16)):
        # Defaults keep the numbers of this round, which the names lose in the next one.
        def near(x: Tensor, far: float = far, step: int = step) -> Tensor:
            order = torch.randperm(x.numel(), generator=generator(sample.seed, "offset"))
            return (far + step * order).to(x.dtype).reshape(x.shape)

        yield _each(sample, f"near {far:g}", near)


def _dominant(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Make one entry of each row so large that exponentials of the others round away next to it."""
    for place, x in enumerate(sample.inputs):
        if x.is_floating_point() and x.ndim and x.numel():
            ahead = x.clone()
            # exp(-40) and exp(-20) are below half an ulp of 1 in the two dtypes.
            ahead[..., -1] += 40 if x.dtype is torch.float64 else 20
            label = f"one large entry in each row of input {place}"
            yield label, _with(sample, place, ahead)


def _largest(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Fill in numbers of which two have no sum in the dtype, or no difference."""
    yield _each(
        sample,
        "all near the end of the range",
        lambda x: torch.full_like(x, 0.9 * torch.finfo(x.dtype).max),
    )
    floating = iter(range(len(sample.inputs)))

    def ends(x: Tensor) -> Tensor:
        # The inputs begin with opposite signs, so that differences between them overflow too.
        signs = torch.tensor(-1.0, dtype=torch.float64) ** (
            torch.arange(x.numel()) + next(floating)
        )
        return (signs * 0.9 * torch.finfo(x.dtype).max).to(x).reshape(x.shape)

    yield _each(sample, "at both ends of the range", ends)


def _impossible(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Make a logarithm of a probability minus infinity, where the target has the probability 0."""
    if len(sample.inputs) < 2:
        return
    x, target, *others = sample.inputs
    if x.shape != target.shape or x.numel() <= 1:
        return
    if x.is_floating_point() and target.is_floating_point():
        x, target = x.clone(), target.clone()
        x.view(-1)[0], target.view(-1)[0] = float("-inf"), 0.0
        yield "an impossible outcome", (x, target, *others)


# --- matrices -------------------------------------------------------------------------------------


def _matrices(
    sample: Sample, label: str, make: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Inputs]]:
    """Change the first matrix of the sample, in double precision, and then round it."""
    for place, x in enumerate(sample.inputs):
        if _is_inexact(x) and x.ndim >= 2 and x.numel():
            double = torch.complex128 if x.is_complex() else torch.float64
            yield label, _with(sample, place, make(x.to(double)).to(x.dtype))
            return


def _equal_singular_values(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Fill in orthogonal matrices, whose singular values tie."""

    def orthogonal(x: Tensor) -> Tensor:
        # The factor Q of a wide matrix is square, so the transposed matrix is factored.
        if x.shape[-2] < x.shape[-1]:
            return orthogonal(x.mT).mT
        factor: Tensor = torch.linalg.qr(x + _eye(x))[0]
        return factor

    yield from _matrices(sample, "all singular values 1", orthogonal)
    yield from _matrices(sample, "the identity", lambda x: _eye(x).expand(x.shape))


def _unit_triangular(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _matrices(sample, "unit lower triangular", lambda x: torch.tril(x, -1) + _eye(x))
    yield from _matrices(sample, "unit upper triangular", lambda x: torch.triu(x, 1) + _eye(x))


def _eye(x: Tensor) -> Tensor:
    return torch.eye(*x.shape[-2:], dtype=x.dtype, device=x.device)


def _far_from_identity(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Fill in triangular matrices with a diagonal of 0.5, -1.5, 2.5, … and large entries next to
    it.
    """
    for label, half in (
        ("lower triangular, far from the identity", torch.tril),
        ("upper triangular, far from the identity", torch.triu),
    ):

        def far(x: Tensor, half: Callable[..., Tensor] = half) -> Tensor:
            places = torch.arange(min(x.shape[-2:]))
            diagonal = (places + 0.5) * (-1.0) ** places
            matrix = half(3 * x)
            matrix.diagonal(dim1=-2, dim2=-1).copy_(diagonal.to(x.dtype))
            return matrix

        yield from _matrices(sample, label, far)


# --- indices --------------------------------------------------------------------------------------


def _indices(
    sample: Sample, label: str, change: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Inputs]]:
    """Change integer inputs, all of them."""
    if any(map(_is_index, sample.inputs)):
        inputs = list(sample.inputs)
        for place, x in enumerate(inputs):
            if _is_index(x):
                inputs[place] = change(x)
        yield label, tuple(inputs)


def _is_index(x: Tensor) -> bool:
    return x.dtype in (torch.int64, torch.int32) and x.ndim > 0 and x.numel() > 0


def _smaller_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Make an index shorter than the source along each dimension."""

    def shorter(index: Tensor) -> Tensor:
        lengths = [max(1, size - 1) for size in index.shape]
        return index[tuple(map(slice, lengths))].clone()

    yield from _indices(sample, "index smaller than the source", shorter)


def _repeated_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Make every index the same, so that writes to one place meet."""

    def all_like_first(index: Tensor) -> Tensor:
        first = index.view(-1)[:1]
        return first.expand(index.numel()).reshape(index.shape).clone()

    yield from _indices(sample, "one index everywhere", all_like_first)


def _empty_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _indices(sample, "no index", lambda x: x[:0].clone())


WORDS: dict[str, Callable[[Sample], Iterator[tuple[str, Inputs]]]] = {
    "tails": lambda sample: iter(()),
    "ties": _ties,
    "zero_factor": _zero_factor,
    "one_nan": _one(float("nan")),
    "one_inf": _both_infinities,
    "masked_row": _masked_row,
    "huge": _scale_all("squares overflow", lambda info: info.max**0.51),
    "tiny": _scale_all("squares underflow", lambda info: info.smallest_normal**0.7),
    "subnormal": _scale_all("subnormal", lambda info: info.smallest_normal * 2**-6),
    "offset": _offset,
    "dominant": _dominant,
    "largest": _largest,
    "impossible": _impossible,
    "mixed": lambda sample: iter(()),
    "edges": lambda sample: iter(()),
    "verge": lambda sample: iter(()),
    "equal_singular_values": _equal_singular_values,
    "unit_triangular": _unit_triangular,
    "far_from_identity": _far_from_identity,
    "smaller_index": _smaller_index,
    "repeated_index": _repeated_index,
    "empty_index": _empty_index,
    **ARGUMENT_WORDS,
}
"""Fillings by word of the axis ``values``."""
