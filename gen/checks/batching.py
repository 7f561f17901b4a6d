"""Batches for vmap: which inputs carry the batch, where, and what its entries hold.

The policy, all of it: a pipeline with one vmap tries every pattern of :func:`patterns` on its first sample and two on each later
one, in turn; with several vmaps each sample takes three (the first) or one combination, in turn. Entries of a batch differ:
floating ones by exact factors that keep signs, definiteness, triangles, order and |x| < 1; integer and boolean ones by reversal
where the op allows, else they repeat. A pattern on which the reference itself fails, or gives entries of different shapes, is one that the
sample does not allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import product

import torch

from gen.checks.outcomes import Unsuitable
from gen.checks.pipelines import Program, batched

Tensor = torch.Tensor
InDims = tuple[int | None, ...]

# (factors of floating entries, whether integer entries are reversed): tried in order until the reference takes the batch.
_VARIATIONS = (((1.0, 0.9375, 0.875), True), ((1.0, 0.9375, 0.875), False), ((1.0, 1.0625, 1.125), False))


def patterns(inputs: Sequence[Tensor], turn: int = 0) -> list[InDims]:
    """Every in_dims pattern to try for `inputs`, all-batched ones first.

    Up to two inputs: each unbatched, batched at 0, or at the end. Three: every choice of batched inputs, more: all, each alone, all but
    each, with dims alternating between front and end so that every input sees both. Odd turns put 1 in place of the end where
    the rank allows, so middle dimensions are met as well.
    """
    count = len(inputs)
    if count <= 2:
        found = [dims for dims in product((0, -1, None), repeat=count) if any(dim is not None for dim in dims)]
    else:
        if count == 3:
            masks = [mask for mask in product((True, False), repeat=3) if any(mask)]
        else:
            lone = [tuple(place == k for place in range(count)) for k in range(count)]
            masks = [(True,) * count, *lone, *(tuple(not flag for flag in mask) for mask in lone)]
        found = _alternating(masks)
    return list(dict.fromkeys(_placed(dims, inputs, turn) for dims in found))


def _alternating(masks: Sequence[tuple[bool, ...]]) -> list[InDims]:
    """Front and end in turn for each input, neighbours out of step."""
    turns = list(range(len(masks[0])))
    found: list[InDims] = []
    for mask in masks:
        found.append(tuple((0, -1)[turns[place] % 2] if flag else None for place, flag in enumerate(mask)))
        turns = [turn + flag for turn, flag in zip(turns, mask, strict=True)]
    return found


def _placed(dims: InDims, inputs: Sequence[Tensor], turn: int) -> InDims:
    end = [0 if not x.ndim else 1 if turn % 2 and x.ndim >= 2 else -1 for x in inputs]
    return tuple(last if dim == -1 else dim for dim, last in zip(dims, end, strict=True))


def vary(x: Tensor, entry: int, variation: int = 0) -> Tensor:
    """Entry number `entry` of a batch made of `x`; entry 0 is `x` itself."""
    factors, reverse = _VARIATIONS[variation]
    if not entry:
        return x
    if x.is_floating_point() or x.is_complex():
        return x * factors[entry]
    return x.flip(tuple(range(x.ndim))) if reverse and entry % 2 else x


VARIATIONS = range(len(_VARIATIONS))
REFUSALS = (RuntimeError, ValueError, IndexError)  # how ops refuse entries that they do not accept; any other error is a mistake of ours


def grow(program: Program, in_dims: InDims, size: int, evaluate: Callable[[Program], Sequence[Tensor]]) -> Program:
    """vmap around `program` on a batch of `size` entries; `evaluate` runs a program on the reference.

    Raises Unsuitable where the reference takes no variation of the batch. Of several it takes the first that brings no new NaN.
    """
    base = evaluate(program)  # an op that fails on its own sample says so itself: that is not a matter of the pattern
    had_nan = any(_has_nan(output) for output in base)
    fallback: Program | None = None
    why = ""
    for variation in VARIATIONS:
        inputs = tuple(
            x if dim is None else torch.stack([vary(x, entry, variation) for entry in range(size)], dim=dim)
            for x, dim in zip(program.inputs, in_dims, strict=True)
        )
        candidate = batched(program, inputs, in_dims)
        try:
            outputs = evaluate(candidate)
        except REFUSALS as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if had_nan or not any(_has_nan(output) for output in outputs):
            return candidate
        fallback = fallback or candidate
    if fallback is None:
        raise Unsuitable(f"in_dims {in_dims}: the loop itself fails on a batch ({why.splitlines()[0][:120]})")
    return fallback


def _has_nan(x: Tensor) -> bool:
    return (x.is_floating_point() or x.is_complex()) and bool(x.isnan().any())


Choice = Callable[[Sequence[Tensor]], list[InDims]]


def choices(stages: Sequence[str], first: bool, turn: int, written: Collection[int]) -> list[Choice]:
    """How a sample goes through the patterns: each item maps the inputs of a vmap stage to the patterns to try there.

    `written`: places of inputs that the op writes to, which must be batched wherever another input is.
    """

    def allowed(inputs: Sequence[Tensor], k: int) -> list[InDims]:
        return [dims for dims in patterns(inputs, k) if all(dims[place] is not None for place in written)]

    if stages.count("vmap") == 1:
        return [lambda inputs: allowed(inputs, turn) if first else _some(allowed(inputs, turn), turn, 2)]
    return [partial(_one, allowed, turn + combination) for combination in range(3 if first else 1)]


def _one(allowed: Callable[[Sequence[Tensor], int], list[InDims]], k: int, inputs: Sequence[Tensor]) -> list[InDims]:
    return _some(allowed(inputs, k), k, 1)


def _some(found: list[InDims], turn: int, count: int) -> list[InDims]:
    """`count` of `found` in turn; the first, with everything batched, in turn 0."""
    return [found[(turn * count + k) % len(found)] for k in range(min(count, len(found)))]
