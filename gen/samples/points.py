"""Degenerate points: inputs at which formulas divide by zero, tie, overflow or lose every digit.

A word of the axis ``values`` names a kind of points. It makes fillings of a sample: other values
for its inputs, in the same shapes. An elementwise op with an exact definition gets a vector of
chosen numbers instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch

from gen.reference.exact import Function
from gen.reference.scalars import SCALARS
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
"""Where exponentials leave the range of a dtype, by its bits."""
NUMBERS: dict[str, Callable[[torch.finfo], list[float]]] = {
    "tails": lambda info: (
        [
            s * x
            for x in (
                0.0,
                1e-30,
                1e-8,
                1e-3,
                0.1,
                *_USUAL,
                30.0,
                50.0,
                80.0,
                100.0,
                300.0,
                700.0,
                1e3,
                1e5,
                1e8,
                1e15,
                1e30,
            )
            for s in (1, -1)
            if x < info.max / 8 and (x or s > 0)
        ]
        + [1 - 8 * info.eps, 8 * info.eps - 1, 1 + 8 * info.eps, 0.25, 0.75]
    ),
    "huge": lambda info: [s * info.max**power for power in (0.51, 0.7, 0.9, 0.99) for s in (1, -1)],
    "tiny": lambda info: [s * info.tiny**power for power in (0.51, 0.7, 0.9, 1.0) for s in (1, -1)],
    "subnormal": lambda info: [
        s * info.smallest_normal * part for part in (0.5, 2**-10, 2**-20) for s in (1, -1)
    ],
    "mixed": lambda info: [
        0.0,
        1.0,
        0.5,
        -3.0,
        info.max**0.51,
        0.9 * info.max,
        -0.9 * info.max,
        info.tiny**0.25,
        info.tiny**0.9,
    ],
    "edges": lambda info: [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -2.0, 0.5, -0.5],
    "verge": lambda info: (
        [s * x for x in _VERGE[info.bits] for s in (1, -1)]
        + [s * info.smallest_normal * part for part in (0.5, 2**-10) for s in (1, -1)]
    ),
}
"""The numbers of a word for functions of one number."""
UNARY = frozenset(("verge",))
"""Words for functions of one number alone."""
PAIRED = 9  # numbers of which functions of two get every pair
TRIPLED = 4


def is_scalar(sample: Sample) -> bool:
    """Return whether the op has an exact definition, and all tensors of the sample are floating
    point."""
    return (
        sample.op.name in SCALARS
        and bool(sample.inputs)
        and all(x.is_floating_point() for x in sample.inputs)
    )


def chosen(samples: Sequence[Sample]) -> list[Sample]:
    """Of elementwise samples that differ only in shapes, the first: their shapes are replaced."""
    first: dict[object, Sample] = {}
    for sample in samples:
        outputs = sample.facts.outputs
        if (
            len(outputs) != 1
            or outputs[0].numel() < 2
            or outputs[0].shape != torch.broadcast_shapes(*(x.shape for x in sample.inputs))
        ):
            continue  # a reduced loss
        first.setdefault((len(sample.inputs), *sample.signature[1:]), sample)
    return list(first.values())


def fillings(sample: Sample, word: str) -> list[tuple[str, Inputs]]:
    """``(label, inputs)``: the points of `word` for this sample. Empty if the word
    has none for it."""
    if is_scalar(sample) and word in NUMBERS:
        if word in UNARY and len(sample.inputs) > 1:
            return []
        vectors = _vectors(sample.inputs, word)
        vectors = vectors if word == "edges" else _defined(sample, vectors)
        # code for it may be other than for vectors
        alone = [("one number", tuple(x[-1:] for x in vectors))] if word == "verge" else []
        return [(word, vectors), *alone]
    return [
        (label, inputs) for label, inputs in WORDS[word](sample) if not _same(inputs, sample.inputs)
    ]


def _same(inputs: Inputs, others: Inputs) -> bool:
    return all(
        x.shape == y.shape and torch.equal(x, y) for x, y in zip(inputs, others, strict=True)
    )


def _vectors(inputs: Inputs, word: str) -> Inputs:
    """Vectors of one length, one per input, whose entries take every combination of numbers."""
    info = torch.finfo(inputs[0].dtype)
    numbers = NUMBERS[word](info)
    if len(inputs) == 1:
        return (torch.tensor(numbers, dtype=inputs[0].dtype, device=inputs[0].device),)
    count = PAIRED if len(inputs) == 2 else TRIPLED
    if word == "tails":
        far = [-80.0, 1e-3, 1e4] if inputs[0].dtype is torch.float32 else [-80.0, 1e-8, 1e15]
        numbers = [0.0, 0.3, -1.0, 2.0, -2.5, 20.0, *far]
    rows = list(product(numbers[:count], repeat=len(inputs)))
    return tuple(
        torch.tensor(column, dtype=x.dtype, device=x.device)
        for column, x in zip(zip(*rows, strict=True), inputs, strict=True)
    )


def function(sample: Sample) -> Function:
    """Return the op's definition with the sample's other arguments."""
    return Function(
        sample.op.name, lambda elements: sample.rebuild(elements), " ".join(sample.signature[2])
    )


def _defined(sample: Sample, vectors: Inputs) -> Inputs:
    """Return the entries at which the op has a value, if there are any. At others nothing is
    compared, and a kernel may run for ever."""
    defined, value = function(sample), [x.to(torch.float64).tolist() for x in vectors]
    mask = torch.tensor(
        [
            defined.partial((0,) * len(vectors), point) is not None
            for point in zip(*value, strict=True)
        ],
        device=vectors[0].device,
    )
    return tuple(x[mask] for x in vectors) if bool(mask.any()) else vectors


# --- fillings of a sample's own shapes ------------------------------------------------------------


def _each(sample: Sample, label: str, change: Callable[[Tensor], Tensor]) -> tuple[str, Inputs]:
    """All floating inputs changed."""
    return label, tuple(
        change(x.clone()) if _inexact(x) and x.numel() else x for x in sample.inputs
    )


def _inexact(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _ties(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    def some(x: Tensor) -> Tensor:
        drawn = torch.randint(1, 3, x.shape, generator=generator(sample.seed, "ties"))
        return drawn.to(x)

    yield _each(sample, "ties", some)
    yield _each(sample, "all equal", torch.ones_like)


def _zero_factor(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    def at(*places: int) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            for place in places:
                for dim in range(x.ndim):
                    x.narrow(dim, place if place >= 0 else x.shape[dim] - 1, 1).narrow(
                        dim - 1, 0, 1
                    ).zero_()
            return x if x.ndim else x.zero_()

        return change

    yield _each(sample, "one zero", at(0))
    yield _each(sample, "two zeros", at(0, -1))
    yield _each(sample, "all zero", torch.zeros_like)


def _one(number: float) -> Callable[[Sample], Iterator[tuple[str, Inputs]]]:
    def words(sample: Sample) -> Iterator[tuple[str, Inputs]]:
        """One entry of one input at a time."""
        for place, x in enumerate(sample.inputs):
            if _inexact(x) and x.numel():
                changed = x.clone()
                changed.view(-1)[x.numel() // 2] = number
                yield (
                    f"{number} in input {place}",
                    (*sample.inputs[:place], changed, *sample.inputs[place + 1 :]),
                )

    return words


def _both_infinities(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _one(float("inf"))(sample)
    yield from _one(float("-inf"))(sample)


def _masked_row(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """A row of minus infinity, and masks whose first row hides everything."""
    masks = [place for place, x in enumerate(sample.inputs) if x.dtype is torch.bool and x.numel()]
    if masks:
        yield (
            "a row of the mask hides all",
            tuple(_row(x, False) if place in masks else x for place, x in enumerate(sample.inputs)),
        )
    first = next(
        (place for place, x in enumerate(sample.inputs) if x.is_floating_point() and x.numel()),
        None,
    )
    if first is not None:
        for label, numbers in (
            ("-inf in a row", float("-inf")),
            ("-inf in all but one of a row", None),
        ):
            x = _row(sample.inputs[first], float("-inf"))
            if numbers is None:
                (x[(0,) * (x.ndim - 1)] if x.ndim > 1 else x.view(-1))[-1:] = 0.5
            yield label, (*sample.inputs[:first], x, *sample.inputs[first + 1 :])


def _row(x: Tensor, number: float | bool) -> Tensor:
    """`x` with the first vector of its last dimension filled."""
    changed = x.clone()
    (changed.view(-1) if x.ndim < 2 else changed[(0,) * (x.ndim - 1)]).fill_(number)
    return changed


def _scaled(
    label: str, power: Callable[[torch.finfo], float]
) -> Callable[[Sample], Iterator[tuple[str, Inputs]]]:
    def words(sample: Sample) -> Iterator[tuple[str, Inputs]]:
        yield _each(sample, label, lambda x: x * power(torch.finfo(x.dtype)))

    return words


def _offset(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Whole numbers close to one another and far from 0. Their average is a number of the dtype."""
    for far, step in ((1e4, 1), (1e8, 16)):

        def near(x: Tensor, far: float = far, step: int = step) -> Tensor:
            order = torch.randperm(x.numel(), generator=generator(sample.seed, "offset"))
            return (far + step * order).to(x.dtype).reshape(x.shape)

        yield _each(sample, f"near {far:g}", near)


def _dominant(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """One entry of each row so much larger that exponentials of the others round away beside it."""
    for place, x in enumerate(sample.inputs):
        if x.is_floating_point() and x.ndim and x.numel():
            ahead = x.clone()
            ahead[..., -1] += 40 if x.dtype is torch.float64 else 20
            yield (
                f"one large entry in each row of input {place}",
                (*sample.inputs[:place], ahead, *sample.inputs[place + 1 :]),
            )


def _largest(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Numbers of which two have no sum in the dtype, or no difference."""
    yield _each(
        sample,
        "all near the end of the range",
        lambda x: torch.full_like(x, 0.9 * torch.finfo(x.dtype).max),
    )
    floating = iter(range(len(sample.inputs)))

    def ends(x: Tensor) -> Tensor:
        signs = torch.tensor(-1.0, dtype=torch.float64) ** (
            torch.arange(x.numel()) + next(floating)
        )
        return (signs * 0.9 * torch.finfo(x.dtype).max).to(x).reshape(x.shape)

    yield _each(sample, "at both ends of the range", ends)


def _impossible(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Logarithms of probabilities with minus infinity where the target has the probability 0."""
    if len(sample.inputs) > 1 and all(
        x.is_floating_point() and x.numel() > 1 for x in sample.inputs[:2]
    ):
        x, target = (y.clone() for y in sample.inputs[:2])
        if x.shape == target.shape:
            x.view(-1)[0], target.view(-1)[0] = float("-inf"), 0.0
            yield "an impossible outcome", (x, target, *sample.inputs[2:])


# --- matrices -------------------------------------------------------------------------------------


def _matrices(
    sample: Sample, label: str, make: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Inputs]]:
    """The first matrix of the sample changed, in double precision and then rounded."""
    for place, x in enumerate(sample.inputs):
        if _inexact(x) and x.ndim >= 2 and x.numel():
            wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
            yield (
                label,
                (*sample.inputs[:place], make(wide).to(x.dtype), *sample.inputs[place + 1 :]),
            )
            return


def _equal_singular_values(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    def orthogonal(x: Tensor) -> Tensor:
        tall = x.mT if x.shape[-2] < x.shape[-1] else x
        q: Tensor = torch.linalg.qr(tall + _eye(tall))[0]
        return q.mT if tall is not x else q

    yield from _matrices(sample, "all singular values 1", orthogonal)
    yield from _matrices(sample, "the identity", lambda x: _eye(x).expand(x.shape))


def _unit_triangular(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _matrices(sample, "unit lower triangular", lambda x: torch.tril(x, -1) + _eye(x))
    yield from _matrices(sample, "unit upper triangular", lambda x: torch.triu(x, 1) + _eye(x))


def _eye(x: Tensor) -> Tensor:
    return torch.eye(*x.shape[-2:], dtype=x.dtype, device=x.device)


def _far_from_identity(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Triangular matrices with a diagonal of 0.5, -1.5, 2.5, … and large entries beside it."""
    for label, half in (
        ("lower triangular, far from the identity", torch.tril),
        ("upper triangular, far from the identity", torch.triu),
    ):

        def far(x: Tensor, half: Callable[..., Tensor] = half) -> Tensor:
            n = min(x.shape[-2:])
            diagonal = (torch.arange(n) + 0.5) * (-1.0) ** torch.arange(n)
            made = half(3 * x)
            made.diagonal(dim1=-2, dim2=-1).copy_(
                diagonal.to(x.dtype).expand(made.diagonal(dim1=-2, dim2=-1).shape)
            )
            return made

        yield from _matrices(sample, label, far)


# --- indices --------------------------------------------------------------------------------------


def _indices(
    sample: Sample, label: str, change: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Inputs]]:
    """Integer inputs changed, all of them."""
    if any(_is_index(x) for x in sample.inputs):
        yield label, tuple(change(x) if _is_index(x) else x for x in sample.inputs)


def _is_index(x: Tensor) -> bool:
    return x.dtype in (torch.int64, torch.int32) and x.ndim > 0 and x.numel() > 0


def _smaller_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _indices(
        sample,
        "index smaller than the source",
        lambda x: x[tuple(slice(max(1, size - 1)) for size in x.shape)].clone(),
    )


def _repeated_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _indices(
        sample,
        "one index everywhere",
        lambda x: x.view(-1)[:1].expand(x.numel()).reshape(x.shape).clone(),
    )


def _empty_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _indices(sample, "no index", lambda x: x[:0].clone())


WORDS: dict[str, Callable[[Sample], Iterator[tuple[str, Inputs]]]] = {
    "tails": lambda sample: iter(()),
    "ties": _ties,
    "zero_factor": _zero_factor,
    "one_nan": _one(float("nan")),
    "one_inf": _both_infinities,
    "masked_row": _masked_row,
    "huge": _scaled("squares overflow", lambda info: info.max**0.51),
    "tiny": _scaled("squares underflow", lambda info: info.smallest_normal**0.7),
    "subnormal": _scaled("subnormal", lambda info: info.smallest_normal * 2**-6),
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
}
"""Fillings by word of the axis ``values``."""
