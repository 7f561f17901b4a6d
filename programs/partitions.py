"""Programs that ask what a cut of a joint graph saves, choose another cut, and draw it. Only a
target has such cuts: the reference has the numbers and facts that are written here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gen.targets.parts import offered
from programs.pictures.drawing import boxes_of, claims
from programs.tools import Results, beside, own, own_refused, plain

F = nn.functional
aten = torch.ops.aten


def explained(x: Tensor) -> Results:
    """Ask what cuts save and run again, in bytes, and why."""
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
    return beside(
        x,
        *_saved_and_recomputed(report),
        *_differences_of_cuts(report, default, least),
        *_sources(of_module, drawn),
        *_text_claims(report),
        [value.shape for value in report.saved] == [(3, 3), (3, 3)]
        and all(value.dtype is torch.float64 for value in report.saved),
    )


def _saved_and_recomputed(report: Any) -> list[bool]:
    """Return whether the product is saved, and the cheap calls after it run again."""
    saved = [(value.source, value.bytes, value.why.name, value.shares) for value in report.saved]
    recomputed = [(call.op, call.name) for call in report.recomputed]
    return [
        saved == [("args[1]", 72, "ARGUMENT", None), ("aten.mm.default", 72, "EXPENSIVE", None)],
        recomputed == [("aten.sin.default", "sin"), ("aten.exp.default", "exp")],
        (report.saved_bytes, report.new_bytes) == (144, 72),
    ]


def _differences_of_cuts(report: Any, default: Any, least: Any) -> list[bool]:
    """Return whether the default cut saves more, and a budget of 0 saves less."""
    reasons = [value.why.name for value in default.saved]
    return [
        reasons.count("FORWARD") == 1 and default.recomputed == (),
        default.saved_bytes == 216 and default.new_bytes == 144,
        least.peak_bytes <= report.peak_bytes <= default.peak_bytes,
        "mm.default" in str(least) or least.saved_bytes <= report.saved_bytes,
    ]


def _sources(of_module: Any, drawn: Any) -> list[bool]:
    """Return whether saved values name their source: an argument, a call or a draw."""
    sources = {value.source for value in of_module.saved}
    return [
        sources >= {"args[0]", "aten.tanh.default"} or "0.weight" in str(of_module),
        [(value.source, value.why.name) for value in drawn.saved]
        == [("aten.rand_like.default", "DRAW")],
    ]


def _text_claims(report: Any) -> list[bool]:
    """Return whether the text of a report has a summary, the calls and the user's line."""
    text = str(report)
    summary = (
        "2 values saved, 144 B, of which 72 B beside arguments; 2 calls run again; peak about "
    )
    filled_lines = [line for line in text.splitlines() if line.split()]
    return [
        text.startswith(summary),
        "run again: aten.sin.default, aten.exp.default" in text and "partitions.py" in text,
        len(filled_lines) == 5,
    ]


# --- drawings -------------------------------------------------------------------------------------


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

    def products(a: Tensor) -> Tensor:
        exponential = a.exp()
        return (exponential * exponential.t()).cumprod(0) * a[1:2]

    chain, wide = explain(lambda a: a.sin().exp().tanh(), y), explain(branches, y, w)
    views = explain(own("aot.aot_function")(products, own("aot.nop")), y)
    found = [flag for report in (chain, wide, views) for flag in claims(report.svg(), report)]
    return beside(x, *found, *_chain_claims(chain.svg()), *_branch_claims(wide.svg()))


def _chain_claims(text: str) -> list[bool]:
    """Return whether the calls of a chain stand below one another, with their results."""
    column = [box for box in boxes_of(text) if box.kind.startswith("forward")]
    names, types = [box.lines[0] for box in column], [box.lines[1] for box in column]
    return [
        len({box.centre for box in column}) == 1 and names == ["sin", "exp", "tanh"],
        types == ["3×3 f64"] * 3 and column[-1].kind == "forward result",
    ]


def _branch_claims(text: str) -> list[bool]:
    """Return whether results, arguments and calls with several results are drawn as such."""
    boxes = boxes_of(text)
    kinds = [box.kind for box in boxes]
    other_results = [kind for kind in kinds if kind.endswith("result") and kind != "forward result"]
    qr = [box for box in boxes if box.lines[0] == "linalg_qr"]
    return [
        kinds.count("forward result") == 3 and kinds.count("argument") == 5,
        len(other_results) == 2,
        [box.lines[1] for box in qr] == ["2 tensors"],
        any(box.lines[0] == "args[0]" for box in boxes),
    ]


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
