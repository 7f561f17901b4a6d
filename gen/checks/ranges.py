"""Replace an argument by one out of range: an index beyond its dimension, a negative one, a
probability above 1. Or by the points of a word, such as masks that hide all.

A target must refuse what the plain op refuses, and give what it gives. An index below or above the
whole dimension must be refused whatever the plain op does; checks of that name the ops that take
indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch

from gen.checks.compare import Rule, Tally, compare
from gen.checks.illformed import attempt, said
from gen.outcomes import Lacking, Mismatch, Unsuitable
from gen.samples import points
from gen.samples.samples import Sample
from gen.targets.protocol import Target

__all__ = ["assert_in_range"]

Tensor = torch.Tensor
Inputs = tuple[Tensor, ...]
Answer = tuple[Tensor, ...] | Exception


@dataclass(frozen=True)
class Variant:
    """Inputs with one entry of one of them replaced. `never`: no op may take it."""

    label: str
    place: int
    inputs: Inputs
    never: bool = False


def _variants(sample: Sample) -> Iterator[Variant]:
    """Yield the sample with its first index or number replaced, for each tensor input."""
    numbers = [leaf for leaf in sample.numbers if type(leaf) is int]
    # no dimension is as large, nor are all of an input
    beyond = max([1, *(x.numel() for x in sample.inputs), *numbers])
    sizes = chain.from_iterable(x.shape for x in sample.inputs)
    largest_size = max([1, *sizes, *numbers])
    for place, x in enumerate(sample.inputs):
        if not x.numel():
            continue
        if x.dtype is torch.int64:
            yield _with(sample, place, -1)
            # in memory, the next element
            yield _with(sample, place, largest_size)
            yield _with(sample, place, beyond, never=True)
            yield _with(sample, place, -beyond - 1, never=True)
        # A probability is from 0 to 1. Other numbers the plain op takes as well.
        elif x.is_floating_point():
            yield _with(sample, place, 1.5)
            yield _with(sample, place, -0.5)


def _with(sample: Sample, place: int, number: float, never: bool = False) -> Variant:
    """Return the variant whose tensor at `place` begins with `number`."""
    changed = sample.inputs[place].clone(memory_format=torch.contiguous_format)
    changed.view(-1)[0] = number
    inputs = (*sample.inputs[:place], changed, *sample.inputs[place + 1 :])
    return Variant(f"{number} in tensor {place}", place, inputs, never)


def assert_in_range(target: Target, sample: Sample, word: str, batched: bool, tally: Tally) -> None:
    """Raise Mismatch unless the target agrees with the plain op on every variant, under vmap with a
    loop if `batched`.

    `word` of the axis ``values`` names the variants; those of ``no_index`` no op may take, so they
    must be refused. Raises Unsuitable if the sample has no such arguments, and Lacking if torch
    would be compared with itself.
    """
    absolute = word == "no_index"
    if target.name == "torch" and not (absolute or batched):
        raise Lacking("target torch would be compared with itself")
    variants = _variants_to_try(sample, word)
    expect, answer = _ways_to_run(target, sample, batched)
    failures: list[str] = []
    for variant in variants:
        expected, actual = expect(variant), answer(variant)
        # each variant counts as a comparison, also where both sides refuse it
        tally.entries += 1
        tally.nonzero += 1
        failures += _difference(variant, expected, actual, absolute, sample.facts.random)
    if failures:
        raise Mismatch("; ".join(failures))


def _variants_to_try(sample: Sample, word: str) -> list[Variant]:
    """Return the variants of a sample. The plain op must accept the sample itself."""
    if _is_refusal(_try(sample, sample, sample.inputs)):
        raise Unsuitable(f"{sample.description}: refused as it is")
    if word in points.WORDS:
        fillings = points.fillings(sample, word)
        if not fillings:
            raise Unsuitable(f"{word}: {sample.description} has no such points")
        return [Variant(label, 0, inputs) for label, inputs in fillings]
    variants = list(_variants(sample))
    if word == "no_index":
        variants = [variant for variant in variants if variant.never]
    if not variants:
        raise Unsuitable(f"{sample.description} takes no index and no probability")
    return variants


def _ways_to_run(
    target: Target, sample: Sample, batched: bool
) -> tuple[Callable[[Variant], Answer], Callable[[Variant], Answer]]:
    """Return how the plain op answers a variant, and how the target does.

    In a batch the variant lies next to the sample, which vmap has to take as it is.
    """
    if not batched:
        expect = partial(_run_alone, sample, sample)
        return expect, partial(_run_alone, sample, target.forward(sample))
    if _is_refusal(_map(target, sample, Variant("as it is", 0, sample.inputs))):
        raise Unsuitable(f"{sample.description}: vmap refuses it as it is")
    return partial(_loop, sample), partial(_map, target, sample)


def _difference(
    variant: Variant, expected: Answer, actual: Answer, absolute: bool, random: bool
) -> Iterator[str]:
    """Yield a text if the target does not do with a variant what it should."""
    if isinstance(actual, Exception):
        if not isinstance(expected, Exception):
            yield f"{variant.label} is refused ({said(actual)}), and the plain op takes it"
        return
    if absolute or isinstance(expected, Exception):
        why = "no dimension has it" if absolute else f"the plain op raises {said(expected)}"
        yield f"{variant.label} is taken, but {why}"
    elif not random:
        try:
            compare(actual, expected, Rule(), Tally())
        except Mismatch as mismatch:
            yield f"{variant.label}: {mismatch}"


def _run_alone(sample: Sample, function: Callable[..., object], variant: Variant) -> Answer:
    return _try(sample, function, variant.inputs)


def _loop(sample: Sample, variant: Variant) -> Answer:
    """Return the results of the variant and of the sample, stacked, or the first exception."""
    neighbour = _neighbour(sample, variant)
    rows = [_try(sample, sample, inputs) for inputs in (variant.inputs, neighbour)]
    for row in rows:
        if isinstance(row, Exception):
            return row
    # the sizes of results may depend on values: then a loop has no batch of them
    return attempt(sample, lambda: map(torch.stack, zip(*rows, strict=True)))


def _map(target: Target, sample: Sample, variant: Variant) -> Answer:
    """Return the variant and the sample as a batch of two, in memory one after the other."""
    neighbour = _neighbour(sample, variant)
    batch = tuple(map(torch.stack, zip(variant.inputs, neighbour, strict=True)))
    return attempt(sample, lambda: target.vmap(sample, (0,) * len(batch))(*batch))


def _neighbour(sample: Sample, variant: Variant) -> Inputs:
    """Return what stands next to the variant in a batch: the sample, or the variant itself if the
    shapes differ.
    """
    pairs = zip(variant.inputs, sample.inputs, strict=True)
    if all(x.shape == y.shape for x, y in pairs):
        return sample.inputs
    return variant.inputs


def _try(sample: Sample, function: Callable[..., object], inputs: Inputs) -> Answer:
    """Return what becomes of `function` on copies of `inputs`: see :func:`.illformed.attempt`."""
    return attempt(sample, lambda: function(*_copies(inputs)))


def _copies(inputs: Inputs) -> Inputs:
    return tuple(x.clone() for x in inputs)


def _is_refusal(answer: Answer) -> bool:
    return isinstance(answer, Exception)
