"""An explanation names every saved value with its bytes, its origin and the reason, and counts
what runs again."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.library import Library
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import aot
from runtime.checkpoint import checkpoint, create_selective_checkpoint_contexts

CUT: Any = aot.min_cut_rematerialization_partition
aten: Any = torch.ops.aten


def compiled(f: Any, cut: Any = CUT, **options: Any) -> Any:
    return aot.aot_function(f, aot.nop, partition_fn=cut, **options)


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = x @ w  # the product
    noisy = hidden.sin().tanh() * torch.rand_like(hidden)
    return noisy.sum()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 8), torch.randn(8, 16, requires_grad=True)


class Why:
    """The reasons for which a value is saved, as a report tells them."""

    ARGUMENT = "an argument of the program"
    CLOSED_OVER = "a tensor that the program closes over"
    SIZE = "a size"
    DRAW = "a random draw, which a second run would not repeat"
    UNKNOWN = "no record says that its op is pure"
    POLICY = "a checkpoint policy asks for it"
    BOUNDARY = "it leaves a checkpoint region"
    RESULT = "a result of the forward anyway"
    EXPENSIVE = "its op is expensive to run again"
    FORWARD = "the forward has it, and the partition runs nothing again"


def by_source(report: aot.Explanation) -> dict[str, Any]:
    return {v.source: v for v in report.saved}


def test_each_saved_value_has_its_bytes_shape_and_reason() -> None:
    report = aot.explain(compiled(model), *inputs())
    values = by_source(report)
    x, product = values.pop("args[0]"), values.pop("aten.mm.default")
    draw = values.pop("aten.rand_like.default")
    assert not values
    assert (x.bytes, x.shape, x.dtype, x.why.value, x.line) == (
        4 * 8 * 4,
        (4, 8),
        torch.float32,
        Why.ARGUMENT,
        None,
    )
    assert (product.bytes, product.shape, product.why.value) == (4 * 16 * 4, (4, 16), Why.EXPENSIVE)
    assert draw.why.value == Why.DRAW and draw.shape == (4, 16)
    assert report.saved_bytes == x.bytes + product.bytes + draw.bytes
    assert report.new_bytes == product.bytes + draw.bytes
    assert {r.op for r in report.recomputed} >= {"aten.sin.default"}


def test_the_line_is_the_user_s() -> None:
    product = by_source(aot.explain(compiled(model), *inputs()))["aten.mm.default"]
    assert product.line is not None
    assert product.line.endswith("hidden = x @ w  # the product")
    assert Path(__file__).name in product.line


def test_its_bytes_are_those_that_a_call_saves() -> None:
    saved: list[int] = []

    def counting(module: torch.fx.GraphModule, given: list[Any]) -> Any:
        run = aot.nop(module, given)

        def forward(args: list[Any]) -> Any:
            results = run(args)
            kept = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in results[1:]}
            saved.append(sum(kept.values()))
            return results

        forward._boxed_call = True  # type: ignore[attr-defined]
        return forward

    for cut in (aot.default_partition, CUT, partial(CUT, memory_budget=0)):
        f = aot.aot_function(model, counting, aot.nop, cut)
        x, w = inputs()
        f(x, w)
        assert aot.explain(f, x, w).saved_bytes == saved.pop()


def test_values_in_one_memory_count_once() -> None:
    def viewed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        product = x @ w
        return (product.view(-1) ** 3).sum() + (product.t() @ product).sum()

    report = aot.explain(compiled(viewed, aot.default_partition), *inputs())
    sharing = [v for v in report.saved if v.shares]
    assert sharing
    names = {v.name for v in report.saved}
    assert all(v.shares in names and v.shares != v.name for v in sharing)
    assert report.saved_bytes == sum(v.bytes for v in report.saved if not v.shares)


def test_the_default_partition_runs_nothing_again() -> None:
    report = aot.explain(
        compiled(lambda x: x.sin().exp().sum(), aot.default_partition),
        torch.randn(3, requires_grad=True),
    )
    assert report.recomputed == ()
    assert [v.why.value for v in report.saved] == [Why.ARGUMENT, Why.FORWARD]


def test_parameters_go_by_their_names() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    for f in (net, compiled(net), aot.aot_module(net, aot.nop, partition_fn=CUT)):
        report = aot.explain(f, torch.randn(3, 4))
        assert by_source(report)["2.weight"].why.value == Why.CLOSED_OVER
        assert by_source(report)["args[0]"].why.value == Why.ARGUMENT


def test_a_regions_border_a_policy_and_a_result_are_reasons() -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([aten.mm.default])

    def half(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sin() @ w).cos() * 2

    def bordered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(
            half, checkpoint(half, x, w, use_reentrant=False), w, use_reentrant=False
        )
        return out

    square = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    assert Why.BOUNDARY in {v.why.value for v in aot.explain(compiled(bordered), *square).saved}
    chosen = compiled(lambda x, w: checkpoint(half, x, w, use_reentrant=False, context_fn=contexts))
    assert by_source(aot.explain(chosen, *square))["aten.mm.default"].why.value == Why.POLICY
    result = aot.explain(compiled(lambda x: x.exp()), torch.randn(3, requires_grad=True))
    assert [v.why.value for v in result.saved] == [Why.RESULT]


def test_an_op_without_a_record_is_a_reason() -> None:
    library = Library("explain_tests", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    try:
        double = torch.ops.explain_tests.double
        report = aot.explain(
            compiled(lambda x: double(x.detach()) * x.sin()), torch.randn(3, requires_grad=True)
        )
        assert by_source(report)["explain_tests.double.default"].why.value == Why.UNKNOWN
    finally:
        library._destroy()


def test_sizes_of_a_dynamic_graph_are_numbers() -> None:
    report = aot.explain(
        compiled(lambda x: x.sum(0), dynamic=True), torch.randn(3, 5, requires_grad=True)
    )
    assert {v.why.value for v in report.saved} == {Why.SIZE}
    assert all(v.dtype is None for v in report.saved)
    assert (report.saved_bytes, report.new_bytes) == (2 * 8, 2 * 8), (
        "two numbers, and not the tensor whose sizes they are"
    )
    assert str(report).splitlines()[3] == "    8  sym_size_int: number    aten.sym_size.int  a size"


def test_a_call_without_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="no gradient is wanted"):
        aot.explain(compiled(model), torch.randn(4, 8), torch.randn(8, 16))
    with pytest.raises(ValueError, match="no gradient is wanted"), torch.no_grad():
        aot.explain(compiled(model), *inputs())


def test_explaining_calls_no_compiler_and_changes_nothing() -> None:
    def counted(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return (x * count).sin()

    def refusing(module: torch.fx.GraphModule, given: list[Any]) -> Any:
        raise AssertionError

    count = torch.zeros(())
    aot.explain(
        aot.aot_function(counted, refusing, partition_fn=CUT),
        torch.randn(3, requires_grad=True),
        count,
    )
    assert count == 0


def test_the_text_has_a_row_for_each_value_and_the_totals() -> None:
    report = aot.explain(compiled(model), *inputs())
    text = str(report)
    for v in report.saved:
        assert f"{v.bytes:,}" in text and v.source in text and v.why.value in text
    assert text.startswith("3 values saved, ")
    assert "run again: " in text


def lines_of(report: aot.Explanation) -> list[str]:
    """Those of the text, without the places in this file."""
    return [line.partition(f"{Path(__file__)}:")[0].rstrip() for line in str(report).splitlines()]


def test_the_text_is_a_table() -> None:
    header = "bytes  value                  made by  why                         line"
    row = "   12  primals_1: float32[3]  args[0]  an argument of the program"
    none = aot.explain(compiled(lambda x: x.sin().sum()), torch.ones(3, requires_grad=True))
    text = (
        "1 value saved, 12 B, of which 0 B beside arguments; 0 calls run again; "
        "peak about 32 B beside arguments"
    )
    assert lines_of(none) == [text, "", header, row]
    two = aot.explain(
        compiled(lambda x: x.sin().exp().sin().sum()), torch.ones(3, requires_grad=True)
    )
    text = (
        "1 value saved, 12 B, of which 0 B beside arguments; 2 calls run again; "
        "peak about 44 B beside arguments"
    )
    assert lines_of(two) == [
        text,
        "",
        header,
        row,
        "",
        "run again: aten.sin.default, aten.exp.default",
    ]
    one = aot.explain(compiled(lambda x: x.sin().sin().sum()), torch.ones(3, requires_grad=True))
    assert "; 1 call runs again; " in one.summary


def test_the_text_names_the_memory_of_a_view_and_counts_the_calls_of_an_op() -> None:
    def viewed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        product = x @ w
        return (product.view(-1) ** 3).sum() + (product.t() @ product).sum()

    assert lines_of(aot.explain(compiled(viewed, aot.default_partition), *inputs()))[3:] == [
        (
            "  128  primals_1: float32[4, 8]  args[0]                               "
            "an argument of the program"
        ),
        (
            "  256  mm: float32[4, 16]        aten.mm.default                       its op "
            "is expensive to run again"
        ),
        (
            "in mm  view: float32[64]         aten.view.default of aten.mm.default  its op "
            "is expensive to run again"
        ),
    ]
    report = aot.explain(compiled(lambda x, w: (x @ w).sin().sin().tanh().exp().sum()), *inputs())
    assert (
        lines_of(report)[-1]
        == "run again: aten.sin.default ×2, aten.tanh.default, aten.exp.default"
    )


def test_values_go_by_the_names_of_arguments_and_of_state() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table: Any
            self.register_buffer("table", torch.ones(3))
            self.inner: Any = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.ones(3))})

        def forward(self, x: torch.Tensor) -> Any:
            return x.sin() * self.table + x * self.inner["weight"]

    def sources(f: Any, *args: Any, **kwargs: Any) -> set[str]:
        return {v.source for v in aot.explain(f, *args, **kwargs).saved}

    x, net, outside = torch.ones(3, requires_grad=True), Scale(), torch.ones(3)
    assert sources(net, x) == {"args[0]", "table", "inner.weight"}
    assert sources(compiled(lambda x: net(x)), x) == {
        "args[0]",
        "Scale.table",
        "ParameterDict.weight",
    }
    assert sources(compiled(lambda x: x * outside), x) == {"a tensor from outside"}
    assert sources(compiled(lambda a, *, b: a["k"][1] * b), {"k": [1, torch.ones(3)]}, b=x) == {
        "args[0]['k'][1]"
    }
    assert sources(compiled(lambda a, *, b: a * b["k"]), x, b={"k": torch.ones(3)}) == {
        "kwargs['b']['k']"
    }


def test_arguments_that_share_memory_and_parts_of_a_subclass_have_their_names() -> None:
    def written(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        made = b.sin() * c * outside
        a.add_(1)
        return made

    outside, base, x = torch.ones(3), torch.ones(5), torch.ones(3, requires_grad=True)
    report = aot.explain(compiled(written), base[:3], base[2:], x)
    assert [(v.source, v.why.value) for v in report.saved] == [
        ("a tensor from outside", Why.CLOSED_OVER),
        ("aten.sin.default", Why.FORWARD),
    ]
    assert "arguments that share memory" in report.svg()
    report = aot.explain(
        compiled(lambda a, b: a * b * outside), TwoTensor(torch.ones(3), torch.ones(3)), x
    )
    assert [(v.source, v.why.value) for v in report.saved] == [
        ("args[0].a", Why.ARGUMENT),
        ("args[0].b", Why.ARGUMENT),
        ("a tensor from outside", Why.CLOSED_OVER),
    ]


def test_what_is_shown_of_it_has_no_graphs_and_it_does_not_change() -> None:
    report = aot.explain(compiled(lambda x: x.sin().sin().sum()), torch.ones(3, requires_grad=True))
    assert (
        "forward=" not in repr(report)
        and "backward=" not in repr(report)
        and "_parts" not in repr(report)
        and "_names" not in repr(report)
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.saved_bytes = 0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.recomputed[0].work = 0  # type: ignore[misc]
    assert [(r.name, r.op, r.work, r.line is not None) for r in report.recomputed] == [
        ("sin", "aten.sin.default", 2 * 3 * 4, True)
    ]


def test_a_value_of_a_transform_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        aot.explain(compiled(lambda x: x.sin()), x)
        return x.sum()

    with pytest.raises(ValueError, match="an argument is a value of a transform"):
        runtime.func.grad(f)(torch.ones(3))


def test_a_partition_of_one_s_own_is_explained_by_its_modules() -> None:
    joint = aot.aot_export_joint_simple(
        lambda x: [x.sin().exp()], [torch.randn(3, requires_grad=True)], trace_joint=True
    )
    forward, backward = CUT(joint, num_fwd_outputs=1)
    report = aot.Explanation.of(joint, forward, backward, num_fwd_outputs=1, names=["signal"])
    assert {v.source for v in report.saved} >= {"signal"}
    other = aot.make_fx(lambda x: [x.sin(), x.tan()])(torch.randn(3))
    with pytest.raises(ValueError, match="does not have by that name"):
        aot.Explanation.of(joint, other, backward, num_fwd_outputs=1)


SVG = "{http://www.w3.org/2000/svg}"


def boxes(text: str, kind: str) -> list[Any]:
    return [
        r
        for r in ElementTree.fromstring(text).iter(f"{SVG}rect")
        if kind in r.get("class", "").split()
    ]


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_the_drawing_shows_every_saved_value_and_what_runs_again(
    tmp_path: Path, budget: float
) -> None:
    net = torch.nn.Sequential(
        *(
            layer
            for _ in range(3)
            for layer in (torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
        )
    )
    report = aot.explain(compiled(net, partial(CUT, memory_budget=budget)), torch.randn(64, 8))
    text = report.svg(tmp_path / "cut.svg")
    assert (tmp_path / "cut.svg").read_text() == text
    legend = 1
    assert len(boxes(text, "saved")) + len(boxes(text, "shared")) == len(report.saved) + 2 * legend
    assert len(boxes(text, "again")) == len(report.recomputed) + legend
    for v in report.saved:
        assert v.source.replace("aten.", "").replace(".default", "") in text


def test_boxes_of_a_drawing_do_not_overlap() -> None:
    net = torch.nn.Sequential(
        *(
            layer
            for _ in range(3)
            for layer in (torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
        )
    )
    text = aot.explain(net, torch.randn(64, 8)).svg()
    places = []
    for kind in ("box", "saved", "shared"):
        places += [
            tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in boxes(text, kind)
        ]
    for i, (x, y, w, h) in enumerate(places):
        for x2, y2, w2, h2 in places[:i]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_a_program_of_the_session_is_explained_like_a_plain_one() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    assert [v.why.value for v in aot.explain(lambda x: (x * x).sum(), x).saved] == [Why.ARGUMENT]
