"""`assert_same` passes right results, fails wrong ones, and does not pass a comparison
that proves nothing."""

from typing import Any

import pytest
import torch

from gen.checks import Family, known
from gen.outcomes import Lacking, Mismatch, Vacuous
from gen.targets.torch_target import TorchTarget
from tests.checks import cells

OWN: dict[str, dict[str, Any]] = {
    "own.scale": {
        "call": "tests.checks.test_case:scale",
        "reference": "tests.checks.test_case:scale_by_loop",
        "samples": [
            {"args": [{"shape": [2, 3]}, {"shape": [3], "domain": "positive"}]},
            {"args": [{"shape": [4, 1]}, {"shape": [1]}]},
        ],
        "errors": [
            {
                "args": [{"shape": [2, 3]}, {"shape": [2]}],
                "raises": "RuntimeError",
                "match": "must match the size",
            }
        ],
    },
    "own.wrong": {
        "call": "tests.checks.test_case:scale",
        "reference": "tests.checks.test_case:scale_wrongly",
        "samples": [{"args": [{"shape": [2, 3]}, {"shape": [3]}]}],
    },
    "own.empty": {"call": "torch:sin", "samples": [{"args": [{"shape": [0]}]}]},
    "own.integers": {
        "call": "torch:sin",
        "samples": [{"args": [{"shape": [3], "requires_grad": False}]}],
    },
    "own.constant": {"call": "torch:floor", "samples": [{"args": [{"shape": [3]}]}]},
    "own.random": {"call": "torch:rand_like", "samples": [{"args": [{"shape": [3]}]}]},
    "torch.ops.aten.rand_like.default": {
        "samples": [{"args": [{"shape": [3]}]}, {"args": [{"shape": [0]}]}]
    },
    "own.jumps": {
        "call": "torch:relu",
        "samples": [{"args": [{"shape": [3], "low": 0.0, "high": 1e-300}]}],
    },
}


def scale(x: Any, weight: Any) -> Any:
    return x * weight


def scale_by_loop(x: Any, weight: Any) -> Any:
    rows = [
        [float(x[i, j]) * float(weight[j]) for j in range(x.shape[1])] for i in range(x.shape[0])
    ]
    return torch.tensor(rows, dtype=x.dtype)


def scale_wrongly(x: Any, weight: Any) -> Any:
    return scale_by_loop(x, weight) * 1.001


def case(op: str = "torch.mul", dtype: str = "float64", target: Any = None, **more: Any) -> Any:
    """Return a cell of an op of torch or of a row above."""
    return cells.case(op, dtype, target, family=Family("tests of a case", OWN), **more)


class Corrupted(TorchTarget):
    """A target one of whose transforms is off by a factor."""

    def __init__(self, method: Any, factor: Any = 1.001) -> None:
        super().__init__()
        self.method, self.factor = method, factor

    def vjp(self, f: Any, *primals: Any) -> Any:
        outputs, pullback = super().vjp(f, *primals)
        return (
            outputs,
            lambda v: (
                tuple(g * self.factor for g in pullback(v)) if self.method == "vjp" else pullback(v)
            ),
        )

    def jvp(self, f: Any, primals: Any, tangents: Any) -> Any:
        outputs, pushed = super().jvp(f, primals, tangents)
        return outputs, tuple(t * self.factor for t in pushed) if self.method == "jvp" else pushed

    def vmap(self, f: Any, in_dims: Any, out_dims: Any = 0) -> Any:
        mapped = super().vmap(f, in_dims)
        return lambda *args: (
            tuple(y[:1].expand(y.shape) for y in mapped(*args))
            if self.method == "vmap"
            else mapped(*args)
        )

    def trace(self, f: Any, args: Any, *, dynamic: Any) -> Any:
        if self.method != "trace":
            return super().trace(f, args, dynamic=dynamic)
        baked = tuple(f(*args))
        return super().trace(lambda *xs: baked, args, dynamic=dynamic)


PIPELINES = """
vjp, jvp, vmap, grad, jacrev, jacfwd, hessian, functionalize, trace, aot.joint, vjp . vjp, vmap . \
vjp, vjp . vmap, jvp . vjp, vmap . vmap,
vmap . jvp . vjp, vjp . vmap . vmap, trace . vjp, backward . aot.function, aot.export, aot.saved, \
trace . vmap, aot.joint . vmap
"""


@pytest.mark.parametrize("pipeline", [text.strip() for text in PIPELINES.split(",")])
def test_torch_passes(pipeline: Any) -> None:
    made = case()
    made.assert_same(pipeline, against="loop")
    assert made.compared >= 2


@pytest.mark.parametrize(
    ("method", "pipeline", "against"),
    [
        ("vjp", "vjp", "upstream"),
        ("vjp", "vjp", "numeric"),
        ("vjp", "vmap . vjp", "loop"),
        ("vjp", "vjp . vjp", "numeric"),
        ("jvp", "jvp", "upstream"),
        ("jvp", "jvp", "numeric"),
        ("vmap", "vmap", "loop"),
        ("vmap", "vjp . vmap", "loop"),
        ("trace", "trace", "eager"),
    ],
)
def test_a_corrupted_target_fails(method: Any, pipeline: Any, against: Any) -> None:
    with pytest.raises(Mismatch, match="largest error"):
        case(target=Corrupted(method)).assert_same(pipeline, against=against)


class Forgetful(TorchTarget):
    """What it compiles or captures works on copies of its arguments, so writes are lost."""

    def compiled(self, f: Any, *, partition: Any, dynamic: Any) -> Any:
        made = super().compiled(f, partition=partition, dynamic=dynamic)
        return lambda *args: made(*(x.clone() for x in args))

    def trace(self, f: Any, args: Any, *, dynamic: Any) -> Any:
        return super().trace(lambda *xs: f(*(x.clone() for x in xs)), args, dynamic=dynamic)


WRITES = ["trace", "aot.export", "aot.saved", "backward . aot.function"]


@pytest.mark.parametrize("pipeline", WRITES)
@pytest.mark.parametrize("shapes", ["static", "dynamic"])
def test_torch_writes_to_the_arguments_of_a_program(pipeline: Any, shapes: Any) -> None:
    made = case("torch.sin", axes={"shapes": shapes})
    made.assert_same(pipeline, against="eager", form="argument_inplace")
    assert made.compared


@pytest.mark.parametrize("pipeline", ["trace", "backward . aot.function"])
def test_a_write_that_does_not_reach_the_argument_is_a_mismatch(pipeline: Any) -> None:
    with pytest.raises(Mismatch, match="largest error"):
        case("torch.sin", target=Forgetful()).assert_same(
            pipeline, against="eager", form="argument_inplace"
        )


def test_a_graph_is_not_compared_at_a_size_that_its_guards_exclude() -> None:
    with pytest.raises(Vacuous, match="by its guards the graph is not for another size"):
        # takes its sizes as numbers
        case("torch.kron", axes={"shapes": "dynamic"}).assert_same("trace", against="eager")


@pytest.mark.parametrize("pipeline", ["trace", "aot.export", "backward . aot.function"])
def test_random_ops_draw_the_same_numbers_in_a_graph_as_outside(pipeline: Any) -> None:
    case("torch.nn.functional.dropout").assert_same(pipeline, against="eager")


class Stale(TorchTarget):
    """A compiled function that returns for ever what its first call returned."""

    def compiled(self, f: Any, *, partition: Any, dynamic: Any) -> Any:
        first: list[Any] = []

        def g(*args: Any) -> Any:
            first.extend([] if first else f(*args))
            return tuple(first)

        return g


def test_a_compiled_function_is_compared_on_other_values_than_its_first() -> None:
    with pytest.raises(Mismatch, match="largest error"):
        case(target=Stale()).assert_same("aot.function", against="eager")


def test_every_failing_sample_is_handed_over() -> None:
    seen: list[Any] = []
    made = case(target=Corrupted("vjp"))
    made.on_failures = seen.extend
    made.assert_same("vjp", against="upstream")
    assert [failure.sample for failure in seen] == list(range(made.compared))
    assert all(failure.description.startswith("float64[") for failure in seen)


def test_one_sample_alone() -> None:
    made = case(only=1)
    made.assert_same("vjp", against="upstream")
    assert made.compared == 1


def test_a_lacking_stage_is_named() -> None:
    class Poor(TorchTarget):
        lacks = frozenset({"aot.joint", "jvp"})

    for pipeline in ("aot.joint", "vmap . jvp"):
        with pytest.raises(Lacking, match=r"target torch lacks (aot\.joint|jvp)"):
            case(target=Poor()).assert_same(pipeline, against="loop")


def test_own_reference_and_own_errors() -> None:
    case("own.scale").assert_same("forward", against=("reference", "float64"))
    case("own.scale").assert_same("forward", against="raises")
    with pytest.raises(Mismatch, match="largest error"):
        case("own.wrong").assert_same("forward", against=("reference", "float64"))


def test_opinfo_errors() -> None:
    case("torch.gather").assert_same("forward", against="raises")


@pytest.mark.parametrize(
    ("op", "pipeline", "against", "message"),
    [
        ("torch.mul", "forward", "float64", "compared with itself"),
        ("own.empty", "vjp", "upstream", "every sample is empty"),
        ("own.integers", "vjp", "upstream", "no differentiable input"),
        ("own.constant", "vjp", "upstream", "zero on both sides"),
        ("own.constant", "vjp . vjp", "upstream", "depends differentiably"),
        ("own.random", "vmap", "loop", "draws random numbers"),
        ("own.jumps", "vjp", "numeric", "nothing was compared"),
        ("own.scale", "vjp", "reference", "no transforms"),
        ("own.scale", "forward", "raises", None),
    ],
)
def test_what_shows_nothing_does_not_pass(
    op: Any, pipeline: Any, against: Any, message: Any
) -> None:
    if message is None:
        case(op).assert_same(pipeline, against=against)
        return
    with pytest.raises(Vacuous, match=message):
        case(op).assert_same(pipeline, against=against)


def test_a_vanishes_entry_lets_zeros_pass_and_fails_where_they_are_none() -> None:
    entries = {"flat": known("vanishes", reason="piecewise constant")}
    case("own.constant", entries=entries).assert_same("vjp", against="upstream")
    with pytest.raises(Mismatch, match="remove the entry or narrow it"):
        case("torch.mul", entries=entries).assert_same("vjp", against="upstream")


def test_a_tolerance_entry_is_used() -> None:
    loose = {"loose": known("tolerance", reason="for the test", rtol=0.01, atol=0.01)}
    case(target=Corrupted("vjp"), entries=loose).assert_same("vjp", against="upstream")


def test_random_ops_are_compared_under_one_seed() -> None:
    case("own.random").assert_same("forward", against="eager")


def test_each_element_of_a_batch_has_a_draw_of_its_own() -> None:
    case("torch.ops.aten.rand_like.default").assert_same("vmap", against="loop")
    with pytest.raises(Mismatch, match="share a draw"):
        case("torch.ops.aten.rand_like.default", target=Corrupted("vmap")).assert_same(
            "vmap", against="loop"
        )
    with pytest.raises(Vacuous, match="draws random numbers"):
        case("torch.ops.aten.rand_like.default").assert_same("vmap . vmap", against="loop")


@pytest.mark.parametrize("form", ["inplace", "view_inplace"])
@pytest.mark.parametrize("pipeline", ["forward", "vjp", "vmap", "jvp"])
def test_in_place_forms_equal_the_functional_op(form: Any, pipeline: Any) -> None:
    case().assert_same(pipeline, against="upstream", form=form)


def test_out_is_written_whether_or_not_it_has_the_right_shape() -> None:
    case().assert_same("forward", against="eager", form="out")


@pytest.mark.parametrize("pipeline", ["vjp", "jvp", "vmap"])
def test_writing_to_data_raises(pipeline: Any) -> None:
    case().assert_same(pipeline, against="raises", form="data_write")


@pytest.mark.parametrize("layout", ["transposed", "noncontiguous", "expanded"])
def test_layouts(layout: Any) -> None:
    case().assert_same("vjp", against="upstream", layout=layout)


def test_extreme_values() -> None:
    case().assert_same("vjp", against="upstream", values="extreme")


def test_an_axis_of_the_case_wins_over_the_argument() -> None:
    seen: list[bool] = []

    class Watching(TorchTarget):
        def vjp(self, f: Any, *primals: Any) -> Any:
            seen.extend(x.is_contiguous() for x in primals if x.ndim > 1)
            return super().vjp(f, *primals)

    made = case(target=Watching(), axes={"layout": "contiguous"})
    made.assert_same("vjp", against="upstream", layout="transposed")
    assert seen and all(seen)
    seen.clear()
    case(target=Watching()).assert_same("vjp", against="upstream", layout="transposed")
    assert not all(seen)


def test_a_word_that_no_axis_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no word 'no_such_layout' of axis layout; known: contig"):
        case().assert_same("vjp", against="upstream", layout="no_such_layout")


@pytest.mark.parametrize(
    "axes", [{"shapes": "dynamic"}, {"shapes": "static", "partition": "min_cut"}]
)
def test_joint_graphs(axes: Any) -> None:
    case("torch.nn.functional.layer_norm", axes=axes).assert_same("aot.joint", against="eager")


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_per_sample_gradients(reduction: Any) -> None:
    axes = {"loss_reduction": reduction, "input_grad": "with_input_grad"}
    case("torch.nn.functional.linear", axes=axes).assert_same("per_sample", against="loop")


def test_bfloat16_is_judged_by_float64() -> None:
    case(dtype="bfloat16").assert_same("vjp . vjp", against="upstream")


def test_the_seed_depends_on_the_case_alone() -> None:
    assert case().seed == case().seed
    assert case().seed != case(dtype="float32").seed


def test_a_row_that_moved_makes_the_choices_of_its_former_name() -> None:
    moved = case("math.floor")
    moved.family = Family(moved.family.name, {"math.floor": {"former_name": "torch.mul"}})
    assert moved.seed == case("torch.mul").seed != case("math.floor").seed


def test_an_op_or_dtype_that_this_torch_lacks_is_skipped_by_name() -> None:
    with pytest.raises(Lacking, match=r"this torch has no torch\.gone"):
        case("torch.gone").assert_same("forward", against="eager")
    OWN["torch.ops.aten.gone.default"] = {"samples": [{"args": [{"shape": [3]}]}]}
    with pytest.raises(Lacking, match=r"has no torch\.ops\.aten\.gone\.default"):
        case("torch.ops.aten.gone.default").assert_same("forward", against="eager")
    with pytest.raises(Lacking, match=r"has no torch\.special\.erfcx of complex128"):
        case("torch.special.erfcx", "complex128").assert_same("forward", against="eager")


def test_a_derivative_that_this_torch_lacks_is_skipped_by_name() -> None:
    """As those of nextafter in torch 2.12."""
    case("torch.heaviside").assert_same("vmap", against="eager")
    for pipeline in ("vjp", "vmap . jvp", "aot.joint"):
        with pytest.raises(Lacking, match=r"has no derivative of torch\.heaviside of float64"):
            case("torch.heaviside").assert_same(pipeline, against="eager")
