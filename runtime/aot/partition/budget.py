"""Choose values to save such that the peak memory is within a budget and little is computed again.

Several choices are measured by the lives of their values. They are the cheapest cuts at every price
of recomputation, and cuts of the forward into segments that save the values at the borders. The
longest chain of choices remains. In it each choice computes more again, has a smaller peak, and
saves no more bytes than the one before. A budget picks from the chain, so that a smaller one never
takes more memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import fx

from .memory import Memory
from .network import Network
from .recompute import is_item, is_size, is_view, n_bytes

# into how many segments a graph is cut
_SEGMENTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_MOST_CUTS = 12  # between two cuts, each of which costs a maximum flow


@dataclass(frozen=True)
class Choice:
    """Hold values to save, and their cost."""

    saved: tuple[fx.Node, ...]
    # Of the saved values.
    bytes: int
    # The most bytes at any time.
    peak: int
    # The cost of computing the others again, in bytes moved.
    work: int

    def may_precede(self, other: Choice) -> bool:
        """Return whether ``other`` computes more again, has a smaller peak, and saves no more."""
        return other.peak < self.peak and other.bytes <= self.bytes and other.work > self.work


def within(budget: float, network: Network, anything: bool) -> tuple[fx.Node, ...]:
    """Return the values to save.

    ``anything``: any pure call may be computed again, at its price.
    """
    chain = choices(network, anything)
    least, most = chain[-1].peak, chain[0].peak
    return next(choice for choice in chain if choice.peak <= least + budget * (most - least)).saved


def choices(network: Network, anything: bool = True) -> list[Choice]:
    """Return the chain, from the choice that computes no expensive op again to the one with the
    least peak."""
    memory = Memory(network.parts)

    def measure(cut: list[fx.Node]) -> Choice:
        """Return the choice for a cut."""
        saved = network.parts.saved(cut)
        # the work of an item is that of its call, which counts once
        calls = [node for node in network.recomputed(cut) if not is_item(node)]
        again = sum(map(network.work, calls))
        return Choice(tuple(cut), memory.saved(saved), memory.peak(saved), again)

    # several ways lead to the same cut, and measuring one takes long
    first = network.cut()
    choice_of = {frozenset(first): measure(first)}
    for cut in _other_cuts(network, memory, first, anything):
        if frozenset(cut) not in choice_of:
            choice_of[frozenset(cut)] = measure(cut)
    start = choice_of.pop(frozenset(first))
    return _chain(start, list(choice_of.values()))


def _chain(start: Choice, candidates: list[Choice]) -> list[Choice]:
    """Return the longest chain from ``start`` to the choice of least peak."""
    # what is no better than the start is no step
    candidates = [
        candidate
        for candidate in candidates
        if candidate.peak < start.peak and candidate.bytes <= start.bytes
    ]
    if not candidates:
        return [start]
    goal = min(candidates, key=lambda choice: (choice.peak, choice.bytes, choice.work))
    chains = {goal: [goal]}  # by its first choice, the longest chain from there to the goal
    candidates.remove(goal)
    # by rising peaks: whatever may follow a choice has its chain already
    for choice in sorted(candidates, key=lambda choice: choice.peak):
        after = [chain for first, chain in chains.items() if choice.may_precede(first)]
        if after:
            chains[choice] = [choice, *max(after, key=len)]
    return [start, *max(chains.values(), key=len)]


def _other_cuts(
    network: Network, memory: Memory, first: list[fx.Node], anything: bool
) -> Iterator[list[fx.Node]]:
    """Yield cuts at other prices than that of ``first``, then cuts into segments."""
    if anything:
        last = network.cut(price=_nothing)
        yield last
        yield from _between(network, _line(network, first), _line(network, last), [_MOST_CUTS])
    # inside of a segment every call is free, or else only the allowed ones
    price = _nothing if anything else None
    for number in _SEGMENTS:
        borders = _borders(network, memory, number)
        if not borders:
            break
        yield network.cut(price=price, fixed=borders)


def _nothing(node: fx.Node) -> int:
    """Return the price of a call if computing anything again costs nothing."""
    return 0


Line = tuple[int, int]
"""Bytes saved by a cut, and the price of what it computes again."""


def _line(network: Network, cut: list[fx.Node]) -> Line:
    """Return the cost of a cut: its bytes, and the price of computing again."""
    saved = sum(n_bytes(node.meta["val"]) for node in cut if node not in network.static)
    priced = [node for node in network.recomputed(cut) if not network.allowed[node]]
    return saved, sum(map(network.price_of, priced))


def _between(
    network: Network, costly: Line, cheap: Line, left: list[int]
) -> Iterator[list[fx.Node]]:
    """Yield the cheapest cuts at the prices between those of two cuts.

    At the price where both cost the same, the next cut is cheaper, if there is any. ``left``: how
    many cuts may still be made, one number for all calls of this function.
    """
    if not left[0] or costly[0] <= cheap[0] or costly[1] >= cheap[1]:
        return
    left[0] -= 1
    factor = (costly[0] - cheap[0]) / (cheap[1] - costly[1])
    cut = network.cut(price=partial(_scaled_price, network, factor))
    line = _line(network, cut)
    # by more than the error of rounding
    is_cheaper = line[0] + factor * line[1] < (costly[0] + factor * costly[1]) * (1 - 1e-6)
    if is_cheaper and line not in (costly, cheap):
        yield cut
        yield from _between(network, costly, line, left)
        yield from _between(network, line, cheap, left)


def _scaled_price(network: Network, factor: float, node: fx.Node) -> int:
    """Return the price of ``node`` times ``factor``, as an integer of at least 1."""
    return max(1, round(factor * network.price_of(node)))


def _borders(network: Network, memory: Memory, number: int) -> set[fx.Node]:
    """Return the values at the borders of ``number`` segments of the forward.

    Each segment makes about the same number of bytes. A border is the place, of those around it,
    that the fewest bytes cross.
    """
    order = [
        node for node in network.parts.forward if node.op == "call_function" and not is_size(node)
    ]
    if len(order) < 2 * number:
        return set()
    # what each call makes, how long that lives, and how much is alive between two calls
    own = list(map(_new_bytes, order))
    reach = _reach(memory, order)
    crossing = _bytes_across(own, reach)
    sums = list(accumulate(own))
    total = sum(own)
    # a border may lie up to two fifths of a segment away from where equal ones would have it
    borders: set[fx.Node] = set()
    for segment in range(1, number):
        middle, width = total * segment / number, total / number / 2.5
        border = _border(crossing, sums, middle, width)
        if border is not None:
            across = _used_behind(border, own, reach)
            borders.update(order[index] for index in across if not network.inside(order[index]))
    return borders


def _used_behind(border: int, own: Sequence[int], reach: Sequence[int]) -> list[int]:
    """Return the calls up to ``border`` that make bytes which a call behind it uses.

    ``own``: what each call makes; ``reach``: the place of the last use of that.
    """
    # a view makes none, so it is never one of them
    return [index for index in range(border + 1) if own[index] and reach[index] > border]


def _border(
    crossing: Sequence[int], sums: Sequence[int], middle: float, width: float
) -> int | None:
    """Return the call, of those around ``middle``, after which the fewest bytes cross.

    None if there are none. ``sums``: the bytes that all calls up to one make.
    """
    places = [index for index, total in enumerate(sums) if abs(total - middle) <= width]
    if not places:
        return None
    # of several such calls the one nearest to the middle
    return min(places, key=lambda place: (crossing[place], abs(sums[place] - middle)))


def _new_bytes(node: fx.Node) -> int:
    """Count the bytes of memory that a call allocates. A view allocates none."""
    value = node.meta.get("val")
    if is_view(node) or not isinstance(value, torch.Tensor | tuple | list):
        return 0
    return n_bytes(value)


def _bytes_across(own: list[int], reach: list[int]) -> list[int]:
    """Return for each call the bytes that it or one before it makes, and one after it uses.

    ``own``: what each call makes; ``reach``: the place of the last use of that.
    """
    crossing: list[int] = []
    behind: dict[int, int] = {}  # bytes by the place of their last use
    now = 0
    for index, (made, last) in enumerate(zip(own, reach, strict=True)):
        now += made
        behind[last] = behind.get(last, 0) + made
        now -= behind.pop(index, 0)
        crossing.append(now)
    return crossing


def _reach(memory: Memory, order: list[fx.Node]) -> list[int]:
    """Return for each call the place of the last use of its memory, by itself or by a view."""
    place = {node: index for index, node in enumerate(order)}
    # a memory lives as long as any value in it
    last: dict[fx.Node, int] = {}
    for node in order:
        end = max((place[user] for user in node.users if user in place), default=-1)
        for home in memory.homes[node]:
            last[home] = max(last.get(home, -1), end)
    return [max(last[home] for home in memory.homes[node]) for node in order]
