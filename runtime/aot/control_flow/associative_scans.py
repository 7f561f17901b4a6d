"""Compute all partial results of an associative function, by calls on many elements at once.

    associative_scan(torch.add, torch.tensor([1, 2, 3, 4]), 0)    # tensor([ 1,  3,  6, 10])

Pairs of neighbours are combined first, then pairs of these. Where the length is a symbol, it is a
``scan`` of ``scans.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...func.vmap import vmap
from ...torch_private.pytrees import pytree
from ...trace.provenance import here
from ...trace.symbols import unchecked
from .scans import length_of, scan_along


def associative_scan(
    combine_fn: Callable[[Any, Any], object],
    xs: object,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Return the partial results ``x0``, ``combine_fn(x0, x1)``, ``combine_fn(combine_fn(x0, x1),
    x2)``, … along ``dim``, as torch's ``associative_scan`` does.

    >>> associative_scan(torch.add, torch.tensor([1, 2, 3, 4]), 0)
    tensor([ 1,  3,  6, 10])

    ``combine_fn`` takes two pytrees like ``xs`` and returns one; it must be associative. It is
    called on many elements at once, some ``2 log2(length)`` times. With
    ``combine_mode="pointwise"`` it acts on each element of a tensor alone. With ``"generic"`` it
    gets slices without the dimension ``dim``. ``ValueError`` for another mode, ``RuntimeError`` for
    an empty dimension.
    """
    if combine_mode not in ("pointwise", "generic"):
        raise ValueError(
            f"Combine_mode must either 'pointwise' or 'generic', but got {combine_mode}"
        )
    flat, spec = pytree.tree_flatten(xs)
    moved = [value.movedim(dim, 0) for value in flat]
    length_of(moved)
    # from the last element on is from the first one of a flipped tensor
    if reverse:
        moved = [x.flip(0) for x in moved]

    def combine_pairs(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Combine many pairs of elements at once."""

        def combine(*both: torch.Tensor) -> list[torch.Tensor]:
            """Call ``combine_fn`` with the trees of both flat halves."""
            halves = (both[: len(flat)], both[len(flat) :])
            trees = (pytree.tree_unflatten(half, spec) for half in halves)
            out, out_spec = pytree.tree_flatten(combine_fn(*trees))
            if out_spec != spec:
                raise RuntimeError(
                    f"associative_scan: combine_fn returns the structure {out_spec}, "
                    f"its arguments have {spec}{here()}"
                )
            return out

        # a pointwise function does not see that the pairs lie along a dimension in front
        if combine_mode == "pointwise":
            return combine(*a, *b)
        return list(vmap(combine)(*a, *b))

    # the pairs of the fast way depend on the length
    if unchecked(moved[0].shape[0]):
        found = _scan_one_by_one(combine_pairs, moved)
    else:
        found = _prefixes(combine_pairs, moved)
    return pytree.tree_unflatten(
        [(x.flip(0) if reverse else x).movedim(0, dim) for x in found], spec
    )


def _scan_one_by_one(
    combine_pairs: Callable[..., list[torch.Tensor]], xs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the results of :func:`_prefixes` by a graph that is right for any length."""

    def step(carry: list[torch.Tensor], x: list[torch.Tensor]) -> tuple[object, object]:
        """Combine one more element."""
        both = ([tensor.unsqueeze(0) for tensor in each] for each in (carry, x))
        after = [tensor.squeeze(0) for tensor in combine_pairs(*both)]
        # the graph of a step returns no tensor twice
        return after, [tensor.clone() for tensor in after]

    _, rest = scan_along(step, [x[0] for x in xs], [x[1:] for x in xs], 0, False, None)
    return [torch.cat([x[:1], others]) for x, others in zip(xs, rest, strict=True)]


def _prefixes(
    combine_pairs: Callable[..., list[torch.Tensor]], xs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return all partial results, by some ``2 log2(length)`` calls on many elements.

    The partial results of combined pairs of neighbours are every other result. One step more from
    each of them gives the others.
    """
    length = xs[0].shape[0]
    if length < 2:
        return list(xs)
    # the results 1, 3, 5, …: those of the pairs (0, 1), (2, 3), …
    odd = _prefixes(combine_pairs, combine_pairs([x[:-1:2] for x in xs], [x[1::2] for x in xs]))
    # the results 2, 4, …: element 2 after result 1, and so on; no element is after the last pair
    # of an even length
    rest = [x[2::2] for x in xs]
    even = rest
    if length > 2:
        even = combine_pairs([y[: (length - 1) // 2] for y in odd], rest)
    # result 0 is element 0
    evens = [torch.cat([x[:1], others]) for x, others in zip(xs, even, strict=True)]
    # no `map`: in this module that is the function above
    return [_interleave(*both) for both in zip(evens, odd, strict=True)]


def _interleave(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """Return the elements of both in turns, beginning with ``even``, which may be longer by one."""
    pairs = torch.stack([even[: odd.shape[0]], odd], dim=1).flatten(0, 1)
    return torch.cat([pairs, even[odd.shape[0] :]])
