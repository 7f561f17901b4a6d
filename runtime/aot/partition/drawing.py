"""Draw a cut joint graph: the forward down on the left, the saved values in the middle, the
backward up on the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from itertools import pairwise

import torch
from torch import fx

from ...seam.graph_walks import nodes_among
from ...torch_private.dispatcher import OpOverload
from .halves import Parts
from .layout import Edge, Layout, layout
from .memory import in_units
from .reasons import SavedValue
from .recompute import call_of, is_item, is_size, is_view

STEP, HEIGHT, TOP, MARGIN = 58.0, 34.0, 92.0, 24.0
_CHARACTER = 6.4  # the width of one, at the size of labels
_STYLE = """
text { font: 11px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif; fill: #1b1f24; \
text-anchor: middle }
.small { font-size: 9.5px; fill: #57606a } .head { font-size: 13px; font-weight: \
600 } .left { text-anchor: start }
.box { stroke-width: 1.2 } .edge { fill: none; stroke: #9aa4af; stroke-width: 1.1 }
.forward { fill: #e7f0fb; stroke: #4a7ebb } .backward { fill: #fdeee0; stroke: \
#c9782a } .argument { fill: #f3f4f6; stroke: #9aa4af }
.again { fill: #f1e8fb; stroke: #7d4fb0; stroke-dasharray: 5 3 } .result { stroke-width: 2.6 }
.saved { fill: #d9f2dd; stroke: #2b8a3e; stroke-width: 1.6 } .shared { fill: #f0f9f1; stroke: \
#2b8a3e; stroke-dasharray: 2 2 }
.bytes { font-weight: 700; fill: #1c6a2c } .cut { stroke: #2b8a3e; stroke-width: 1.6; \
stroke-dasharray: 7 5 }
.saving { fill: none; stroke: #2b8a3e; stroke-width: 1.3; opacity: .75 }
"""


def drawn(
    parts: Parts,
    saved: Sequence[SavedValue],
    again: Collection[str],
    backward: fx.GraphModule,
    names: Mapping[fx.Node, str],
    title: str,
) -> str:
    """Return the SVG.

    ``again``: the names of calls that run again. ``names``: those of primals. Sizes, which are
    numbers, are left out.
    """
    return _Drawing(parts, saved, again, backward, names).svg(title)


class _Side:
    """Collect the boxes of one graph: their names, labels, classes and edges.

    Items of a call are drawn as the call.
    """

    def __init__(self) -> None:
        self.labels: dict[str, tuple[str, str]] = {}
        self.classes: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.edges: list[Edge] = []
        self.late: set[str] = set()
        self.up = False  # whether it runs upwards
        self.left: float
        self.plan: Layout

    def add(self, node: fx.Node, kind: str, label: str, note: str = "") -> None:
        """Add a box. ``kind``: its classes in the SVG. ``note``: shows when one points at it."""
        self.labels[node.name] = label, _kind(node.meta.get("val"))
        self.classes[node.name] = kind
        self.notes[node.name] = note or node.name

    def put_off(self, which: Callable[[str], bool]) -> None:
        """Let the boxes for which ``which`` is true stand right before their first user.

        All boxes before such a box must be late too.
        """
        inputs: dict[str, list[str]] = {}
        for source, user in self.edges:
            inputs.setdefault(user, []).append(source)
        # labels are in program order, so the boxes before are decided already
        for name in self.labels:
            if which(name) and self.late.issuperset(inputs.get(name, ())):
                self.late.add(name)

    def width(self, name: str) -> float:
        """Return the width of a box, by its labels."""
        return max(34.0, 14 + _CHARACTER * max(map(len, self.labels[name])))

    def arrange(self) -> None:
        """Place the boxes."""
        widths = {name: self.width(name) for name in self.labels}
        self.plan = layout(list(self.labels), self.edges, widths, self.late)

    def at(self, name: str, depth: int) -> tuple[float, float]:
        """Return the middle of a box."""
        return self.left + self.plan.x[name], self.level(self.plan.layer[name], depth)

    def level(self, layer: int, depth: int) -> float:
        """Return the height of a layer."""
        # the backward begins at the bottom, beside the last layer of the forward
        if self.up:
            layer = depth - 1 - layer
        return TOP + STEP * layer + HEIGHT / 2


class _Drawing:
    """Draw both graphs and the saved values between them."""

    def __init__(
        self,
        parts: Parts,
        saved: Sequence[SavedValue],
        again: Collection[str],
        backward: fx.GraphModule,
        names: Mapping[fx.Node, str],
    ) -> None:
        self.parts = parts
        self.by_name = {node.name: node for node in parts.nodes}
        # numbers take no memory to speak of
        self.saved = [value for value in saved if value.dtype is not None]
        self.forward = _Side()
        self._fill_forward({value.name for value in saved}, names)
        self.backward = _Side()
        self.backward.up = True
        self._fill_backward(backward, again)
        self.uses = self._list_uses()
        self.sources = {value.name: call_of(self.by_name[value.name]).name for value in self.saved}

    def _fill_forward(self, saved: Collection[str], names: Mapping[fx.Node, str]) -> None:
        """Add the inputs that the forward uses or saves, then its calls.

        ``saved``: the names of all that is saved, numbers included.
        """
        # an input that nobody uses is not drawn
        order = self.parts.forward_order([self.by_name[name] for name in saved])
        used: set[fx.Node] = set()
        for node in order:
            used.update(node.all_input_nodes)
        for node in self.parts.primals:
            if (node in used or node.name in saved) and not is_size(node):
                self.forward.add(
                    node, "argument", names.get(node, str(node.target)), f"{node.name}, an input"
                )
                self.forward.late.add(node.name)
        self._fill(self.forward, order, lambda node: "forward", self.parts.results)
        self.forward.put_off(lambda name: is_view(self.by_name[name]))

    def _fill_backward(self, backward: fx.GraphModule, again: Collection[str]) -> None:
        """Add the cotangents, then the calls of ``backward``. Those in ``again`` run again."""
        for node in self.parts.tangents:
            self.backward.add(node, "argument", str(node.target))
        order = [
            self.by_name[node.name]
            for node in backward.graph.nodes
            if node.op == "call_function" and node.name in self.by_name
        ]

        def kind_of(node: fx.Node) -> str:
            """Return the class of a box."""
            return "again" if node.name in again else "backward"

        self._fill(self.backward, order, kind_of, self.parts.gradients)
        self.backward.put_off(lambda name: name in again)

    def _list_uses(self) -> list[tuple[str, str]]:
        """List each saved value with a call of the backward that takes it, by their names."""
        boxes = self.backward.labels
        uses = []
        for value in self.saved:
            # one that is computed again has a box of its own there
            if value.name in boxes:
                continue
            users = [call_of(user).name for user in _through_items(self.by_name[value.name])]
            uses += [(value.name, user) for user in users if user in boxes]
        return uses

    @staticmethod
    def _fill(
        side: _Side,
        order: Sequence[fx.Node],
        kind: Callable[[fx.Node], str],
        results: Sequence[object],
    ) -> None:
        """Add the calls in ``order`` and their edges. ``results``: what the graph returns."""
        returned = {call_of(node).name for node in nodes_among(results)}
        # items are drawn as their call, and sizes not at all
        for node in order:
            if node.op != "call_function" or is_item(node) or is_size(node):
                continue
            classes = kind(node)
            if node.name in returned:
                classes += " result"
            side.add(node, classes, _op(node), f"{node.name} = {node.target}")
            # what is not drawn on this side, such as a saved value, has no edge here
            for source in map(call_of, node.all_input_nodes):
                if source.name in side.labels:
                    side.edges.append((source.name, node.name))

    def svg(self, title: str) -> str:
        """Return the SVG."""
        # the sizes: of both sides, of the values in the middle, and of the whole
        for side in (self.forward, self.backward):
            side.arrange()
        depth = max(
            self.forward.plan.depth,
            self.backward.plan.depth,
            math.ceil(len(self.saved) * (HEIGHT + 6) / STEP),
        )
        pill = max((map(self._pill_width, self.saved)), default=60.0)
        self.forward.left = MARGIN
        middle = MARGIN + max(self.forward.plan.width, 120) + 70 + pill / 2
        self.backward.left = middle + pill / 2 + 70
        width = max(
            self.backward.left + max(self.backward.plan.width, 120) + MARGIN, 24 + 6.2 * len(title)
        )
        height = TOP + STEP * depth + MARGIN
        places = self._pills(depth)
        # edges first, so that boxes lie over them
        body = [
            *self._edges(self.forward, depth),
            *self._edges(self.backward, depth),
            (
                f'<line class="cut" x1="{middle:.0f}" y1="{TOP - 12:.0f}" x2="{middle:.0f}" '
                f'y2="{height - MARGIN / 2:.0f}"/>'
            ),
            *self._savings(places, middle, pill, depth),
            *self._boxes(self.forward, depth),
            *self._boxes(self.backward, depth),
            *(self._pill(value, middle, places[value.name], pill) for value in self.saved),
        ]
        heads = [
            (self.forward.left + self.forward.plan.width / 2, "forward ↓"),
            (middle, "saved"),
            (self.backward.left + self.backward.plan.width / 2, "backward ↑"),
        ]
        head = [f'<text class="left" x="{MARGIN}" y="22">{escape(title)}</text>', *_legend()]
        head += [
            f'<text class="head" x="{x:.0f}" y="{TOP - 22:.0f}">{label}</text>'
            for x, label in heads
        ]
        return (
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
                f'width="{width:.0f}" height="{height:.0f}">\n<style>{_STYLE}</style>\n'
                '<rect width="100%" height="100%" fill="white"/>\n'
            )
            + "\n".join([*head, *body])
            + "\n</svg>\n"
        )

    @staticmethod
    def _pill_width(value: SavedValue) -> float:
        """Return the width of the box of a saved value."""
        return 20 + _CHARACTER * max(map(len, _pill_text(value)))

    def _pills(self, depth: int) -> dict[str, float]:
        """Return the heights of the saved values: near that of their source, without overlaps."""
        # first push overlapping ones down, then back up from the end of the drawing
        wish = {
            value.name: self.forward.at(self.sources[value.name], depth)[1] for value in self.saved
        }
        order = sorted(wish, key=wish.__getitem__)
        room = HEIGHT + 6
        last = TOP + STEP * depth - STEP + HEIGHT / 2
        places: dict[str, float] = {}
        at = TOP + HEIGHT / 2 - room
        for name in order:
            at = places[name] = max(wish[name], at + room)
        for name in reversed(order):
            places[name] = min(places[name], last)
            last = places[name] - room
        return places

    @staticmethod
    def _pill(value: SavedValue, x: float, y: float, width: float) -> str:
        """Draw a saved value."""
        size, what = _pill_text(value)
        note = f"{value.name}\n{value.source}\n{value.why.value}"
        if value.line:
            note += f"\n{value.line}"
        kind = "shared" if value.shares else "saved"
        return (
            f'<g><title>{escape(note)}</title><rect class="{kind}" '
            f'x="{x - width / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{width:.1f}" '
            f'height="{HEIGHT}" rx="{HEIGHT / 2}"/><text class="bytes" x="{x:.1f}" '
            f'y="{y - 2:.1f}">{escape(size)}</text><text class="small" x="{x:.1f}" '
            f'y="{y + 11:.1f}">{escape(what)}</text></g>'
        )

    def _savings(self, places: dict[str, float], x: float, width: float, depth: int) -> list[str]:
        """Draw the lines from sources to saved values, and from these to their users."""
        lines = []
        for value in self.saved:
            name = self.sources[value.name]
            a, b = self.forward.at(name, depth)
            lines.append(
                _across(a + self.forward.width(name) / 2, b, x - width / 2, places[value.name])
            )
        for name, user in dict.fromkeys(self.uses):
            a, b = self.backward.at(user, depth)
            lines.append(_across(x + width / 2, places[name], a - self.backward.width(user) / 2, b))
        return lines

    @staticmethod
    def _boxes(side: _Side, depth: int) -> list[str]:
        """Draw the boxes of a side."""
        boxes = []
        for name, (label, kind) in side.labels.items():
            x, y = side.at(name, depth)
            width = side.width(name)
            boxes.append(
                f'<g><title>{escape(side.notes[name])}</title><rect class="box '
                f'{side.classes[name]}" x="{x - width / 2:.1f}" y="{y - HEIGHT / 2:.1f}" '
                f'width="{width:.1f}" height="{HEIGHT}" rx="5"/><text x="{x:.1f}" '
                f'y="{y - 2:.1f}">{escape(label)}</text><text class="small" x="{x:.1f}" '
                f'y="{y + 11:.1f}">{escape(kind)}</text></g>'
            )
        return boxes

    @staticmethod
    def _edges(side: _Side, depth: int) -> list[str]:
        """Draw the edges of a side, as curves through their bends."""
        paths = []
        half = HEIGHT / 2  # from the middle of a box to where edges leave it
        if side.up:
            half = -half
        for a, b in dict.fromkeys(side.edges):
            (x, y), end = side.at(a, depth), side.at(b, depth)
            points = [(x, y + half)]
            for layer, bend in side.plan.bends[a, b]:
                at = side.level(layer, depth)
                points += [(side.left + bend, at - half), (side.left + bend, at + half)]
            points.append((end[0], end[1] - half))
            path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
            for (x0, y0), (x1, y1) in pairwise(points):
                turn = (y1 - y0) / 2
                path += f" C{x0:.1f} {y0 + turn:.1f} {x1:.1f} {y1 - turn:.1f} {x1:.1f} {y1:.1f}"
            paths.append(f'<path class="edge" d="{path}"/>')
        return paths


def _across(x0: float, y0: float, x1: float, y1: float) -> str:
    """Draw a curve that leaves and arrives horizontally."""
    turn = (x1 - x0) / 2
    return (
        f'<path class="saving" d="M{x0:.1f} {y0:.1f} C{x0 + turn:.1f} {y0:.1f} {x1 - turn:.1f} '
        f'{y1:.1f} {x1:.1f} {y1:.1f}"/>'
    )


def _legend() -> list[str]:
    """Draw an example of each kind of box, with its meaning."""
    texts, x = [], MARGIN
    shown = (
        ("box forward", "forward"),
        ("box backward", "backward"),
        ("box again", "runs again"),
        ("box argument", "argument or cotangent"),
        ("box forward result", "result"),
        ("saved", "saved"),
        ("shared", "saved, in the memory of another"),
    )
    for kind, label in shown:
        radius = 3 if kind.startswith("box") else 6
        texts.append(
            f'<rect class="{kind}" x="{x:.0f}" y="36" width="20" height="12" rx="{radius}"/>'
        )
        texts.append(f'<text class="left small" x="{x + 26:.0f}" y="46">{label}</text>')
        x += 44 + 5.6 * len(label)
    return texts


def _through_items(node: fx.Node) -> list[fx.Node]:
    """List the users of ``node``, with those of an item in place of the item."""
    users: list[fx.Node] = []
    for user in node.users:
        if is_item(user):
            users += _through_items(user)
        else:
            users.append(user)
    return users


def _op(node: fx.Node) -> str:
    """Return the name of the function that ``node`` calls, without its namespace."""
    func = node.target
    if isinstance(func, OpOverload):
        return str(func._schema.name.split("::")[1])
    return str(getattr(func, "__name__", func))


def _kind(value: object) -> str:
    """Describe a value in a few letters: ``2×3 f32``."""
    if isinstance(value, torch.Tensor):
        short = str(value.dtype).removeprefix("torch.").replace("float", "f").replace("int", "i")
        return f"{'×'.join(map(str, value.shape)) or 'scalar'} {short}"
    if isinstance(value, (list, tuple)):
        count = sum(isinstance(item, torch.Tensor) for item in value)
        return f"{count} tensor{'s' * (count != 1)}"
    return ""


def _pill_text(value: SavedValue) -> tuple[str, str]:
    """Return both lines of the box of a saved value: its bytes; its source and shape."""
    size = "shared" if value.shares else in_units(value.bytes)
    shape = "×".join(map(str, value.shape)) or "scalar"
    return size, f"{value.source.replace('aten.', '').replace('.default', '')} {shape}"
