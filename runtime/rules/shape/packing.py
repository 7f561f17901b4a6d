"""Pack padded sequences: take the steps that exist, as rows of one tensor.

Sequences of 2 and 1 steps have the rows (time 0 of both, time 1 of the first), and the sizes ``[2,
1]``, one per time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from ...errors import BatchingError
from ...seam.levels import levels_of
from ..record import register

_pack = torch.ops.aten._pack_padded_sequence.default


def _rows(sizes: Sequence[int], lengths: torch.Tensor, batch_first: bool) -> Any:
    """Return the steps that exist, as row numbers of the first two dimensions flattened, in the
    order of packing; and how many each time has."""
    # ATen packs the numbers of the steps, so its order and its checks are not repeated here
    steps = torch.arange(sizes[0] * sizes[1]).view(*sizes[:2], 1)
    rows, of_times = _pack(steps, lengths, batch_first)
    return rows.view(-1), of_times


def _pack_sequence(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> object:
    """Return a packed sequence and its sizes, by plain ops. The lengths must not have a batch."""
    if any(level.hidden for level in levels_of(lengths)):
        raise BatchingError(
            "vmap: pack_padded_sequence with lengths for each element. Its result has "
            "as many rows as the lengths say, so they must be one list for all elements. "
            "Leave the sequences padded, and mask what comes after the end of each."
        )
    rows, sizes = _rows(input.shape, lengths, batch_first)
    return input.flatten(0, 1).index_select(0, rows.to(input.device)), sizes


def padded(
    data: torch.Tensor, sizes: Sequence[int], length: int, value: float = 0.0
) -> torch.Tensor:
    """Return a packed sequence, (total, …), as (N, ``length``, …), with ``value`` after the end of
    a sequence. ``sizes``: how many sequences have each time."""
    n = sizes[0]
    # all sequences have all times: nothing to fill, and no copy
    if min(sizes) == n and len(sizes) == length:
        return data.reshape(length, n, *data.shape[1:]).transpose(0, 1)
    starts = [*itertools.accumulate(sizes, initial=0)]  # the row with which each time begins
    at, missing = [], []
    for sequence, time in itertools.product(range(n), range(length)):
        ended = time >= len(sizes) or sequence >= sizes[time]
        missing.append(ended)
        # a step that is missing is filled from the first one of its own sequence, so that
        # sequences stay apart
        if ended:
            at.append(sequence)
        else:
            at.append(starts[time] + sequence)
    rows = data.index_select(0, torch.tensor(at, device=data.device))
    mask = torch.tensor(missing, device=data.device).view(-1, *[1] * (data.dim() - 1))
    return rows.masked_fill(mask, value).reshape(n, length, *data.shape[1:])


def packed_again(out: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the inverse of :func:`padded`."""
    if min(sizes) == sizes[0]:
        return out.transpose(0, 1).flatten(0, 1)
    at: list[int] = []
    for time, n_sequences in enumerate(sizes):
        at += [sequence * len(sizes) + time for sequence in range(n_sequences)]
    return out.flatten(0, 1).index_select(0, torch.tensor(at, device=out.device))


def _unpack(
    g: torch.Tensor, input_shape: Sequence[int], lengths: torch.Tensor, batch_first: bool
) -> torch.Tensor:
    """Return the gradient of the padded input. Each packed row goes back to its step and sequence,
    which come from packing the step numbers."""
    rows, _ = _rows(input_shape, lengths, batch_first)
    padded = g.new_zeros(input_shape).flatten(0, 1)
    return padded.index_add(0, rows.to(g.device), g).view(input_shape)


register(
    "_pack_padded_sequence",
    vjp={"input": _unpack},
    decomposition=_pack_sequence,
    nondiff=(1,),
    family="packing",
)
