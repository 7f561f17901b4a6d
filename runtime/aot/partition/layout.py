"""Place the boxes of a drawing of a graph: in layers by depth, with few crossings (Sugiyama, Tagawa
and Toda 1981).

    layout(["a", "b"], [("a", "b")], {"a": 30.0, "b": 30.0}).layer      # {"a": 0, "b": 1}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

GAP = 16.0  # between two boxes of a layer
_SWEEPS = 12  # over all layers, down and up in turn
_BEND = 8.0  # the width of the place where a long edge passes a layer

Edge = tuple[str, str]
Key = str | tuple[str, str, int]  # a box, or the place where an edge passes a layer
Neighbours = Mapping[Key, list[Key]]


@dataclass
class Layout:
    """Hold the places of boxes."""

    # The layer of each box, from 0.
    layer: dict[str, int]
    # The width of the whole picture.
    width: float
    # The number of layers.
    depth: int
    # The middle of each box.
    x: dict[str, float] = field(default_factory=dict)
    # For each edge the (layer, x) at which it crosses the layers between its two boxes.
    bends: dict[Edge, list[tuple[int, float]]] = field(default_factory=dict)


def layout(
    nodes: Sequence[str],
    edges: Sequence[Edge],
    widths: Mapping[str, float],
    late: Collection[str] = (),
) -> Layout:
    """Place ``nodes``, which come in topological order.

    Those in ``late`` stand right before their first user.
    """
    # a layer for each node
    edges = list(dict.fromkeys(edges))
    layer = _layers(nodes, edges, late)
    depth = 1 + max(layer.values(), default=-1)
    rows: list[list[Key]] = [[] for _ in range(depth)]
    for node in nodes:
        rows[layer[node]].append(node)
    # an edge over several layers has a bend in each of them, so that it goes around their boxes
    above, below = _add_bends(rows, edges, layer)
    x = _places(rows, above, below, widths)
    # the drawing begins at 0
    left, right = _extent(x, widths)
    placed = Layout(layer, right - left, depth)
    for row in rows:
        placed.x.update((key, x[key] - left) for key in row if isinstance(key, str))
    for source, user in edges:
        passed = range(layer[source] + 1, layer[user])
        placed.bends[source, user] = [(number, x[source, user, number] - left) for number in passed]
    return placed


def _add_bends(
    rows: list[list[Key]], edges: Sequence[Edge], layer: Mapping[str, int]
) -> tuple[Neighbours, Neighbours]:
    """Add to ``rows`` the places where edges pass layers.

    Return the neighbours of each box and place in the layer above, and those in the layer below.
    """
    above: dict[Key, list[Key]] = {}
    below: dict[Key, list[Key]] = {}
    for source, user in edges:
        # none for an edge to the next layer
        passed = range(layer[source] + 1, layer[user])
        bends: list[Key] = [(source, user, row) for row in passed]
        for row, bend in zip(passed, bends, strict=True):
            rows[row].append(bend)
        for first, second in pairwise([source, *bends, user]):
            below.setdefault(first, []).append(second)
            above.setdefault(second, []).append(first)
    return above, below


def _extent(x: Mapping[Key, float], widths: Mapping[str, float]) -> tuple[float, float]:
    """Return the left and the right end of the boxes and bends with centres ``x``."""
    if not x:
        return 0.0, 0.0
    left = min(at - _width(key, widths) / 2 for key, at in x.items())
    right = max(at + _width(key, widths) / 2 for key, at in x.items())
    return left, right


def _layers(nodes: Sequence[str], edges: Sequence[Edge], late: Collection[str]) -> dict[str, int]:
    """Return the layer of each node: the length of the longest way to it.

    A node in ``late`` moves down, to right above its highest user.
    """
    users: dict[str, list[str]] = {node: [] for node in nodes}
    inputs: dict[str, list[str]] = {node: [] for node in nodes}
    for source, user in edges:
        users[source].append(user)
        inputs[user].append(source)
    layer: dict[str, int] = {}
    # the order is topological: inputs have their layers before a node, and users before its inputs
    for node in nodes:
        layer[node] = 1 + max((layer[source] for source in inputs[node]), default=-1)
    for node in reversed(nodes):
        if node in late and users[node]:
            layer[node] = min(layer[user] for user in users[node]) - 1
    return layer


def _width(key: Key, widths: Mapping[str, float]) -> float:
    """Return the width of a box, or of the place where an edge passes."""
    if isinstance(key, str):
        return widths[key]
    return _BEND


def _places(
    rows: list[list[Key]], above: Neighbours, below: Neighbours, widths: Mapping[str, float]
) -> dict[Key, float]:
    """Return the middle of each box and bend.

    Down and up in turns, each row is sorted by the places of its neighbours, and moved near to
    them.
    """
    x = _side_by_side(rows, widths)
    for sweep in range(_SWEEPS):
        if sweep % 2 == 0:
            neighbours, order = above, rows
        else:
            neighbours, order = below, rows[::-1]
        for row in order:
            # a box without neighbours stays where it is
            wish = {key: _median_place(neighbours.get(key, (key,)), x) for key in row}
            row.sort(key=wish.__getitem__)
            x.update(_place_without_overlap(row, wish, widths))
    # at last between the neighbours on both sides, without a change of the order
    wish = {}
    for key, at in x.items():
        around = (*above.get(key, ()), *below.get(key, ()), key)
        wish[key] = (at + _median_place(around, x)) / 2
    for row in rows:
        x.update(_place_without_overlap(row, wish, widths))
    return x


def _side_by_side(rows: Iterable[Sequence[Key]], widths: Mapping[str, float]) -> dict[Key, float]:
    """Return the middle of each box and bend if every row starts at 0 and has no gaps but GAP."""
    x: dict[Key, float] = {}
    for row in rows:
        at = 0.0
        for key in row:
            at += _width(key, widths) / 2
            x[key] = at
            at += _width(key, widths) / 2 + GAP
    return x


def _median_place(keys: Iterable[Key], x: Mapping[Key, float]) -> float:
    return median(x[key] for key in keys)


def _place_without_overlap(
    row: Sequence[Key], wish: Mapping[Key, float], widths: Mapping[str, float]
) -> dict[Key, float]:
    """Return places in this order, near to those wished and without overlaps.

    Boxes that would overlap move as one block around their mean.
    """
    # keys, their distances from the first, place of the first
    blocks: list[tuple[list[Key], list[float], float]] = []
    for key in row:
        keys, offsets, place = [key], [0.0], wish[key]
        # a merged block moves to the left, and may then overlap with the one before
        while blocks:
            before, distances, start = blocks[-1]
            needed = (
                distances[-1] + (_width(before[-1], widths) + _width(keys[0], widths)) / 2 + GAP
            )
            if start + needed <= place:
                break
            blocks.pop()
            keys = [*before, *keys]
            offsets = [*distances, *(needed + offset for offset in offsets)]
            # where the first box would be, if each of the block had its wish
            starts = [wish[key] - offset for key, offset in zip(keys, offsets, strict=True)]
            place = sum(starts) / len(keys)
        blocks.append((keys, offsets, place))
    places: dict[Key, float] = {}
    for keys, offsets, place in blocks:
        for key, offset in zip(keys, offsets, strict=True):
            places[key] = place + offset
    return places
