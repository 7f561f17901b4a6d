"""Make batches for vmap: choose inputs and dimensions, and vary the entries.

Patterns of in_dims are tried in turn. With one vmap, the first sample takes every pattern of
:func:`patterns` and each later sample takes two. With several vmaps, the first sample takes three
combinations and each later sample takes one.

Entries of a batch differ. Floating entries differ by exact factors, which preserve signs,
definiteness, triangles, order and ``|x| < 1``. Integer and boolean entries are reversed if the op
accepts that, and repeat otherwise. A sample does not allow a pattern if the reference fails on it
or returns entries of different shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import product

import torch

from gen.checks.pipelines import Program, batched
from gen.outcomes import Unsuitable
from gen.samples.descriptions import lay_out_like
from gen.samples.domains import is_inexact

Tensor = torch.Tensor
InDims = tuple[int | None, ...]

# (factors of floating entries, whether integer entries are reversed): tried in order until the
# reference accepts the batch. Each floating dtype has sixteenths exactly. Factors below 1 stay in
# domains such as |x| < 1, those above 1 in domains such as x >= 1.
_VARIATIONS = (
    ((1.0, 0.9375, 0.875), True),
    ((1.0, 0.9375, 0.875), False),
    ((1.0, 1.0625, 1.125), False),
)


def patterns(inputs: Sequence[Tensor], turn: int = 0) -> list[InDims]:
    """Return every in_dims pattern to try for `inputs`, those with all inputs batched first.

    - Up to two inputs: each is unbatched, batched at 0, or batched at the end. Two matrices give
      ``(0, 0), (0, -1), (0, None), (-1, 0), …``.
    - Three inputs: every choice of batched inputs.
    - More: all of them, each alone, all but each.

    With three or more inputs, dims alternate between front and end so that every input gets
    both. Odd turns use 1 instead of the end where the rank allows, so that middle
    dimensions occur as well.
    """
    count = len(inputs)
    if count <= 2:
        unbatched = (None,) * count
        choices = [dims for dims in product((0, -1, None), repeat=count) if dims != unbatched]
    else:
        choices = _alternate(_masks(count))
    # choices of scalars coincide: front and end are one place
    return list(dict.fromkeys(_place_ends(dims, inputs, turn) for dims in choices))


def _masks(count: int) -> list[tuple[bool, ...]]:
    """Return which of three or more inputs are batched, for each choice to try."""
    if count == 3:
        return list(filter(any, product((True, False), repeat=3)))
    places = range(count)
    each_alone = [tuple(place == one for place in places) for one in places]
    all_but_each = [tuple(place != one for place in places) for one in places]
    return [(True,) * count, *each_alone, *all_but_each]


def _alternate(masks: Sequence[tuple[bool, ...]]) -> list[InDims]:
    """Return the front and the end in turn for each input. Neighbours start differently."""
    turns = list(range(len(masks[0])))
    alternating: list[InDims] = []
    for mask in masks:
        dims: list[int | None] = [None] * len(mask)
        for place, is_batched in enumerate(mask):
            # An input that is not batched now takes the same end when it is batched next.
            if is_batched:
                dims[place] = (0, -1)[turns[place] % 2]
                turns[place] += 1
        alternating.append(tuple(dims))
    return alternating


def _place_ends(dims: InDims, inputs: Sequence[Tensor], turn: int) -> InDims:
    """Return `dims` with a dimension of each input in the place of -1, which stands for its end."""
    ends = [_end(x.ndim, turn) for x in inputs]
    return tuple(end if dim == -1 else dim for dim, end in zip(dims, ends, strict=True))


def _end(rank: int, turn: int) -> int:
    """Return where the batch lies that is not in front. A scalar has one place for it."""
    if not rank:
        return 0
    return 1 if turn % 2 and rank >= 2 else -1


def vary(x: Tensor, entry: int, variation: int = 0) -> Tensor:
    """Return entry number `entry` of a batch made of `x`, with the strides of `x`.

    `entry` is from 0 to 2, and entry 0 is `x` itself. `variation` is one of :data:`VARIATIONS`.
    """
    factors, reverse = _VARIATIONS[variation]
    if not entry:
        return x
    if is_inexact(x.dtype):
        return lay_out_like(x, x * factors[entry])
    if reverse and entry % 2:
        return lay_out_like(x, x.flip(tuple(range(x.ndim))))
    return x


VARIATIONS = range(len(_VARIATIONS))
# by which ops refuse entries; any other error is a mistake of ours
REFUSALS = (RuntimeError, ValueError, IndexError)


def grow(
    program: Program, in_dims: InDims, size: int, evaluate: Callable[[Program], Sequence[Tensor]]
) -> Program:
    """Return vmap of `program` on a batch of `size` entries.

    `evaluate` runs a program on the reference. The result is the first variation of the batch that
    the reference accepts without a new NaN, or else the first that it accepts. Raises Unsuitable if
    it accepts none.
    """
    # an op that fails on its own sample raises here: the pattern is not the cause
    # A NaN of the sample itself stays in its batch, and is no sign of a left domain.
    had_nan = any(map(_has_nan, evaluate(program)))
    fallback: Program | None = None
    why = ""
    # A reversed index or length may leave the domain of an op, so there are tamer variations.
    for variation in VARIATIONS:
        inputs = list(program.inputs)
        for place, dim in enumerate(in_dims):
            if dim is not None:
                inputs[place] = _batch(inputs[place], dim, size, variation)
        candidate = batched(program, tuple(inputs), in_dims)
        try:
            outputs = evaluate(candidate)
        except REFUSALS as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if had_nan or not any(map(_has_nan, outputs)):
            return candidate
        fallback = fallback or candidate
    if fallback is None:
        raise Unsuitable(
            f"in_dims {in_dims}: the loop itself fails on a batch ({why.splitlines()[0][:120]})"
        )
    return fallback


def _batch(x: Tensor, dim: int, size: int, variation: int) -> Tensor:
    return torch.stack([vary(x, entry, variation) for entry in range(size)], dim=dim)


def _has_nan(x: Tensor) -> bool:
    return is_inexact(x.dtype) and bool(x.isnan().any())


Choice = Callable[[Sequence[Tensor]], list[InDims]]


def choices(
    stages: Sequence[str], first: bool, turn: int, written: Collection[int], fewest: bool = False
) -> list[Choice]:
    """Return the patterns of a sample: each item maps the inputs of a vmap stage to the patterns to
    try there.

    `stages` are those of the pipeline. The `first` sample of a case gets more patterns. Those of
    the others begin at `turn`, so that cases have different ones.

    `written`: places of the inputs that the op writes to. They must be batched if another input is.
    `fewest`: one pattern, for programs that cost more than a call.
    """

    def allowed(inputs: Sequence[Tensor], turn: int) -> list[InDims]:
        # An op cannot write the entries of a batch to a tensor that has none.
        every = patterns(inputs, turn)
        return [dims for dims in every if all(dims[place] is not None for place in written)]

    if fewest:
        return [partial(_take_one, allowed, turn)]
    if stages.count("vmap") == 1:
        if first:
            return [lambda inputs: allowed(inputs, turn)]
        return [lambda inputs: _take(allowed(inputs, turn), turn, 2)]
    # Patterns of nested batches multiply, so each combination has one of each stage.
    combinations = 3 if first else 1
    return [partial(_take_one, allowed, turn + combination) for combination in range(combinations)]


def _take_one(
    allowed: Callable[[Sequence[Tensor], int], list[InDims]], turn: int, inputs: Sequence[Tensor]
) -> list[InDims]:
    """Return the one pattern of a turn, as a list."""
    return _take(allowed(inputs, turn), turn, 1)


def _take(choices_in_order: list[InDims], turn: int, count: int) -> list[InDims]:
    """Return `count` of the patterns, in turn. Turn 0 includes the first one, in which all inputs
    are batched.
    """
    available = len(choices_in_order)
    start = turn * count
    places = range(start, start + min(count, available))
    return [choices_in_order[place % available] for place in places]
