"""Programs that ask what a cut of a joint graph saves, choose another cut, and draw it. Only a
target has such cuts: the reference has the numbers and facts that are written here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from gen.targets.parts import offered
from programs.tools import Results, beside, own, own_refused, plain

F = nn.functional
aten = torch.ops.aten


def explained(x: Tensor) -> Results:
    """What cuts save and run again, in bytes, and why."""
    explain = own("aot.explain")
    if explain is None:
        return beside(x, *[True] * 13)
    y, w = plain(x).requires_grad_(), plain(x.cos())
    cut = own("aot.min_cut_rematerialization_partition")
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()

    def f(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).sin().exp().sum()

    report, default = explain(f, y, w), explain(own("aot.aot_function")(f, own("aot.nop")), y, w)
    least = explain(
        own("aot.aot_function")(f, own("aot.nop"), partition_fn=partial(cut, memory_budget=0)), y, w
    )
    of_module = explain(own("aot.aot_module")(model, own("aot.nop")), y)
    drawn = explain(lambda a: a * torch.rand_like(a), y)
    text = str(report)
    flags = [
        [(v.source, v.bytes, v.why.name, v.shares) for v in report.saved]
        == [("args[1]", 72, "ARGUMENT", None), ("aten.mm.default", 72, "EXPENSIVE", None)],
        [(r.op, r.name) for r in report.recomputed]
        == [("aten.sin.default", "sin"), ("aten.exp.default", "exp")],
        (report.saved_bytes, report.new_bytes) == (144, 72),
        [v.why.name for v in default.saved].count("FORWARD") == 1 and default.recomputed == (),
        default.saved_bytes == 216 and default.new_bytes == 144,
        least.peak_bytes <= report.peak_bytes <= default.peak_bytes,
        "mm.default" in str(least) or least.saved_bytes <= report.saved_bytes,
        {v.source for v in of_module.saved} >= {"args[0]", "aten.tanh.default"}
        or "0.weight" in str(of_module),
        [(v.source, v.why.name) for v in drawn.saved] == [("aten.rand_like.default", "DRAW")],
        text.startswith(
            "2 values saved, 144 B, of which 72 B beside arguments; 2 calls run again; peak about "
        ),
        "run again: aten.sin.default, aten.exp.default" in text and "partitions.py" in text,
        [len(line.split()) > 0 for line in text.splitlines()].count(True) == 5,
        [v.shape for v in report.saved] == [(3, 3), (3, 3)]
        and all(v.dtype is torch.float64 for v in report.saved),
    ]
    return beside(x, *flags)


# --- drawings -------------------------------------------------------------------------------------


def _boxes(text: str) -> list[Any]:
    """Boxes and saved values: class, note, left, top, width, lines."""
    found = re.findall(
        (
            r'<g><title>([^<]*)</title><rect class="([^"]*)" x="([-\d.]+)" '
            r'y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)" rx="[\d.]+"/><text[^>]* '
            r'x="([-\d.]+)" y="([-\d.]+)">([^<]*)</text><text[^>]* x="([-\d.]+)" '
            r'y="([-\d.]+)">([^<]*)</text></g>'
        ),
        text,
    )
    return [
        SimpleNamespace(
            note=note,
            kind=kind.removeprefix("box "),
            x=float(x),
            y=float(y),
            width=float(w),
            height=float(h),
            lines=(a, b),
            at=[float(n) for n in (ax, ay, bx, by)],
        )
        for note, kind, x, y, w, h, ax, ay, a, bx, by, b in found
    ]


def _ends(text: str, kind: str) -> list[list[float]]:
    """Where each line of this class begins and where it ends: x, y, x, y."""
    numbers = [
        list(map(float, re.findall(r"[-\d.]+", d)))
        for d in re.findall(rf'<path class="{kind}" d="([^"]*)"/>', text)
    ]
    return [[*n[:2], *n[-2:]] for n in numbers]


def _on(x: float, y: float, boxes: list[Any], side: str) -> bool:
    """Whether a point is in the middle of that side of a box."""
    for b in boxes:
        middle = {"top": (b.x + b.width / 2, b.y), "bottom": (b.x + b.width / 2, b.y + b.height)}
        middle |= {"left": (b.x, b.y + b.height / 2), "right": (b.x + b.width, b.y + b.height / 2)}
        if abs(middle[side][0] - x) < 0.2 and abs(middle[side][1] - y) < 0.2:
            return True
    return False


def _apart(boxes: list[Any], gap: float) -> bool:
    """Whether boxes of one height stand apart from one another."""
    rows: dict[float, list[Any]] = {}
    for b in boxes:
        rows.setdefault(b.y, []).append(b)
    ordered = [sorted(row, key=lambda b: b.x) for row in rows.values()]
    return all(a.x + a.width + gap - 0.2 <= b.x for row in ordered for a, b in pairwise(row))


def _drawn_well(text: str, report: Any) -> list[bool]:
    boxes = _boxes(text)
    width, height = map(float, re.findall(r'viewBox="0 0 (\d+) (\d+)"', text)[0])
    pills = [b for b in boxes if b.kind in ("saved", "shared")]
    forward = [b for b in boxes if b not in pills and b.x + b.width < pills[0].x]
    backward = [b for b in boxes if b not in pills and b.x > pills[0].x + pills[0].width]
    edges, savings = _ends(text, "edge"), _ends(text, "saving")
    left, right = [e for e in edges if e[0] < pills[0].x], [e for e in edges if e[0] > pills[0].x]
    rows = sorted(pills, key=lambda b: b.y)
    cut = list(
        map(
            float,
            re.findall(r'<line class="cut" x1="(\d+)" y1="(\d+)" x2="(\d+)" y2="(\d+)"/>', text)[0],
        )
    )
    legend = [
        float(x)
        for x in re.findall(
            r'<rect class="[^"]*" x="(\d+)" y="36" width="20" height="12" rx="[36]"/>', text
        )
    ]
    heads = [
        (float(h), word)
        for h, word in re.findall(r'<text class="head" x="(\d+)" y="\d+">(\w+)', text)
    ]
    into, out = [e for e in savings if e[2] < cut[0]], [e for e in savings if e[0] > cut[0]]
    return [
        len(boxes) == len(pills) + len(forward) + len(backward) and len(pills) == len(report.saved),
        all(
            b.x >= 0 and b.x + b.width <= width and b.y > 60 and b.y + b.height <= height
            for b in boxes
        ),
        _apart(forward, 16.0) and _apart(backward, 16.0) and min(b.x for b in forward) >= 24,
        len(left) + len(right) == len(edges) and all(b.height == 34 for b in boxes),
        all(
            any(abs(e[2] - b.x - b.width / 2) < 0.2 and abs(e[3] - b.y) < 0.2 for e in left)
            for b in forward
            if b.kind != "argument"
        ),
        all(
            e[1] < e[3] and _on(e[0], e[1], forward, "bottom") and _on(e[2], e[3], forward, "top")
            for e in left
        ),
        all(
            e[1] > e[3] and _on(e[0], e[1], backward, "top") and _on(e[2], e[3], backward, "bottom")
            for e in right
        ),
        all(a.y + 40 <= b.y + 0.2 for a, b in pairwise(rows))
        and len({b.width for b in pills}) == 1,
        len(into) == len(pills)
        and all(_on(e[0], e[1], forward, "right") and _on(e[2], e[3], pills, "left") for e in into),
        all(_on(e[0], e[1], pills, "right") and _on(e[2], e[3], backward, "left") for e in out)
        and {e[1] for e in out} == {e[3] for e in into},
        [b.lines[0] for b in pills]
        == ["shared" if v.shares else f"{v.bytes} B" for v in report.saved],
        all(
            b.note.split("\n")[:3] == [v.name, v.source, v.why.value]
            for b, v in zip(pills, report.saved, strict=True)
        ),
        sum(b.kind.startswith("again") for b in backward) == len(report.recomputed),
        all(
            (b.kind == "saved") is (not v.shares) for b, v in zip(pills, report.saved, strict=True)
        ),
        cut[0] == cut[2]
        and abs(cut[0] - pills[0].x - pills[0].width / 2) < 1
        and cut[1] < min(b.y for b in boxes),
        cut[3] > max(b.y + b.height for b in boxes)
        and len(legend) == 7
        and all(a + 60 < b for a, b in pairwise(legend)),
        all(
            abs(b.at[0] - b.x - b.width / 2) < 0.2
            and b.at[0] == b.at[2]
            and b.y < b.at[1] < b.at[3] < b.y + 34
            for b in boxes
        ),
        all(b.width >= 34 and b.width >= 6.4 * max(map(len, b.lines)) for b in boxes),
        len({(b.x, b.y) for b in boxes}) == len(boxes) and report.summary in text,
        [word for _, word in heads] == ["forward", "saved", "backward"] and heads[1][0] == cut[0],
        all(
            abs(h - (min(b.x for b in side) + max(b.x + b.width for b in side)) / 2) < 60
            for (h, _), side in zip(heads[::2], (forward, backward), strict=True)
        ),
    ]


def drawings(x: Tensor) -> Results:
    """Cuts of a chain, of branches that meet again, and of calls with several results: boxes do not
    overlap, lines meet boxes."""
    explain = own("aot.explain")
    if explain is None:
        return beside(x, *[True] * (3 * 21 + 6))
    y, w = plain(x).requires_grad_(), plain(x.cos()).requires_grad_()

    def branches(a: Tensor, b: Tensor) -> Results:
        h = (a @ b).softmax(-1)
        q, r = torch.linalg.qr(h)
        return ((q @ r).sin() * h.t().exp() + h[:, :1]).sum(), h.cumsum(0), a[0].exp()

    chain, wide = explain(lambda a: a.sin().exp().tanh(), y), explain(branches, y, w)
    views = explain(
        own("aot.aot_function")(
            lambda a: ((b := a.exp()) * b.t()).cumprod(0) * a[1:2], own("aot.nop")
        ),
        y,
    )
    found = [flag for report in (chain, wide, views) for flag in _drawn_well(report.svg(), report)]
    column = [b for b in _boxes(chain.svg()) if b.kind.startswith("forward")]
    kinds = [b.kind for b in _boxes(wide.svg())]
    return beside(
        x,
        *found,
        len({b.x + b.width / 2 for b in column}) == 1
        and [b.lines[0] for b in column] == ["sin", "exp", "tanh"],
        [b.lines[1] for b in column] == ["3×3 f64"] * 3 and column[-1].kind == "forward result",
        kinds.count("forward result") == 3 and kinds.count("argument") == 5,
        sum(kind.endswith("result") and kind != "forward result" for kind in kinds) == 2,
        [b.lines[1] for b in _boxes(wide.svg()) if b.lines[0] == "linalg_qr"] == ["2 tensors"],
        any(b.lines[0] == "args[0]" for b in _boxes(wide.svg())),
    )


# --- cuts -----------------------------------------------------------------------------------------


def cuts_by_choice(x: Tensor) -> Results:
    """Cuts that run chosen ops again, by a list of ops, a function, a budget and inputs that cost
    nothing: gradients are the same."""
    y = x * 1
    compiled, cut = own("aot.aot_function"), own("aot.min_cut_rematerialization_partition")

    def f(a: Tensor, b: Tensor) -> Tensor:
        return ((a @ b).sin().exp() @ b.tanh()).softmax(-1)

    options: list[dict[str, Any]] = [
        {"recomputable_ops": [aten.sin]},
        {"recomputable_ops": [aten.mm, aten.sin, aten.cos, aten.t, aten.exp.default]},
        {"may_recompute": lambda n: n.target is aten.tanh.default},
        {"may_recompute": lambda n: True},
        {"memory_budget": 0.0},
        {"memory_budget": 0.7},
        {"static_lifetime_input_indices": [0, 1]},
        {"compiler": "nvfuser"},
    ]
    if compiled is None:
        return *(f(y, y.cos()) for _ in options), *[True] * 8
    made = [compiled(f, own("aot.nop"), partition_fn=partial(cut, **chosen)) for chosen in options]
    leaf, other = plain(x).requires_grad_(), plain(x.cos()).requires_grad_()
    again = [
        {
            r.op.removeprefix("aten.").removesuffix(".default")
            for r in own("aot.explain")(g, leaf, other).recomputed
        }
        for g in made
    ]
    flags = [
        again[0] <= {"sin"},
        {"mm", "exp"} <= again[1] <= {"mm", "sin", "exp", "cos", "t"},
        again[2] <= {"tanh"},
        again[3] > {"mm", "tanh", "_softmax"},
    ]
    refusals = own_refused(
        lambda: cut(None, num_fwd_outputs=1, compiler="c"),
        lambda: cut(None, num_fwd_outputs=1, memory_budget=1.5),
        lambda: cut(None, num_fwd_outputs=1, recomputable_ops=[], may_recompute=lambda n: True),
        lambda: compiled(
            lambda a: a * torch.rand_like(a),
            own("aot.nop"),
            partition_fn=partial(cut, recomputable_ops=[aten.rand_like]),
        )(leaf),
    )
    return *(g(y, y.cos()) for g in made), *flags, *refusals


def cuts_at_checkpoints(x: Tensor) -> Results:
    """Regions of a program that are computed again, with and without a policy, and what
    lies between them."""
    compiled, explain = own("aot.aot_function"), own("aot.explain")
    checkpoint = offered(
        "checkpoint.checkpoint", partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    )
    if compiled is not None:
        checkpoint = partial(checkpoint, use_reentrant=False)
    policy = torch.utils.checkpoint.CheckpointPolicy
    saved = partial(
        torch.utils.checkpoint.create_selective_checkpoint_contexts,
        lambda ctx, op, *args, **kwargs: (
            policy.MUST_SAVE if op is aten.mm.default else policy.PREFER_RECOMPUTE
        ),
    )

    def region(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).sin() @ b.tanh()

    def f(a: Tensor, b: Tensor) -> Tensor:
        first = checkpoint(region, a, b)
        return checkpoint(lambda c: (c @ b).exp().tanh(), first / 9).cumsum(0)  # type: ignore[no-any-return]

    def g(a: Tensor, b: Tensor) -> Tensor:
        return checkpoint(region, a, b, context_fn=saved).sin()  # type: ignore[no-any-return]

    y = x * 1
    if compiled is None:
        return f(y, y.cos()), g(y, y.cos()), *[True] * 3
    own_saved = partial(
        own("checkpoint.create_selective_checkpoint_contexts"),
        lambda ctx, op, *args, **kwargs: (
            own("checkpoint.CheckpointPolicy").MUST_SAVE
            if op is aten.mm.default
            else own("checkpoint.CheckpointPolicy").PREFER_RECOMPUTE
        ),
    )
    saved = own_saved
    made = [
        compiled(h, own("aot.nop"), partition_fn=own("aot.min_cut_rematerialization_partition"))
        for h in (f, g)
    ]
    reports = [explain(h, plain(x).requires_grad_(), plain(x.cos()).requires_grad_()) for h in made]
    whole, chosen = ([v.why.name for v in r.saved] for r in reports)
    flags = [
        "BOUNDARY" in whole,
        sum(r.op == "aten.mm.default" for r in reports[0].recomputed) >= 2,
        "POLICY" in chosen,
    ]
    return *(h(y, y.cos()) for h in made), *flags


def own_cuts(x: Tensor) -> Results:
    """A partition and compilers of one's own: what they are given, how often they are called, and
    the names of the graphs."""
    compiled = own("aot.aot_function")
    f = lambda a, b: (a.sin() * b).exp()  # noqa: E731
    y = plain(x).requires_grad_()
    if compiled is None:
        return beside(
            x,
            f(y, y.cos()).detach(),  # type: ignore[no-untyped-call]
            f(y, y).detach(),  # type: ignore[no-untyped-call]
            f(y.detach(), y.detach()),  # type: ignore[no-untyped-call]
            torch.autograd.grad(f(y, y.detach()).sum(), y),  # type: ignore[no-untyped-call]
            *[True] * 8,
        )
    seen: list[Any] = []

    def cut(joint: Any, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        seen.append(("cut", len(joint.graph.find_nodes(op="placeholder")), num_fwd_outputs))
        return own("aot.default_partition")(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
        )

    def compiler(kind: str) -> Callable[..., Any]:
        def compile(module: Any, examples: list[Any]) -> Any:
            seen.append(
                (
                    kind,
                    len(examples),
                    own("aot.get_aot_graph_name")(),
                    own("aot.get_aot_compilation_context")()[0][0].split("_")[1],
                )
            )
            return module.forward

        return compile

    made = compiled(
        f,
        compiler("f"),
        compiler("b"),
        cut,
        inference_compiler=own("aot.make_boxed_compiler")(compiler("i")),
        num_params_buffers=1,
    )
    found = [made(y, y.detach().cos()), made(y, y.detach()), made(y.detach(), y.detach())]
    found[1].sum().backward()
    kinds = [s[0] for s in seen]
    boxed = own("aot.make_boxed_func")(lambda a, b: a * b)
    given = [y.detach(), y.detach()]
    product, refusals = (
        boxed(given),
        own_refused(
            lambda: compiled(f, lambda module, examples: 3)(y, y),
            lambda: own("aot.aot_module")(f, own("aot.nop")),
        ),
    )
    return beside(
        x,
        *(t.detach() for t in found),
        y.grad,
        kinds == ["cut", "f", "i", "b"],
        seen[0] == ("cut", 3, 1),
        [s[1] for s in seen[1:3]] == [2, 2],
        [s[3] for s in seen[1:]] == ["forward", "inference", "backward"],
        len({s[2] for s in seen[1:]}) == 3 and all(s[2].startswith("model__") for s in seen[1:]),
        bool((product == y * y).all())
        and given == []
        and own("aot.get_aot_compilation_context")()[0] == [],
        *refusals,
    )
