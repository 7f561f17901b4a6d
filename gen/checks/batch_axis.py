"""Vary what vmap is asked for, by the words of axis ``batch``.

The words are dimensions of outputs (``out_dims``), negative dimensions (``negative``), a batch of
no entries (``empty``), and mistakes (``mistaken``).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from gen.checks.compare import Rule, Tally, compare
from gen.checks.pipelines import Dims, Program, batched
from gen.outcomes import Mismatch, Unsuitable
from gen.reference import Loop
from gen.samples.samples import Sample
from gen.samples.seeds import seeded
from gen.targets.protocol import Flat, Placing, Target, Values

Tensor = torch.Tensor
ERRORS = (ValueError, IndexError, RuntimeError, TypeError)
"""What vmap may raise for dimensions that do not fit."""


def around(program: Program, in_dims: Dims, batch: str) -> tuple[Program, Dims]:
    """Return the function to map, and the dimensions at which its inputs are batched.

    With ``out_dims``, the function also returns its unbatched inputs, which are the same for every
    entry. With ``negative``, dimensions count from the end.
    """
    if batch == "negative":
        from_the_end = list(in_dims)
        for place, (dim, x) in enumerate(zip(in_dims, program.inputs, strict=True)):
            # These are the inputs without the batch, whose dimension comes on top.
            if dim is not None and dim >= 0:
                from_the_end[place] = dim - (x.ndim + 1)
        return program, tuple(from_the_end)
    # Only out_dims=None can describe an output that has no batch.
    fixed = [place for place, dim in enumerate(in_dims) if dim is None]
    if batch != "out_dims" or not fixed:
        return program, in_dims

    def over(target: Target) -> Flat:
        function = program.over(target)
        return lambda *values: (*function(*values), *(values[place] for place in fixed))

    return replace(program, over=over, _results={}), in_dims


def changed(inner: Program, mapped: Program, in_dims: Dims, batch: str) -> Program:
    """Return `mapped`, which is vmap of `inner`, with other dimensions of its outputs or without
    entries.
    """
    if batch == "out_dims":
        ranks = [x.ndim for x in inner.observed[0]]
        unbatched = sum(dim is None for dim in in_dims)
        # The unbatched inputs are the last outputs: see `around`.
        ranks_of_results = ranks[: len(ranks) - unbatched]
        out_dims = [_out_dim(place, rank) for place, rank in enumerate(ranks_of_results)]
        return batched(inner, mapped.inputs, in_dims, (*out_dims, *(None,) * unbatched))
    if batch == "empty":
        return _empty_batch(inner, mapped, in_dims)
    return mapped


def _out_dim(place: int, rank: int) -> int:
    """Return a place for the batch in an output of this rank: the end, the middle and the front in
    turn, counted from either side."""
    return (-1, min(1, rank), -rank - 1, rank)[place % 4]


def _empty_batch(inner: Program, mapped: Program, in_dims: Dims) -> Program:
    """Return vmap of a batch of no entries.

    A loop has nothing to run, so the reference runs one entry and drops it.
    """
    examples, inputs = list(mapped.inputs), list(mapped.inputs)
    for place, dim in enumerate(in_dims):
        if dim is not None:
            examples[place] = mapped.inputs[place].narrow(dim, 0, 1)
            inputs[place] = mapped.inputs[place].narrow(dim, 0, 0).clone()

    # The example entries are not inputs, so the target never gets them.
    def over(target: Target) -> Flat:
        f = target.vmap(inner.over(target), in_dims)
        if not isinstance(target, Loop):
            return f

        def g(*values: Any) -> Values:
            full = list(values)
            for place, dim in enumerate(in_dims):
                if dim is not None:
                    full[place] = torch.cat([values[place], examples[place].to(values[place])], dim)
            return tuple(y[:0] for y in f(*full))

        return g

    return Program(
        over, tuple(inputs), mapped.differentiable, mapped.seed, f"{mapped.label} without entries"
    )


# --- mistakes -------------------------------------------------------------------------------------


def assert_mistakes(target: Target, sample: Sample, tally: Tally) -> None:
    """Raise Mismatch unless vmap raises an error of :data:`ERRORS` for each mistake, and works as
    before after each.

    Raises Unsuitable if the sample has no tensor to batch.
    """
    if not sample.inputs:
        raise Unsuitable(f"{sample.description} has no tensor input to batch")
    right_dims = (0,) * len(sample.inputs)
    batch = tuple(torch.stack([x, x, x]) for x in sample.inputs)
    # the right call, to which the target must still agree after each mistake
    expected = _call(Loop(), sample, right_dims, 0, batch)
    answers = []
    for label, in_dims, out_dims, inputs in _mistakes(sample, batch, expected):
        tally.entries += 1
        tally.nonzero += 1
        try:
            outputs = _call(target, sample, in_dims, out_dims, inputs)
        except ERRORS:
            # An error inside vmap must not leave its level behind.
            compare(_call(target, sample, right_dims, 0, batch), expected, Rule(), tally)
        else:
            answers.append(
                f"{label}: in_dims {in_dims}, "
                f"out_dims {out_dims} give {[list(x.shape) for x in outputs]}"
            )
    if answers:
        raise Mismatch("vmap answers a mistake; " + "; ".join(answers))


def _call(
    target: Target, sample: Sample, in_dims: Any, out_dims: Any, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the results of vmap of the sample, with its warnings ignored."""
    with seeded(sample.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(cast(Placing, target).vmap(sample, in_dims, out_dims)(*inputs))


Mistake = tuple[str, Dims, int | Dims, tuple[Tensor, ...]]


def _mistakes(
    sample: Sample, batch: tuple[Tensor, ...], expected: Sequence[Tensor]
) -> Iterator[Mistake]:
    """Yield calls of vmap that must raise: a label, in_dims, out_dims and the inputs."""
    count, right_dims = len(batch), (0,) * len(batch)
    for place in range(count):
        yield from _mistakes_of_input(batch, place, right_dims)
    yield "no input is batched", (None,) * len(batch), 0, batch
    yield "a dimension too many", (*right_dims, 0), 0, batch
    if count > 1:
        yield "a dimension too few", right_dims[1:], 0, batch
    yield "an output beyond its last dimension", right_dims, tuple(y.ndim for y in expected), batch
    yield (
        "an output before its first dimension",
        right_dims,
        tuple(-y.ndim - 1 for y in expected),
        batch,
    )
    yield "a dimension of an output too many", right_dims, (0,) * (len(expected) + 1), batch
    yield "a batched output without a dimension", right_dims, (None,) * len(expected), batch


def _mistakes_of_input(
    batch: tuple[Tensor, ...], place: int, right_dims: tuple[int, ...]
) -> Iterator[Mistake]:
    """Yield the mistakes that a caller can make with one of the inputs.

    `right_dims`: the dimensions of all of them.
    """
    x = batch[place]
    yield "beyond the last dimension", _with(right_dims, place, x.ndim), 0, batch
    yield "before the first dimension", _with(right_dims, place, -x.ndim - 1), 0, batch
    number = x.new_zeros(())
    # an empty input has no element to take
    if x.numel():
        number = x.flatten()[0]
    yield "a number has no dimension to batch", right_dims, 0, _with(batch, place, number)
    if len(batch) > 1:
        # A size of 1 may be broadcast by mistake, where one of 2 is refused.
        for size in (1, 2):
            yield "batches of other sizes", right_dims, 0, _with(batch, place, x[:size])


def _with(items: tuple[object, ...], place: int, item: object) -> tuple[Any, ...]:
    """Return `items` with `item` in one place."""
    return (*items[:place], item, *items[place + 1 :])
