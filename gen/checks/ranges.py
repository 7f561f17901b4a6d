"""Replace an argument by one out of range, and compare what the target does with the plain op.

Such arguments are an index beyond its dimension, a negative index, or a probability above 1. The
points of a word may stand for them, such as masks that hide everything.

A target must refuse what the plain op refuses, and return what the plain op returns. The word
``no_index`` asks for more. An index far outside of its dimension must be refused, even if the plain
op accepts it. Only checks of ops that take indices have this word.
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
    """The inputs of a sample with one entry of one tensor replaced."""

    label: str
    place: int
    inputs: Inputs
    never: bool = False  # whether no op may accept the entry


def _variants(sample: Sample) -> Iterator[Variant]:
    """Yield the sample with its first index or number replaced, for each tensor input."""
    numbers = [leaf for leaf in sample.numbers if type(leaf) is int]
    # No dimension is that large, nor is any input as a whole.
    beyond = max([1, *(x.numel() for x in sample.inputs), *numbers])
    sizes = chain.from_iterable(x.shape for x in sample.inputs)
    largest_size = max([1, *sizes, *numbers])
    for place, x in enumerate(sample.inputs):
        if not x.numel():
            continue
        if x.dtype is torch.int64:
            yield _replace_first(sample, place, -1)
            # An op that does not check it may read the next element in memory.
            yield _replace_first(sample, place, largest_size)
            yield _replace_first(sample, place, beyond, never=True)
            yield _replace_first(sample, place, -beyond - 1, never=True)
        # Both are no probability. An op that takes other numbers accepts them on both sides.
        elif x.is_floating_point():
            yield _replace_first(sample, place, 1.5)
            yield _replace_first(sample, place, -0.5)


def _replace_first(sample: Sample, place: int, number: float, never: bool = False) -> Variant:
    """Return the variant whose tensor at `place` begins with `number`."""
    changed = sample.inputs[place].clone(memory_format=torch.contiguous_format)
    changed.view(-1)[0] = number
    inputs = (*sample.inputs[:place], changed, *sample.inputs[place + 1 :])
    return Variant(f"{number} in tensor {place}", place, inputs, never)


def assert_in_range(target: Target, sample: Sample, word: str, batched: bool, tally: Tally) -> None:
    """Raise Mismatch unless the target agrees with the plain op on every variant.

    If `batched`, the target runs under vmap, and the plain op runs in a loop. `word` of the axis
    ``values`` names the variants. Those of ``no_index`` must be refused.

    Raises Unsuitable if the sample has no such arguments, and Lacking if torch would be compared
    with itself.
    """
    must_refuse = word == "no_index"
    if target.name == "torch" and not (must_refuse or batched):
        raise Lacking("target torch would be compared with itself")
    variants = _variants_to_try(sample, word)
    run_plain, run_target = _ways_to_run(target, sample, batched)
    failures: list[str] = []
    for variant in variants:
        expected, actual = run_plain(variant), run_target(variant)
        # Each variant counts as a comparison, even if both sides refuse it.
        tally.entries += 1
        tally.nonzero += 1
        failures += _difference(variant, expected, actual, must_refuse, sample.facts.random)
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
    """Return one function that runs a variant on the plain op, and one that runs it on the target.

    In a batch the variant lies next to the sample itself, so vmap has to accept that.
    """
    if not batched:
        run_plain = partial(_run_alone, sample, sample)
        return run_plain, partial(_run_alone, sample, target.forward(sample))
    if _is_refusal(_map(target, sample, Variant("as it is", 0, sample.inputs))):
        raise Unsuitable(f"{sample.description}: vmap refuses it as it is")
    return partial(_loop, sample), partial(_map, target, sample)


def _difference(
    variant: Variant, expected: Answer, actual: Answer, must_refuse: bool, random: bool
) -> Iterator[str]:
    """Yield one text if the target's answer to a variant is wrong, and nothing otherwise."""
    if isinstance(actual, Exception):
        if not isinstance(expected, Exception):
            yield f"{variant.label} is refused ({said(actual)}), and the plain op takes it"
    elif must_refuse:
        yield f"{variant.label} is taken, but no dimension has it"
    elif isinstance(expected, Exception):
        yield f"{variant.label} is taken, but the plain op raises {said(expected)}"
    # Two draws of random numbers have nothing in common that could be compared.
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
    # Sizes of results may depend on values. Then stack raises, and that is the answer.
    return attempt(sample, lambda: map(torch.stack, zip(*rows, strict=True)))


def _map(target: Target, sample: Sample, variant: Variant) -> Answer:
    """Return the results of the variant and of the sample as a batch of two under vmap.

    The sample follows the variant in memory, so an index that is not checked reads from it.
    """
    neighbour = _neighbour(sample, variant)
    batch = tuple(map(torch.stack, zip(variant.inputs, neighbour, strict=True)))
    return attempt(sample, lambda: target.vmap(sample, (0,) * len(batch))(*batch))


def _neighbour(sample: Sample, variant: Variant) -> Inputs:
    """Return the second row of the batch: the sample, or the variant again if shapes differ."""
    pairs = zip(variant.inputs, sample.inputs, strict=True)
    if all(x.shape == y.shape for x, y in pairs):
        return sample.inputs
    return variant.inputs


def _try(sample: Sample, function: Callable[..., object], inputs: Inputs) -> Answer:
    """Return the results of `function` on copies of `inputs`, or its exception.

    See :func:`.illformed.attempt`.
    """
    return attempt(sample, lambda: function(*_copies(inputs)))


def _copies(inputs: Inputs) -> Inputs:
    return tuple(x.clone() for x in inputs)


def _is_refusal(answer: Answer) -> bool:
    return isinstance(answer, Exception)
