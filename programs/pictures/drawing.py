"""Check the picture of a cut: where its boxes, lines and texts are.

    drawing = Drawing.parse(report.svg())
    drawing.columns_do_not_overlap()       # True

A picture has three columns. Forward calls are on the left, saved values in the middle, and backward
calls on the right. The boxes of saved values lie on the line of the cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# Positions have one digit after the point, so the middle of a side is rounded twice.
TOLERANCE = 0.2
BOX_HEIGHT = 34
HEAD_HEIGHT = 60  # of the title and the legend above all boxes
COLUMN_GAP = 16.0  # between two boxes of one row
MARGIN = 24
LETTER_WIDTH = 6.4

_NUMBER = r"[-\d.]+"
_BOX = re.compile(
    r'<g><title>([^<]*)</title><rect class="([^"]*)" x="([-\d.]+)" '
    r'y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)" rx="[\d.]+"/><text[^>]* '
    r'x="([-\d.]+)" y="([-\d.]+)">([^<]*)</text><text[^>]* x="([-\d.]+)" '
    r'y="([-\d.]+)">([^<]*)</text></g>'
)
_CUT = re.compile(r'<line class="cut" x1="(\d+)" y1="(\d+)" x2="(\d+)" y2="(\d+)"/>')
_LEGEND = re.compile(r'<rect class="[^"]*" x="(\d+)" y="36" width="20" height="12" rx="[36]"/>')
_HEAD = re.compile(r'<text class="head" x="(\d+)" y="\d+">(\w+)')
_SIZE = re.compile(r'viewBox="0 0 (\d+) (\d+)"')


def is_near(one: float, other: float) -> bool:
    return abs(one - other) < TOLERANCE


@dataclass(frozen=True)
class Point:
    x: float
    y: float

    def is_at(self, other: Point) -> bool:
        return is_near(self.x, other.x) and is_near(self.y, other.y)

    def is_on(self, side: str, boxes: Iterable[Box]) -> bool:
        """Return whether the point is in the middle of that side of a box."""
        return any(self.is_at(box.middle(side)) for box in boxes)


@dataclass(frozen=True)
class Line:
    """An edge between two boxes, by its ends."""

    start: Point
    end: Point

    def joins(
        self, side: str, sources: Iterable[Box], other_side: str, targets: Iterable[Box]
    ) -> bool:
        """Return whether the line leads from a side of a source to a side of a target."""
        return self.start.is_on(side, sources) and self.end.is_on(other_side, targets)


@dataclass(frozen=True)
class Box:
    """A call or a saved value, with two lines of text."""

    note: str  # the tooltip
    kind: str  # such as "forward result", "again" or "saved"
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, str]
    text_at: tuple[Point, Point]

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def centre(self) -> float:
        return self.x + self.width / 2

    @property
    def is_saved(self) -> bool:
        return self.kind in ("saved", "shared")

    def middle(self, side: str) -> Point:
        """Return the middle of a side: ``top``, ``bottom``, ``left`` or ``right``."""
        height = self.y + self.height / 2
        middles = {
            "top": Point(self.centre, self.y),
            "bottom": Point(self.centre, self.bottom),
            "left": Point(self.x, height),
            "right": Point(self.right, height),
        }
        return middles[side]

    def centres_its_text(self) -> bool:
        """Return whether both lines of text are centred, one below the other inside the box."""
        first, second = self.text_at
        is_inside = self.y < first.y < second.y < self.y + BOX_HEIGHT
        return is_near(first.x, self.centre) and first.x == second.x and is_inside

    def has_room_for_its_text(self) -> bool:
        longest = max(map(len, self.lines))
        return self.width >= BOX_HEIGHT and self.width >= LETTER_WIDTH * longest


def boxes_of(text: str) -> list[Box]:
    """Return the boxes of calls and of saved values."""
    boxes = []
    for note, kind, x, y, width, height, *texts in _BOX.findall(text):
        first_x, first_y, first, second_x, second_y, second = texts
        boxes.append(
            Box(
                note=note,
                kind=kind.removeprefix("box "),
                x=float(x),
                y=float(y),
                width=float(width),
                height=float(height),
                lines=(first, second),
                text_at=(
                    Point(float(first_x), float(first_y)),
                    Point(float(second_x), float(second_y)),
                ),
            )
        )
    return boxes


def _lines_of(text: str, kind: str) -> list[Line]:
    """Return the lines of this class."""
    lines = []
    for path in re.findall(rf'<path class="{kind}" d="([^"]*)"/>', text):
        numbers = list(map(float, re.findall(_NUMBER, path)))
        lines.append(Line(Point(*numbers[:2]), Point(*numbers[-2:])))
    return lines


def _stand_apart(boxes: Iterable[Box], gap: float) -> bool:
    """Return whether the boxes of each row have a gap between them."""
    rows: dict[float, list[Box]] = {}
    for box in boxes:
        rows.setdefault(box.y, []).append(box)
    for row in rows.values():
        row.sort(key=lambda box: box.x)
        if not all(box.right + gap - TOLERANCE <= after.x for box, after in pairwise(row)):
            return False
    return True


@dataclass(frozen=True)
class Drawing:
    """A picture of a cut, taken apart."""

    text: str
    width: float
    height: float
    saved: Sequence[Box]
    forward: Sequence[Box]
    backward: Sequence[Box]
    boxes: Sequence[Box]
    left_edges: Sequence[Line]
    right_edges: Sequence[Line]
    edges: Sequence[Line]
    savings: Sequence[Line]
    cut: Line
    legend: Sequence[float]  # x of each mark
    heads: Sequence[tuple[float, str]]  # x and text of the head of each column

    @classmethod
    def parse(cls, text: str) -> Drawing:
        """Take the picture of a cut apart, which is SVG."""
        boxes = boxes_of(text)
        saved = [box for box in boxes if box.is_saved]
        others = [box for box in boxes if not box.is_saved]
        middle = saved[0]
        edges = _lines_of(text, "edge")
        width, height = map(float, _SIZE.findall(text)[0])
        cut = list(map(float, _CUT.findall(text)[0]))
        return cls(
            text=text,
            width=width,
            height=height,
            saved=saved,
            forward=[box for box in others if box.right < middle.x],
            backward=[box for box in others if box.x > middle.right],
            boxes=boxes,
            left_edges=[edge for edge in edges if edge.start.x < middle.x],
            right_edges=[edge for edge in edges if edge.start.x > middle.x],
            edges=edges,
            savings=_lines_of(text, "saving"),
            cut=Line(Point(*cut[:2]), Point(*cut[2:])),
            legend=list(map(float, _LEGEND.findall(text))),
            heads=[(float(x), word) for x, word in _HEAD.findall(text)],
        )

    @property
    def savings_into(self) -> list[Line]:
        """Return the lines from forward calls to saved values."""
        return [line for line in self.savings if line.end.x < self.cut.start.x]

    @property
    def savings_out(self) -> list[Line]:
        """Return the lines from saved values to backward calls."""
        return [line for line in self.savings if line.start.x > self.cut.start.x]

    def has_each_box_in_a_column(self) -> bool:
        return len(self.boxes) == len(self.saved) + len(self.forward) + len(self.backward)

    def has_boxes_inside(self) -> bool:
        """Return whether all boxes are inside of the picture, and below the legend."""
        return all(
            box.x >= 0
            and box.right <= self.width
            and box.y > HEAD_HEIGHT
            and box.bottom <= self.height
            for box in self.boxes
        )

    def columns_do_not_overlap(self) -> bool:
        are_apart = all(_stand_apart(side, COLUMN_GAP) for side in (self.forward, self.backward))
        return are_apart and min(box.x for box in self.forward) >= MARGIN

    def has_each_edge_on_a_side(self) -> bool:
        """Return whether each edge is on one side of the cut, and all boxes have one height."""
        are_on_sides = len(self.left_edges) + len(self.right_edges) == len(self.edges)
        return are_on_sides and all(box.height == BOX_HEIGHT for box in self.boxes)

    def each_forward_call_has_an_input(self) -> bool:
        ends = [edge.end for edge in self.left_edges]
        calls = [box for box in self.forward if box.kind != "argument"]
        return all(any(end.is_at(box.middle("top")) for end in ends) for box in calls)

    def forward_edges_lead_down(self) -> bool:
        return all(
            edge.start.y < edge.end.y and edge.joins("bottom", self.forward, "top", self.forward)
            for edge in self.left_edges
        )

    def backward_edges_lead_up(self) -> bool:
        return all(
            edge.start.y > edge.end.y and edge.joins("top", self.backward, "bottom", self.backward)
            for edge in self.right_edges
        )

    def saved_values_stand_below_one_another(self) -> bool:
        rows = sorted(self.saved, key=lambda box: box.y)
        are_apart = all(box.y + 40 <= after.y + TOLERANCE for box, after in pairwise(rows))
        return are_apart and len({box.width for box in self.saved}) == 1

    def each_saved_value_has_a_source(self) -> bool:
        lines = self.savings_into
        lead_there = all(line.joins("right", self.forward, "left", self.saved) for line in lines)
        return len(lines) == len(self.saved) and lead_there

    def each_saved_value_has_a_user(self) -> bool:
        lines = self.savings_out
        lead_there = all(line.joins("right", self.saved, "left", self.backward) for line in lines)
        used = {line.start.y for line in lines}
        return lead_there and used == {line.end.y for line in self.savings_into}

    def has_the_cut_through_the_saved_values(self) -> bool:
        is_vertical = self.cut.start.x == self.cut.end.x
        is_in_the_middle = abs(self.cut.start.x - self.saved[0].centre) < 1
        begins_above = self.cut.start.y < min(box.y for box in self.boxes)
        return is_vertical and is_in_the_middle and begins_above

    def has_the_cut_to_the_end_and_a_legend(self) -> bool:
        ends_below = self.cut.end.y > max(box.bottom for box in self.boxes)
        marks_are_apart = all(mark + 60 < after for mark, after in pairwise(self.legend))
        return ends_below and len(self.legend) == 7 and marks_are_apart

    def has_one_box_per_place(self) -> bool:
        return len({(box.x, box.y) for box in self.boxes}) == len(self.boxes)

    def has_a_head_of_each_column(self) -> bool:
        words = [word for _, word in self.heads]
        is_saved_above_the_cut = self.heads[1][0] == self.cut.start.x
        return words == ["forward", "saved", "backward"] and is_saved_above_the_cut

    def has_heads_above_the_columns(self) -> bool:
        """Return whether the heads of both sides are near the middle of their columns."""
        columns = zip(self.heads[::2], (self.forward, self.backward), strict=True)
        return all(abs(x - _middle_of(boxes)) < 60 for (x, _), boxes in columns)


def _middle_of(boxes: Sequence[Box]) -> float:
    return (min(box.x for box in boxes) + max(box.right for box in boxes)) / 2


def claims(text: str, report: Any) -> list[bool]:
    """Return whether each claim holds of the picture of a cut, and of its report."""
    drawing = Drawing.parse(text)
    own: list[Callable[[], bool]] = [
        drawing.has_boxes_inside,
        drawing.columns_do_not_overlap,
        drawing.has_each_edge_on_a_side,
        drawing.each_forward_call_has_an_input,
        drawing.forward_edges_lead_down,
        drawing.backward_edges_lead_up,
        drawing.saved_values_stand_below_one_another,
        drawing.each_saved_value_has_a_source,
        drawing.each_saved_value_has_a_user,
    ]
    return [
        drawing.has_each_box_in_a_column() and len(drawing.saved) == len(report.saved),
        *(claim() for claim in own),
        *_claims_of_saved_values(drawing, report),
        drawing.has_the_cut_through_the_saved_values(),
        drawing.has_the_cut_to_the_end_and_a_legend(),
        all(box.centres_its_text() for box in drawing.boxes),
        all(box.has_room_for_its_text() for box in drawing.boxes),
        drawing.has_one_box_per_place() and report.summary in text,
        drawing.has_a_head_of_each_column(),
        drawing.has_heads_above_the_columns(),
    ]


def _claims_of_saved_values(drawing: Drawing, report: Any) -> list[bool]:
    """Return whether the boxes say what the report says of saved and recomputed values."""
    sizes = ["shared" if value.shares else f"{value.bytes} B" for value in report.saved]
    pairs = list(zip(drawing.saved, report.saved, strict=True))
    again = [box for box in drawing.backward if box.kind.startswith("again")]
    return [
        [box.lines[0] for box in drawing.saved] == sizes,
        all(
            box.note.split("\n")[:3] == [value.name, value.source, value.why.value]
            for box, value in pairs
        ),
        len(again) == len(report.recomputed),
        all((box.kind == "saved") is (not value.shares) for box, value in pairs),
    ]
