"""Degenerate points: inputs at which formulas divide by zero, tie, overflow or lose every digit.

A word of the axis ``values`` names a kind of points. It makes fillings of a sample: other values for its inputs, in the same shapes. An
elementwise op with an exact definition gets a vector of chosen numbers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch

from gen.checks.samples import Sample
from gen.checks.seeds import generator
from gen.reference.exact import Function
from gen.reference.scalars import SCALARS

__all__ = ["WORDS", "chosen", "fillings", "is_scalar"]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]

_USUAL = (0.3, 1.0, 1.5, 2.0, 3.3, 5.5, 10.0, 20.0)
NUMBERS: dict[str, Callable[[torch.finfo], list[float]]] = {
    "tails": lambda info: (
        [
            s * x
            for x in (0.0, 1e-30, 1e-8, 1e-3, 0.1, *_USUAL, 30.0, 50.0, 80.0, 100.0, 300.0, 700.0, 1e3, 1e5, 1e8, 1e15, 1e30)
            for s in (1, -1)
            if x < info.max / 8 and (x or s > 0)
        ]
        + [1 - 8 * info.eps, 8 * info.eps - 1, 1 + 8 * info.eps, 0.25, 0.75]
    ),
    "huge": lambda info: [s * info.max**power for power in (0.51, 0.7, 0.9, 0.99) for s in (1, -1)],
    "tiny": lambda info: [s * info.tiny**power for power in (0.51, 0.7, 0.9, 1.0) for s in (1, -1)],
    "subnormal": lambda info: [s * info.smallest_normal * part for part in (0.5, 2**-10, 2**-20) for s in (1, -1)],
}
"""The numbers of a word for functions of one number."""
PAIRED = 9  # numbers of which functions of two get every pair
TRIPLED = 4


def is_scalar(sample: Sample) -> bool:
    """Whether the op has an exact definition, and all tensors of the sample are floating point."""
    return sample.op.name in SCALARS and bool(sample.inputs) and all(x.is_floating_point() for x in sample.inputs)


def chosen(samples: Sequence[Sample]) -> list[Sample]:
    """Of elementwise samples that differ only in shapes, the first: their shapes are replaced."""
    first: dict[object, Sample] = {}
    for sample in samples:
        outputs = sample.facts.outputs
        if len(outputs) != 1 or outputs[0].numel() < 2 or outputs[0].shape != torch.broadcast_shapes(*(x.shape for x in sample.inputs)):
            continue  # a reduced loss
        first.setdefault((len(sample.inputs), *sample.signature[1:]), sample)
    return list(first.values())


def fillings(sample: Sample, word: str) -> list[tuple[str, Inputs]]:
    """``(label, inputs)``: the points of `word` for this sample. Empty if the word has none for it."""
    if is_scalar(sample) and word in NUMBERS:
        return [(word, _defined(sample, _vectors(sample.inputs, word)))]
    return [(label, inputs) for label, inputs in WORDS[word](sample) if not _same(inputs, sample.inputs)]


def _same(inputs: Inputs, others: Inputs) -> bool:
    return all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(inputs, others, strict=True))


def _vectors(inputs: Inputs, word: str) -> Inputs:
    """Vectors of one length, one per input, whose entries take every combination of numbers."""
    info = torch.finfo(inputs[0].dtype)
    numbers = NUMBERS[word](info)
    if len(inputs) == 1:
        return (torch.tensor(numbers, dtype=inputs[0].dtype),)
    count = PAIRED if len(inputs) == 2 else TRIPLED
    if word == "tails":
        far = [-80.0, 1e-3, 1e4] if inputs[0].dtype is torch.float32 else [-80.0, 1e-8, 1e15]
        numbers = [0.0, 0.3, -1.0, 2.0, -2.5, 20.0, *far]
    rows = list(product(numbers[:count], repeat=len(inputs)))
    return tuple(torch.tensor(column, dtype=x.dtype) for column, x in zip(zip(*rows, strict=True), inputs, strict=True))


def function(sample: Sample) -> Function:
    """The op's definition with the sample's other arguments."""
    return Function(sample.op.name, lambda elements: sample.rebuild(elements), " ".join(sample.signature[2]))


def _defined(sample: Sample, vectors: Inputs) -> Inputs:
    """The entries at which the op has a value, if there are any. At others nothing is compared, and a kernel may run for ever."""
    defined, value = function(sample), [x.to(torch.float64).tolist() for x in vectors]
    mask = torch.tensor([defined.partial((0,) * len(vectors), point) is not None for point in zip(*value, strict=True)])
    return tuple(x[mask] for x in vectors) if bool(mask.any()) else vectors


# --- fillings of a sample's own shapes ----------------------------------------------------------------------------------------------


def _each(sample: Sample, label: str, change: Callable[[Tensor], Tensor]) -> tuple[str, Inputs]:
    """All floating inputs changed."""
    return label, tuple(change(x.clone()) if _inexact(x) and x.numel() else x for x in sample.inputs)


def _inexact(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _ties(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    def some(x: Tensor) -> Tensor:
        drawn = torch.randint(1, 3, x.shape, generator=generator(sample.seed, "ties"))
        return drawn.to(x.dtype)

    yield _each(sample, "ties", some)
    yield _each(sample, "all equal", torch.ones_like)


def _zero_factor(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    def at(*places: int) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            for place in places:
                for dim in range(x.ndim):
                    x.narrow(dim, place if place >= 0 else x.shape[dim] - 1, 1).narrow(dim - 1, 0, 1).zero_()
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
                yield f"{number} in input {place}", (*sample.inputs[:place], changed, *sample.inputs[place + 1 :])

    return words


def _both_infinities(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _one(float("inf"))(sample)
    yield from _one(float("-inf"))(sample)


def _masked_row(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """A row of minus infinity, and masks whose first row hides everything."""
    masks = [place for place, x in enumerate(sample.inputs) if x.dtype is torch.bool and x.numel()]
    if masks:
        yield "a row of the mask hides all", tuple(_row(x, False) if place in masks else x for place, x in enumerate(sample.inputs))
    first = next((place for place, x in enumerate(sample.inputs) if x.is_floating_point() and x.numel()), None)
    if first is not None:
        for label, numbers in (("-inf in a row", float("-inf")), ("-inf in all but one of a row", None)):
            x = _row(sample.inputs[first], float("-inf"))
            if numbers is None:
                (x[(0,) * (x.ndim - 1)] if x.ndim > 1 else x.view(-1))[-1:] = 0.5
            yield label, (*sample.inputs[:first], x, *sample.inputs[first + 1 :])


def _row(x: Tensor, number: float | bool) -> Tensor:
    """`x` with the first vector of its last dimension filled."""
    changed = x.clone()
    (changed.view(-1) if x.ndim < 2 else changed[(0,) * (x.ndim - 1)]).fill_(number)
    return changed


def _scaled(label: str, power: Callable[[torch.finfo], float]) -> Callable[[Sample], Iterator[tuple[str, Inputs]]]:
    def words(sample: Sample) -> Iterator[tuple[str, Inputs]]:
        yield _each(sample, label, lambda x: x * power(torch.finfo(x.dtype)))

    return words


# --- matrices -----------------------------------------------------------------------------------------------------------------------


def _matrices(sample: Sample, label: str, make: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Inputs]]:
    """The first matrix of the sample changed, in double precision and then rounded."""
    for place, x in enumerate(sample.inputs):
        if _inexact(x) and x.ndim >= 2 and x.numel():
            wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
            yield label, (*sample.inputs[:place], make(wide).to(x.dtype), *sample.inputs[place + 1 :])
            return


def _equal_singular_values(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    def orthogonal(x: Tensor) -> Tensor:
        tall = x.mT if x.shape[-2] < x.shape[-1] else x
        q: Tensor = torch.linalg.qr(tall + torch.eye(*tall.shape[-2:], dtype=x.dtype))[0]
        return q.mT if tall is not x else q

    yield from _matrices(sample, "all singular values 1", orthogonal)
    yield from _matrices(sample, "the identity", lambda x: torch.eye(*x.shape[-2:], dtype=x.dtype).expand(x.shape))


def _unit_triangular(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _matrices(sample, "unit lower triangular", lambda x: torch.tril(x, -1) + _eye(x))
    yield from _matrices(sample, "unit upper triangular", lambda x: torch.triu(x, 1) + _eye(x))


def _eye(x: Tensor) -> Tensor:
    return torch.eye(*x.shape[-2:], dtype=x.dtype)


def _far_from_identity(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    """Triangular matrices with a diagonal of 0.5, -1.5, 2.5, … and large entries beside it."""
    for label, half in (("lower triangular, far from the identity", torch.tril), ("upper triangular, far from the identity", torch.triu)):

        def far(x: Tensor, half: Callable[..., Tensor] = half) -> Tensor:
            n = min(x.shape[-2:])
            diagonal = (torch.arange(n) + 0.5) * (-1.0) ** torch.arange(n)
            made = half(3 * x)
            made.diagonal(dim1=-2, dim2=-1).copy_(diagonal.to(x.dtype).expand(made.diagonal(dim1=-2, dim2=-1).shape))
            return made

        yield from _matrices(sample, label, far)


# --- indices ------------------------------------------------------------------------------------------------------------------------


def _indices(sample: Sample, label: str, change: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Inputs]]:
    """Integer inputs changed, all of them."""
    if any(_is_index(x) for x in sample.inputs):
        yield label, tuple(change(x) if _is_index(x) else x for x in sample.inputs)


def _is_index(x: Tensor) -> bool:
    return x.dtype in (torch.int64, torch.int32) and x.ndim > 0 and x.numel() > 0


def _smaller_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _indices(sample, "index smaller than the source", lambda x: x[tuple(slice(max(1, size - 1)) for size in x.shape)].clone())


def _repeated_index(sample: Sample) -> Iterator[tuple[str, Inputs]]:
    yield from _indices(sample, "one index everywhere", lambda x: x.view(-1)[:1].expand(x.numel()).reshape(x.shape).clone())


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
    "equal_singular_values": _equal_singular_values,
    "unit_triangular": _unit_triangular,
    "far_from_identity": _far_from_identity,
    "smaller_index": _smaller_index,
    "repeated_index": _repeated_index,
    "empty_index": _empty_index,
}
"""Fillings by word of the axis ``values``."""
