"""A drawing of a cut: what its boxes say, and that its lines lead from box to box."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from runtime import aot

from .by_hand import Joint, hands_over

SVG = "{http://www.w3.org/2000/svg}"
CUT: Any = aot.min_cut_rematerialization_partition


@dataclass(frozen=True)
class Box:
    """``note``: what pointing at it shows. ``lines``: what is written in it."""

    kind: str
    note: str
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def pill(self) -> bool:
        return self.kind in ("saved", "shared")


class Picture:
    def __init__(self, f: Any, *args: torch.Tensor, cut: Any = CUT, **options: Any) -> None:
        self.report = aot.explain(aot.aot_function(f, aot.nop, partition_fn=cut, **options), *args)
        self.root = ElementTree.fromstring(self.report.svg())
        self.boxes: list[Box] = []
        for g in self.root.iter(f"{SVG}g"):
            (title,), (rect,), texts = (
                g.findall(f"{SVG}{kind}") for kind in ("title", "rect", "text")
            )
            place = [float(rect.get(k, "")) for k in ("x", "y", "width", "height")]
            self.boxes.append(
                Box(
                    rect.get("class", ""),
                    title.text or "",
                    tuple(t.text or "" for t in texts),
                    *place,
                )
            )
            for t in texts:
                assert float(t.get("x", "")) == pytest.approx(self.boxes[-1].middle, abs=0.11)
                assert (
                    self.boxes[-1].y
                    < float(t.get("y", ""))
                    < self.boxes[-1].y + self.boxes[-1].height
                )
        self.pills = [b for b in self.boxes if b.pill]
        self.width, self.height = (float(self.root.get(k, "")) for k in ("width", "height"))

    def curves(self, kind: str) -> list[list[tuple[float, float]]]:
        """Of each line of a kind the start, and for each of its pieces two points that bend
        it, and the end."""
        found = []
        for p in self.root.iter(f"{SVG}path"):
            if p.get("class") == kind:
                numbers = [float(x) for x in re.findall(r"-?\d+\.\d", p.get("d", ""))]
                pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
                found.append(pairs)
        return found

    def paths(self, kind: str) -> list[list[tuple[float, float]]]:
        """The points on each line of a kind, without those that bend it."""
        return [[pairs[0], *pairs[3::3]] for pairs in self.curves(kind)]

    def of(self, kind: str) -> list[Box]:
        return [b for b in self.boxes if kind in b.kind.split()]

    def lines(self, kind: str) -> list[tuple[str, ...]]:
        return sorted(b.lines for b in self.of(kind))


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm((x @ w).sin().tanh(), (4,)).sum()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)


def deep(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = F.gelu(F.layer_norm(x @ w, (8,)))
    return x.sum()


def of_deep(**options: Any) -> Picture:
    return Picture(
        deep,
        torch.randn(64, 8),
        *(torch.randn(8, 8, requires_grad=True) for _ in range(3)),
        **options,
    )


def test_a_box_says_which_op_it_is_and_what_that_gives() -> None:
    found = Picture(model, *inputs())
    assert found.lines("argument") == [
        ("args[0]", "3×4 f32"),
        ("args[1]", "4×4 f32"),
        ("tangents_1", "scalar f32"),
    ]
    assert found.lines("forward") == [
        ("mm", "3×4 f32"),
        ("native_layer_norm", "3 tensors"),
        ("sin", "3×4 f32"),
        ("sum", "scalar f32"),
        ("tanh", "3×4 f32"),
    ]
    assert found.lines("again") == [
        ("native_layer_norm", "3 tensors"),
        ("sin", "3×4 f32"),
        ("tanh", "3×4 f32"),
    ]
    assert ("native_layer_norm_backward", "1 tensor") in found.lines("backward")
    notes = {b.note for b in found.boxes if not b.pill}
    assert {
        "primals_1, an input",
        "tangents_1",
        "mm = aten.mm.default",
        "native_layer_norm = aten.native_layer_norm.default",
    } <= notes


def test_a_pill_says_how_many_bytes_of_what_are_saved_and_why() -> None:
    found = Picture(model, *inputs())
    assert [(b.kind, b.lines) for b in found.pills] == [
        ("saved", ("48 B", "args[0] 3×4")),
        ("saved", ("48 B", "mm 3×4")),
    ]
    assert found.pills[0].note.splitlines() == [
        "primals_1",
        "args[0]",
        "an argument of the program",
    ]
    *head, line = found.pills[1].note.splitlines()
    assert head == ["mm", "aten.mm.default", "its op is expensive to run again"]
    assert "return F.layer_norm((x @ w)" in line


def test_a_scalar_an_integer_and_a_shared_memory_go_by_their_names() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x[i].exp()
        return (y.view(-1) ** 3).sum() * y.sum().exp() + (y.t() @ y).sum()

    found = Picture(
        program, torch.randn(4, 4, requires_grad=True), torch.arange(4), cut=aot.default_partition
    )
    assert ("args[1]", "4 i64") in found.lines("argument")
    assert any(b.lines[0] == "4 B" and b.lines[1].endswith(" scalar") for b in found.pills)
    sharing = [v for v in found.report.saved if v.shares]
    assert len([b for b in found.pills if b.kind == "shared"]) == len(sharing) > 0
    assert {b.lines[0] for b in found.pills if b.kind == "shared"} == {"shared"}


def test_results_and_gradients_are_marked() -> None:
    found = Picture(lambda x, w: (x @ w).sin(), *inputs())
    assert [b.kind for b in found.boxes if "result" in b.kind and "forward" in b.kind] == [
        "box forward result"
    ]
    assert [b.lines[0] for b in found.of("result") if "forward" in b.kind] == ["sin"]
    assert [b.lines[0] for b in found.of("result") if "backward" in b.kind] == ["mm"]


def test_sizes_and_arguments_that_nothing_uses_are_left_out() -> None:
    idle = Picture(lambda x, y: x.sin(), torch.randn(3, requires_grad=True), torch.randn(5))
    assert idle.lines("argument") == [("args[0]", "3 f32"), ("tangents_1", "3 f32")]
    dynamic = Picture(
        lambda x: x.sum(0) * x.shape[0], torch.randn(3, 5, requires_grad=True), dynamic=True
    )
    assert not dynamic.pills and dynamic.report.saved
    assert {b.lines[0] for b in dynamic.of("argument")} == {"args[0]", "tangents_1"}


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_everything_is_inside_of_the_picture(budget: float) -> None:
    found = of_deep(cut=partial(CUT, memory_budget=budget))
    for b in found.boxes:
        assert b.x > 0 and b.x + b.width < found.width
        assert b.y > 0 and b.y + b.height < found.height
    for points in (*found.paths("edge"), *found.paths("saving")):
        assert all(0 < x < found.width and 0 < y < found.height for x, y in points)


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_saved_values_stand_between_the_columns_of_both_passes(budget: float) -> None:
    found = of_deep(cut=partial(CUT, memory_budget=budget))
    others = [b for b in found.boxes if b not in found.pills]
    forward = [b for b in others if "forward" in b.kind or b.lines[0].startswith("args")]
    backward = [b for b in found.boxes if not {"backward", "again"}.isdisjoint(b.kind.split())]
    left, right = min(p.x for p in found.pills), max(p.x + p.width for p in found.pills)
    assert max(b.x + b.width for b in forward) < left
    assert min(b.x for b in backward) > right


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_heads_stand_above_their_columns(budget: float) -> None:
    found = of_deep(cut=partial(CUT, memory_budget=budget))
    left, right = min(p.x for p in found.pills), max(p.x + p.width for p in found.pills)
    titles = [t for t in found.root.iter(f"{SVG}text") if t.get("class") == "head"]
    heads = {title.text: float(title.get("x", "")) for title in titles}
    assert heads["forward ↓"] < left < heads["saved"] < right < heads["backward ↑"]


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_the_cut_leads_through_the_middle_of_the_saved_values(budget: float) -> None:
    found = of_deep(cut=partial(CUT, memory_budget=budget))
    (cut,) = (line for line in found.root.iter(f"{SVG}line") if line.get("class") == "cut")
    middles = {round(p.middle) for p in found.pills}
    assert middles == {int(cut.get("x1", ""))} == {int(cut.get("x2", ""))}


def test_a_label_fits_into_its_box() -> None:
    """Letters of this size are about six units wide."""
    for b in of_deep().boxes:
        assert b.width >= 6 * max(map(len, b.lines)) + 8
        assert b.height == 34


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_pills_stand_apart_in_the_order_in_which_the_forward_makes_them(budget: float) -> None:
    found = of_deep(cut=partial(CUT, memory_budget=budget))
    assert len(found.pills) == len(found.report.saved)
    heights = sorted(p.y for p in found.pills)
    assert all(b - a >= 34 + 6 - 0.11 for a, b in itertools.pairwise(heights))
    made = {
        b.note.split(" = ")[0].removesuffix(", an input"): b.y
        for b in found.boxes
        if not b.pill and "again" not in b.kind
    }
    named = [
        (made[p.note.splitlines()[0]], p.y) for p in found.pills if p.note.splitlines()[0] in made
    ]
    named.sort()
    assert [y for _, y in named] == sorted(y for _, y in named)


def test_a_pill_with_room_stands_at_the_height_of_the_box_that_it_is_from() -> None:
    found = Picture(model, *inputs())
    heights = {
        b.lines[0]: b.y
        for b in found.boxes
        if not b.pill and "again" not in b.kind and "backward" not in b.kind
    }
    assert [p.y for p in found.pills] == [heights["args[0]"], heights["mm"]]


def test_many_values_of_one_height_stand_below_one_another_down_to_the_last_row() -> None:
    weights = [torch.randn(3, requires_grad=True) for _ in range(9)]
    found = Picture(
        lambda *w: torch.stack([a.sin() for a in w]).prod(0), *weights, cut=aot.default_partition
    )
    heights = sorted(p.y for p in found.pills)
    assert len(heights) >= 9
    assert all(b - a >= 40 - 0.11 for a, b in itertools.pairwise(heights))
    assert heights[0] >= 92 and heights[-1] + 34 < found.height


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_an_edge_leads_from_the_border_of_a_box_to_that_of_another(budget: float) -> None:
    """In the forward from the lower to the upper one, in the backward the other way."""
    found = of_deep(cut=partial(CUT, memory_budget=budget))
    boxes = [b for b in found.boxes if not b.pill]
    tops = {(round(b.middle), round(b.y)): b for b in boxes}
    bottoms = {(round(b.middle), round(b.y + b.height)): b for b in boxes}
    assert found.paths("edge")
    middle = found.pills[0].middle
    for (x0, y0), *_, (x1, y1) in found.paths("edge"):
        start, end = (bottoms, tops) if x0 < middle else (tops, bottoms)
        near = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
        assert any((round(x0) + dx, round(y0) + dy) in start for dx, dy in near)
        assert any((round(x1) + dx, round(y1) + dy) in end for dx, dy in near)
        assert (y1 > y0) == (x0 < middle)


def test_a_line_turns_half_way_between_two_rows_or_columns() -> None:
    found = of_deep()
    for kind, axis in (("edge", 1), ("saving", 0)):
        for points in found.curves(kind):
            for i in range(0, len(points) - 1, 3):
                start, first, second, end = points[i : i + 4]
                assert (
                    first[axis]
                    == pytest.approx((start[axis] + end[axis]) / 2, abs=0.11)
                    == second[axis]
                )
                assert (first[1 - axis], second[1 - axis]) == (start[1 - axis], end[1 - axis])


def test_the_forward_starts_in_the_first_row_and_the_backward_in_the_last() -> None:
    found = Picture(
        lambda x: x.sin().exp().sum(), torch.randn(3, requires_grad=True), cut=aot.default_partition
    )
    rows = {b.lines[0]: b.y for b in found.boxes if not b.pill}
    assert [rows[name] for name in ("args[0]", "sin", "exp", "sum")] == [92, 150, 208, 266]
    assert rows["tangents_1"] == 266 and rows["expand"] == 208
    assert found.height == 266 + 58 + 24


def test_each_call_of_the_forward_has_an_edge_from_each_of_its_inputs() -> None:
    found = Picture(
        lambda x, w: (x @ w) * (x + w).exp(),
        torch.randn(4, 4),
        torch.randn(4, 4, requires_grad=True),
    )
    forward = [b for b in found.boxes if not b.pill and b.middle < found.pills[0].x]
    assert sorted(b.lines[0] for b in forward) == ["add", "args[0]", "args[1]", "exp", "mm", "mul"]
    ends: dict[str, list[str]] = {}
    for (x0, y0), *_, (x1, y1) in found.paths("edge"):
        for a, b in itertools.product(forward, forward):
            if (
                abs(a.middle - x0) < 0.2
                and abs(a.y + 34 - y0) < 0.2
                and abs(b.middle - x1) < 0.2
                and abs(b.y - y1) < 0.2
            ):
                ends.setdefault(b.lines[0], []).append(a.lines[0])
    assert {k: sorted(v) for k, v in ends.items()} == {
        "add": ["args[0]", "args[1]"],
        "mm": ["args[0]", "args[1]"],
        "exp": ["add"],
        "mul": ["exp", "mm"],
    }


def test_lines_of_saving_lead_from_a_box_to_its_pill_and_on_to_each_user() -> None:
    found = of_deep()
    sides = (
        {(round(b.x + b.width, 1), b.y + 17) for b in found.boxes},
        {(round(b.x, 1), b.y + 17) for b in found.boxes},
    )

    def near(at: tuple[float, float], places: set[tuple[float, float]]) -> bool:
        return any(abs(at[0] - x) < 0.15 and abs(at[1] - y) < 0.15 for x, y in places)

    lines = found.paths("saving")
    for start, end in lines:
        assert near(start, sides[0]) and near(end, sides[1]) and start[0] < end[0]
    for p in found.pills:
        assert sum(near(end, {(p.x, p.y + 17)}) for _, end in lines) == 1
        assert sum(near(start, {(p.x + p.width, p.y + 17)}) for start, _ in lines) >= 1


def test_what_runs_again_stands_right_before_its_user() -> None:
    found = of_deep(cut=partial(CUT, memory_budget=0.0))
    rows = {round(b.y) for b in found.boxes if not b.pill}
    assert len({a % 58 for a in rows}) == 1, "all boxes stand in rows"
    ends = [(p[0], p[-1]) for p in found.paths("edge") if p[0][0] > found.pills[0].middle]
    gaps = []
    for b in found.of("again"):
        gaps.append(
            min(
                start[1] - end[1]
                for start, end in ends
                if abs(start[0] - b.middle) < 0.2 and abs(start[1] - b.y) < 0.2
            )
        )
    assert statistics.median(gaps) == pytest.approx(58 - 34)


def test_the_legend_has_a_mark_of_each_kind_and_the_head_says_the_totals() -> None:
    found = Picture(model, *inputs())
    texts = [
        t.text for t in found.root.iter(f"{SVG}text") if t.get("class") in ("left", "left small")
    ]
    assert texts == [
        found.report.summary,
        *(
            "forward",
            "backward",
            "runs again",
            "argument or cotangent",
            "result",
            "saved",
            "saved, in the memory of another",
        ),
    ]
    marks = [r for r in found.root if r.tag == f"{SVG}rect" and r.get("y") == "36"]
    places = [float(m.get("x", "")) for m in marks]
    labels = [
        float(t.get("x", ""))
        for t in found.root.iter(f"{SVG}text")
        if t.get("class") == "left small"
    ]
    assert all(
        x + 20 < label < after
        for x, label, after in zip(places, labels, [*places[1:], found.width], strict=True)
    )
    assert [m.get("rx") for m in marks] == ["3"] * 5 + ["6"] * 2
    assert found.width >= 6 * len(found.report.summary) + 24


def by_hand(joint: Joint, saved: list[fx.Node]) -> Any:
    """The picture of a cut whose forward returns ``saved``, and whose backward is the square of the
    cotangent."""
    t = joint.inputs[2]
    module = joint.module(saved, [joint.call(torch.ops.aten.mul.Tensor, t, t)])
    forward = hands_over(saved, saved)
    report = aot.Explanation.of(module, forward, square_of(t), num_fwd_outputs=len(saved))
    return ElementTree.fromstring(report.svg())


def square_of(tangent: fx.Node) -> fx.GraphModule:
    """A backward of one call."""
    graph = fx.Graph()
    t = graph.placeholder(tangent.name)
    square = graph.create_node("call_function", torch.ops.aten.mul.Tensor, (t, t), name="mul")
    graph.output([square])
    return fx.GraphModule({}, graph)


def test_a_picture_has_room_for_its_title_and_two_rows(joint: Joint) -> None:
    root = by_hand(joint, [])
    (title,) = (t.text for t in root.iter(f"{SVG}text") if t.get("class") == "left")
    width, height = math.ceil(24 + 6.2 * len(title)), 92 + 58 * 2 + 24
    assert root.get("viewBox") == f"0 0 {width} {height}"


@pytest.mark.parametrize("number, rows", [(1, 2), (3, 3), (13, 9), (16, 12)])
def test_a_picture_is_high_enough_for_all_that_is_saved(
    joint: Joint, number: int, rows: int
) -> None:
    """Each takes 34 and stands 6 apart from the next, and a row takes 58."""
    saved = [joint.call(torch.ops.aten.sin.default, joint.inputs[0]) for _ in range(number)]
    assert float(by_hand(joint, saved).get("height")) == 92 + 58 * rows + 24


def test_pills_that_would_stand_below_the_last_row_move_up(joint: Joint) -> None:
    last = joint.inputs[0]
    for _ in range(3):
        last = joint.call(torch.ops.aten.exp.default, last)
    root = by_hand(joint, [joint.call(torch.ops.aten.sin.default, last) for _ in range(9)])
    heights = [
        float(r.get("y"))
        for r in root.iter(f"{SVG}rect")
        if r.get("class") == "saved" and r.get("height") == "34.0"
    ]
    bottom = float(root.get("height")) - 24 - 58
    assert sorted(heights) == [bottom - 40 * i for i in reversed(range(9))]


def test_a_view_in_the_forward_stands_right_before_its_user() -> None:
    found = Picture(
        lambda x, w: (w.exp().sin() * x.t()).sum(),
        torch.randn(4, 4),
        torch.randn(4, 4, requires_grad=True),
    )
    rows = {b.lines[0]: b.y for b in found.boxes if not b.pill and b.middle < found.pills[0].x}
    assert rows["t"] == rows["mul"] - 58 > rows["exp"]


def test_a_view_of_a_result_stands_right_below_it() -> None:
    found = Picture(
        lambda x, w: (x.exp().t() * w.sin().cos().sin()).sum(),
        torch.randn(4, 4),
        torch.randn(4, 4, requires_grad=True),
    )
    rows = {b.lines[0]: b.y for b in found.boxes if not b.pill and b.middle < found.pills[0].x}
    assert rows["exp"] + 58 == rows["t"] < rows["mul"] - 58
