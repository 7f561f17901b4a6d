"""Define losses on arrays in arbitrary precision.

``ctc_loss(x, targets, input_lengths, target_lengths)`` takes the arguments of torch's function in
its order, with NumPy arrays of mpmath's numbers for tensors. `definitions` has the table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpmath import mpf

from gen.reference.arrays import Array
from gen.reference.reduction_definitions import exp, log, log_softmax, refuse
from gen.reference.scalars import Undefined


def _reduce(losses: Array, reduction: str) -> Array:
    """Return losses as ``reduction="none"``, ``"sum"`` or ``"mean"`` asks for them."""
    total = numpy.asarray(losses.sum(), dtype=object)
    return {"none": losses, "sum": total, "mean": total / mpf(max(losses.size, 1))}[reduction]


def cross_entropy(
    x: Array, t: Array, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Array:  # fmt: skip
    """Return the cross entropy, for targets that are classes or probabilities."""
    refuse(weight=weight, label_smoothing=label_smoothing or None)
    # a single sample has no batch in front of its classes
    channel = 1 if x.ndim > 1 else 0
    logs = numpy.moveaxis(log_softmax(x, channel), channel, -1)
    # Probabilities are numbers of mpmath, classes are integers.
    if t.dtype == object:
        losses = -_times(numpy.moveaxis(t, channel, -1), logs).sum(axis=-1)
        total = numpy.asarray(losses, dtype=object)
        if reduction == "mean":
            return total.sum() / mpf(max(total.size, 1))
        return _reduce(total, reduction)
    has_ignored_classes = bool((t == ignore_index).any())
    has_negative_classes = bool((t < 0).any())
    if has_ignored_classes or has_negative_classes:
        raise Undefined("classes that are ignored")
    of_class = numpy.take_along_axis(logs, numpy.asarray(t)[..., None], -1)
    return _reduce(numpy.asarray(-of_class[..., 0], dtype=object), reduction)


def _times_log(probability: Any, logarithm: object) -> object:
    """Return a probability times what may be infinite where it is 0: 0·log 0 counts 0 here."""
    if probability == 0:
        return mpf(0)
    return probability * logarithm


_times = numpy.frompyfunc(_times_log, 2, 1)


def kl_div(
    x: Array,
    t: Array,
    size_average: object = None,
    reduce: object = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Array:
    """Return ``t·(log t - x)``, where a target of 0 counts 0."""
    losses = exp(t) * (t - x) if log_target else _times(t, log(t) - x)
    losses = numpy.asarray(losses, dtype=object)
    # `mean` divides by the number of all elements, `batchmean` by that of samples alone
    if reduction == "batchmean":
        return numpy.asarray(losses.sum(), dtype=object) / mpf(losses.shape[0])
    return _reduce(losses, reduction)


def _probability_of(word: Sequence[int], x: Array, steps: int, blank: int) -> object:
    """Return the probability of all ways to spell `word`, which has a blank on either side of each
    letter.

    `x` (T, C) are logarithms, of which `steps` count. ``ways[s]`` is the probability to be at place
    `s` of the word.
    """
    # The blank between two letters may be left out, unless both are the same: `aa` needs it.
    may_skip = [s > 1 and word[s] not in (blank, word[s - 2]) for s in range(len(word))]
    # a way begins at the blank or at the first letter
    ways = [exp(x[0, letter]) for letter in word[:2]]
    ways += [mpf(0)] * (len(word) - len(ways))
    for step in range(1, steps):
        before = ways
        ways = []
        for index, letter in enumerate(word):
            total = before[index]
            if index:
                total = total + before[index - 1]
            if may_skip[index]:
                total = total + before[index - 2]
            ways.append(total * exp(x[step, letter]))
    # it ends at the last letter or at the blank behind it
    return sum(ways[-2:], mpf(0))


def ctc_loss(
    x: Array,
    targets: Array,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Array:
    """Return the loss by the sum over all ways to spell the targets with repetitions and blanks.

    `x` (T, N, C) are logarithms of probabilities.
    """
    if numpy.asarray(targets).ndim != 2 or zero_infinity:
        raise Undefined("targets that are no matrix")
    losses, lengths = [], []
    steps_and_lengths = zip(map(int, input_lengths), map(int, target_lengths), strict=True)
    for index, (steps, length) in enumerate(steps_and_lengths):
        word = [blank]
        # a blank between two letters, so that a repeated letter is not one long letter
        for letter in targets[index][:length]:
            word += [int(letter), blank]
        probability = _probability_of(word, x[:, index], steps, blank)
        losses.append(-log(probability))
        # as in torch, an empty target is divided by one letter
        lengths.append(max(length, 1))
    if reduction == "mean":
        by_letter = [loss / length for loss, length in zip(losses, lengths, strict=True)]
        return numpy.asarray(sum(by_letter, mpf(0)) / len(losses), dtype=object)
    return _reduce(numpy.array(losses, dtype=object), reduction)


def elementwise_loss(f: Callable[[Array], Array]) -> Callable[..., Array]:
    """Return a loss of the gaps between two arrays from one of a single gap."""

    def g(
        x: Array,
        y: Array,
        size_average: object = None,
        reduce: object = None,
        reduction: str = "mean",
        weight: object = None,
    ) -> Array:
        refuse(weight=weight)
        return _reduce(numpy.asarray(f(x - y), dtype=object), reduction)

    return g
