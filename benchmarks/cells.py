"""A cell compares two callables. Its outcome is the ratio of their times, or the
error of a side."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from benchmarks.timing import Ratio, compare


@dataclass(frozen=True)
class Cell:
    """`build()` returns our callable and the peer's. Their results are compared before
    anything is timed.

    `goal`: the ratio that ours should not exceed. `around()`: the context in which ours is called.
    `milliseconds`: whether the table shows our time beside the ratio.
    """

    suite: str
    size: str
    program: str
    what: str
    peer: str
    build: Callable[[], tuple[Callable[[], object], Callable[[], object]]]
    goal: float | None = None
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    milliseconds: bool = False

    @property
    def name(self) -> str:
        return f"{self.suite} / {self.size} / {self.program} / {self.what}"


@dataclass(frozen=True)
class Outcome:
    """A ratio, or the reason why there is none."""

    cell: Cell
    ratio: Ratio | None
    error: str = ""


def difference(ours: object, peer: object) -> str:
    """Where two results differ, or "". The tolerance is 1e-3 of a tensor's largest element: float32
    sums in another order."""
    mine, theirs = (
        [t for t in pytree.tree_leaves(plain(side)) if isinstance(t, torch.Tensor)]
        for side in (ours, peer)
    )
    if len(mine) != len(theirs):
        return f"{len(mine)} results, the peer has {len(theirs)}"
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.shape != b.shape:
            return f"result {i} has shape {list(a.shape)}, the peer's {list(b.shape)}"
        if not b.numel():
            continue
        off = (a - b).abs().max().item()
        if not off <= 1e-3 * b.abs().max().item() + 1e-6:
            return (
                f"result {i} is off by {off:.3g} where the peer's largest element "
                f"is {b.abs().max().item():.3g}"
            )
    return ""


def run(cell: Cell, *, seconds: float) -> Outcome:
    """Run both sides once, compare their results, then time them."""
    results: list[object] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.func warns of slow loops, which the table shows
        calls = cell.build()
        for side, call, around in zip(
            ("runtime", cell.peer), calls, (cell.around, nullcontext), strict=True
        ):
            try:
                with around():
                    results.append(call())
            except Exception as e:  # any error of a side belongs in the table
                return Outcome(
                    cell,
                    None,
                    (
                        f"{side}: {type(e).__name__}: "
                        f"{str(e).strip().splitlines()[0] if str(e) else ''}"
                    ),
                )
        different = difference(*results)
        if different:
            return Outcome(cell, None, f"the sides disagree: {different}")
        results.clear()
        return Outcome(cell, compare(*calls, seconds=seconds, around=cell.around))


def plain(tree: object) -> object:
    """Results as plain tensors without history."""
    from runtime import unwrap

    return pytree.tree_map_only(torch.Tensor, lambda t: unwrap(t).detach(), tree)
