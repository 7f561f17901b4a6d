"""Choose which samples a cell gets: how many, how large, and which of its row.

    budget(parse("vmap . vjp"), ("loop",))     # Budget(count=3, largest=1000, reserve=15)

A pipeline that costs more gets fewer and smaller samples. Among those that fit, the choice is for
diversity, and the same on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gen.language.pipeline import TRAINING, Pipeline
from gen.samples.samples import LARGEST, Sample

__all__ = ["BESIDE_VALUES", "JITTED", "Budget", "budget", "choose", "made_by", "pick"]

_RESERVE = 12  # samples for a cell whose first ones compare nothing, or only zeros
_ILL_FORMED = 2, 1_000  # samples and elements: each sample is run in a dozen variants
BESIDE_VALUES = 4, 1_000  # for what another check compares with more samples
JITTED = 2, 1_000  # each sample is captured anew
_JACOBIANS = {"jacrev", "jacfwd", "hessian", "functional.jacobian", "functional.hessian"}


@dataclass(frozen=True)
class Budget:
    """How many samples a cell gets, and how large they may be."""

    count: int  # samples to run
    largest: int  # elements of all inputs of one sample
    reserve: int  # samples to look at for one that compares something, if those do not

    def at_most(self, count: int, largest: int) -> Budget:
        """Return the smaller one of this budget and another, with the same reserve."""
        return replace(self, count=min(self.count, count), largest=min(self.largest, largest))


def budget(pipeline: Pipeline, words: Sequence[str], *, refused: bool = False) -> Budget:
    """Return the budget of a pipeline that is compared with the references `words`.

    `refused`: its calls are to be refused.
    """
    count, largest = _ILL_FORMED if refused else _limits(pipeline.stages, words)
    return Budget(count, largest, count + _RESERVE)


def _limits(stages: Sequence[str], words: Sequence[str]) -> tuple[int, int]:
    """Return ``(samples, elements)`` of a pipeline and its references."""
    if "numeric" in words:
        return 3, 48
    if "definition" in words:
        return 4, 30
    if TRAINING in stages:
        return 1, 1_000
    if not stages:
        return 12, 20_000
    if not _JACOBIANS.isdisjoint(stages):
        return 3, 32
    if any(stage.startswith("aot.") for stage in stages):
        return 2, 1_000
    if len(stages) == 1:
        return 5, 4_000
    return 3, 1_000


def pick(
    pool: Sequence[Sample], more: Sequence[Sample], limit: Budget, *, every: bool
) -> tuple[list[Sample], list[Sample]]:
    """Return the samples to run, and a few more in case these compare nothing.

    `more` are run in addition to those of the pool. `every`: the pool has no limit, and no reserve.
    """
    if every:
        return [*choose(pool, None, largest=limit.largest), *more], []
    chosen = [*choose(pool, limit.count, largest=limit.largest), *more]
    ids_of_chosen = set(map(id, chosen))
    others = choose(pool, limit.reserve, largest=limit.largest)
    return chosen, [sample for sample in others if id(sample) not in ids_of_chosen]


def choose(pool: Sequence[Sample], count: int | None, *, largest: int = LARGEST) -> list[Sample]:
    """Return at most `count` samples (None: all), chosen for diversity. The choice is the same on
    every run.

    The signature of a sample is its layout (ranks, and which sizes are 0, 1 or more) and its other
    arguments. The choice takes turns through the groups of equal ranks. It repeats no signature
    while others remain. The first sample is the smallest informative one.
    """
    fit = [sample for sample in pool if sample.numel <= largest]
    if not any(map(_is_informative, fit)):
        # One larger sample is better than a cell that proves nothing.
        informative = filter(_is_informative, pool)
        fit = sorted(informative, key=lambda sample: sample.numel)[:1] + fit
    if count is None or len(fit) <= count:
        return fit
    groups: dict[tuple[int, ...], list[Sample]] = {}
    for sample in fit:
        ranks = tuple(rank for rank, *_ in sample.signature[0])
        groups.setdefault(ranks, []).append(sample)
    turns = list(map(_fresh_first, groups.values()))
    turns.sort(key=lambda group: (not _is_informative(group[0]), group[0].index))
    chosen: list[Sample] = []
    for turn in range(len(fit)):
        for group in turns:
            if turn < len(group):
                chosen.append(group[turn])
        if len(chosen) >= count:
            break
    return sorted(chosen[:count], key=lambda sample: not _is_informative(sample))


def _is_informative(sample: Sample) -> bool:
    """Return whether results can differ: no input is empty, and one has more than one element."""
    sizes = [tensor.numel() for tensor in sample.inputs]
    return all(sizes) and max(sizes, default=0) > 1


def _fresh_first(group: list[Sample]) -> list[Sample]:
    """Return new signatures before repeated ones.

    Among the new ones, informative samples come first, spread over the group.
    """
    seen: set[object] = set()
    fresh: list[Sample] = []
    again: list[Sample] = []
    for sample in sorted(group, key=lambda sample: not _is_informative(sample)):
        if sample.signature in seen:
            again.append(sample)
        else:
            fresh.append(sample)
        seen.add(sample.signature)
    return _spread(fresh) + again


def _spread(items: list[Sample]) -> list[Sample]:
    """Return the first, last and middle one, then the rest in order, because neighbours in a source
    are alike.
    """
    if len(items) < 4:
        return items
    ends = [items[0], items[-1], items[len(items) // 2]]
    return ends + [item for item in items if all(item is not end for end in ends)]


def made_by(pool: list[Sample], word: str | None) -> list[Sample]:
    """Return the samples whose argument ``made`` is `word`, all if it is None.

    A row has samples for each way in which its values can be made, and a cell is about one of them.
    So a failure that is known of one way hides none of another. A row may lack a way: then there
    are no samples, nothing is compared, and the cell is lacking.
    """
    if word is None:
        return pool
    found: list[Sample] = []
    for sample in pool:
        _, kwargs = sample.rebuild(sample.inputs)
        made = kwargs.get("made")
        if made == word:
            found.append(sample)
    return found
