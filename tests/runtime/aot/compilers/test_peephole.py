"""Rewrites of graphs before they run: results are bitwise the same, and no tensor is overwritten
that may still be read."""

import copy
import operator
from typing import Any

import pytest
import torch
from torch import fx, nn

import runtime
from runtime import aot
from runtime.aot.compilers.peephole import rewritten

from .rewritten_graphs import rewrites, runs

aten = torch.ops.aten


def _traced(f: Any, *args: torch.Tensor) -> fx.GraphModule:
    """The forward graph of ``f``, run once on plain tensors."""
    modules: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        modules.append(module)
        return aot.nop(module, inputs)

    aot.aot_function(f, keep)(*args)
    return modules[0]


def _targets(f: Any, *args: torch.Tensor) -> list[Any]:
    return [
        n.target for n in rewritten(_traced(f, *args).graph)[0].nodes if n.op == "call_function"
    ]


def _same_bits(f: Any, *args: torch.Tensor) -> None:
    before = [a.clone() for a in args]
    ours, theirs = aot.aot_function(f, aot.nop)(*args), f(*args)
    for a, b in zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]:
        assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


X, Y = torch.randn(4, 3), torch.randn(4, 3)


def test_a_dead_intermediate_is_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * y).tanh() + y

    assert _targets(f, X, Y) == [aten.mul.Tensor, aten.tanh_.default, aten.add_.Tensor]
    _same_bits(f, X, Y)


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x, y: x.tanh(), id="an argument"),
        pytest.param(lambda x, y: x.view(12).tanh(), id="a view of an argument"),
        pytest.param(lambda x, y: (u := x * y, u.tanh()), id="a result"),
        pytest.param(lambda x, y: ((u := x * y).t(), u.tanh()), id="what a result is a view of"),
        pytest.param(lambda x, y: ((u := x * y).tanh(), u + 1), id="what is used later"),
        pytest.param(
            lambda x, y: ((u := x * y).t(), u.tanh())[0] + x.t(),
            id="what a view that is used later shows",
        ),
        pytest.param(lambda x, y: (x[0] * y[0]).expand(4, 3).tanh(), id="an expanded buffer"),
        pytest.param(lambda x, y: (x[:1] * y[:1]) + y, id="a buffer that is too small"),
        pytest.param(lambda x, y: (x * y).gt(0), id="a buffer of another dtype"),
        pytest.param(lambda x, y: (x.to(torch.float16) * 2) + y, id="a buffer of a narrower dtype"),
        pytest.param(lambda x, y: (x.t().contiguous().t() * 1).mul(y).split(2), id="pieces"),
    ],
)
def test_what_somebody_may_still_read_is_not_written_over(f: Any) -> None:
    _same_bits(f, X, Y)


def test_what_the_backward_needs_is_not_written_over() -> None:
    x = runtime.wrap(X, requires_grad=True)
    reference = X.clone().requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).exp().sigmoid() * x).tanh().square().mean()

    aot.aot_function(f, aot.nop)(x).backward()
    f(reference).backward()
    torch.testing.assert_close(runtime.unwrap(x.grad), reference.grad)


def test_a_buffer_that_is_both_operands_is_written_over_once() -> None:
    def f(x: torch.Tensor) -> Any:
        u = x + 1
        return u * u

    assert _targets(f, X) == [aten.add.Tensor, aten.mul_.Tensor]
    _same_bits(f, X)


@pytest.mark.parametrize("number", [2, 0.1, -0.0, float("inf"), 1 << 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic_with_a_number_gives_the_same_bits(number: float, dtype: torch.dtype) -> None:
    _same_bits(lambda x: (x * number, x + number, x - number, x / number), X.to(dtype))
    _same_bits(lambda x: (x.sum() * number, x.sum() / 3), X.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.complex64])
def test_numbers_beside_tensors_of_other_dtypes_stay_numbers(dtype: torch.dtype) -> None:
    x = (8 * X).to(dtype)
    nodes = rewritten(_traced(lambda x: x * 0.1, x).graph)[0].nodes
    assert [n.args[1] for n in nodes if n.op == "call_function"] == [0.1]
    _same_bits(lambda x: (x * 0.1, x + 3), x)


def test_a_square_is_a_product_of_the_same_bits() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.square()

    assert _targets(f, X) == [aten.mul.Tensor]
    _same_bits(f, 1e3 * X)
    _same_bits(f, X.double())


def test_the_second_of_two_that_commute_is_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x[0] * y.tanh(), x - y.sin()

    assert [t for t in _targets(f, X, Y) if t is not aten.select.int] == [
        aten.tanh.default, aten.mul_.Tensor, aten.sin.default, aten.sub.Tensor,
    ]  # fmt: skip
    _same_bits(f, X, Y)


def test_a_scaled_second_term_is_not_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.add(x, y.tanh(), alpha=3)

    assert _targets(f, X, Y) == [aten.tanh.default, aten.add.Tensor]
    _same_bits(f, X, Y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (10, 32), (1001,), (3, 0)], ids=str)
def test_a_mean_is_a_divided_sum_of_the_same_bits(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, dtype=dtype)
    assert _targets(torch.mean, x) == (
        [aten.sum.default, aten.div_.Tensor] if x.numel() else [aten.mean.default]
    )
    mean = torch.mean(x)
    assert torch.equal(aot.aot_function(torch.mean, aot.nop)(x), mean) or (
        x.numel() == 0 and mean.isnan()
    )


@pytest.mark.parametrize(
    "f", [lambda x: x.half().mean(), lambda x: x.mean(0), lambda x: x.mean(dtype=torch.float64)]
)
def test_other_means_stay(f: Any) -> None:
    assert not {aten.sum.default, aten.div_.Tensor} & set(_targets(f, X))
    _same_bits(f, X)


def test_what_was_expanded_for_a_product_is_not() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.expand(4, 3) * y

    assert _targets(f, X[0], Y) == [aten.mul.Tensor]
    _same_bits(f, X[0], Y)


def test_an_expanded_tensor_that_gives_a_result_its_shape_stays() -> None:
    row = X[0].clone()

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.expand(4, 3) * y, x.expand(4, 3) + x.expand(4, 3)

    assert _targets(f, row, row)[0] is aten.expand.default
    _same_bits(f, row, row)
    _same_bits(lambda x, y: x.expand(4, 3) * y, row, Y.double())


def test_a_layer_with_bias_is_one_call_of_linear() -> None:
    given = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
    assert _targets(torch.nn.functional.linear, *given) == [torch._C._nn.linear]
    _same_bits(torch.nn.functional.linear, *given)


def test_the_graph_that_a_compiler_holds_is_left_as_it_is() -> None:
    graph = _traced(
        torch.nn.functional.linear, torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)
    ).graph
    rewritten(graph)
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [
        aten.t.default,
        aten.addmm.default,
    ]


def test_a_transposed_weight_that_something_else_uses_stays() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        turned = w.t()
        return torch.addmm(b, x, turned), turned + 1

    given = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
    assert _targets(both, *given) == [aten.t.default, aten.addmm.default, aten.add.Tensor]
    _same_bits(both, *given)


def test_a_product_that_is_scaled_is_no_layer() -> None:
    given = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
    _same_bits(lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2), *given)


def test_a_cotangent_that_is_used_up_takes_the_gradient_of_relu() -> None:
    backwards: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        backwards.append(module)
        return aot.nop(module, inputs)

    x = runtime.wrap(X, requires_grad=True)
    aot.aot_function(lambda x: (torch.relu(x) * x).sum(), aot.nop, keep)(x).backward()
    assert aten.threshold_backward.grad_input in [
        n.target for n in rewritten(backwards[0].graph)[0].nodes
    ]
    torch.testing.assert_close(runtime.unwrap(x.grad), 2 * X.clamp(min=0))


def test_one_of_several_results_of_a_call_is_written_over() -> None:
    images, weight, mean, var = (
        torch.randn(2, 3, 4, 4),
        torch.ones(3),
        torch.zeros(3),
        torch.ones(3),
    )

    def f(x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        normalized, *statistics = aten._native_batch_norm_legit_functional(
            x, w, w, mean, var, True, 0.1, 1e-5
        )
        return torch.relu(normalized), statistics[0], statistics[2]

    targets = [t for t in _targets(f, images, weight, mean, var) if t is not operator.getitem]
    assert targets == [aten._native_batch_norm_legit_functional.default, aten.relu_.default]
    _same_bits(f, images, weight, mean, var)


def test_one_of_several_results_that_is_used_later_is_not_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        normalized, mean, _ = aten.native_layer_norm(x, [3], None, None, 1e-5)
        return torch.relu(normalized), normalized * y, mean

    assert aten.relu_.default not in _targets(f, X, Y)
    _same_bits(f, X, Y)


def test_an_item_that_two_nodes_name_is_not_written_over() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    several = graph.call_function(aten.native_layer_norm.default, (x, [3], None, None, 1e-5))
    first, again = (graph.call_function(operator.getitem, (several, 0)) for _ in range(2))
    for n, value in ((x, X), (first, X), (again, X)):
        n.meta["val"] = value.to("meta")
    relu = graph.call_function(aten.relu.default, (first,))
    relu.meta["val"] = X.to("meta")
    graph.output([relu, again])
    assert aten.relu.default in [n.target for n in rewritten(graph)[0].nodes]


def test_the_gradients_of_a_convolution_and_a_pooling_are_written_over() -> None:
    """The backward of convolution, batch norm, relu and pooling, twice: each gradient of relu
    overwrites the cotangent that it takes."""
    backwards: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        backwards.append(module)
        return aot.nop(module, inputs)

    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.Conv2d(4, 1, 1))
    reference = copy.deepcopy(model)
    images = torch.randn(2, 2, 12, 12)
    aot.aot_module(model, aot.nop, keep)(images).sum().backward()
    reference(images).sum().backward()
    targets = [n.target for n in rewritten(backwards[0].graph)[0].nodes]
    assert (
        targets.count(aten.threshold_backward.grad_input) == 2
        and aten.threshold_backward.default not in targets
    )
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (
            mine.grad is not None
            and theirs.grad is not None
            and torch.equal(mine.grad, theirs.grad)
        )


def test_a_result_is_written_by_the_overload_for_its_types() -> None:
    """``rsub`` has an ``out=`` form for numbers and one for tensors, of the same names."""

    def f(x: torch.Tensor) -> Any:
        return aten.rsub.Scalar(x * x, 2.0)

    (written,) = (
        n.target for n in rewritten(_traced(f, X).graph)[0].nodes if "rsub" in str(n.target)
    )
    assert written == aten.rsub.Scalar_out
    _same_bits(f, X)


@pytest.mark.parametrize(
    "number, call",
    [
        (1 << 24, torch.Tensor),
        (-(1 << 24), torch.Tensor),
        (1 << 24 | 1, int),
        (0.5, torch.Tensor),
        (True, bool),
    ],
)
def test_integers_of_float32_become_tensors(number: Any, call: type) -> None:
    (n,) = (n for n in rewrites(lambda x: x + number, (3,)).nodes if n.op == "call_function")
    assert isinstance(n.args[1], call)


def test_a_mean_is_a_sum_as_long_as_its_length_is_a_number_of_float32() -> None:
    assert runs(torch.mean, (1 << 12, 1 << 12)) == ["sum", "div_"]
    assert runs(torch.mean, ((1 << 24) + 1,)) == ["mean"]
    assert runs(torch.mean, (1,)) == ["sum", "div_"] and runs(torch.mean, (0,)) == ["mean"]


def test_numbers_lie_on_the_processor_whatever_the_default_device_is() -> None:
    graph = _traced(lambda x: (x * 0.1) / 3, X).graph
    with torch.device("meta"):
        found = rewritten(graph)[0]
    numbers = [a for n in found.nodes for a in n.args if isinstance(a, torch.Tensor)]
    assert [(t.device.type, t.item()) for t in numbers] == [
        ("cpu", pytest.approx(0.1)),
        ("cpu", 3.0),
    ]


def test_rewrites_of_single_calls_are_right_for_every_size_of_a_graph() -> None:
    def f(x: torch.Tensor, row: torch.Tensor) -> Any:
        return x.mean(), x.square() * 2, row.expand(x.shape[0], 3) * x, x.double().mean() / 3

    compiled = aot.aot_function(f, aot.nop, dynamic=True)
    for n in (4, 5, 7):
        x, row = torch.randn(n, 3), torch.randn(3)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x, row), f(x, row), strict=True))


def test_in_a_graph_that_writes_single_calls_are_rewritten_and_none_is_moved() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = torch.addmm(b, x, w.t())
        x.mul_(2)
        return [y, x.sin(), b.sin(), x.clone() + 1, x.square().mean() / 1, b[:3].expand(4, 3) * x]

    shapes = (4, 3), (5, 3), (5,)
    assert runs(f, *shapes) == [
        "linear",
        "mul_",
        "sin",
        "sin",
        "clone",
        "add_",
        "mul",
        "sum",
        "div_",
        "div_",
        "slice",
        "mul",
    ]
    before = torch.ones(4, 3)
    graph = aot.make_fx(f)(before.clone(), torch.ones(5, 3), torch.ones(5)).graph
    found = fx.Interpreter(nn.Module(), graph=rewritten(graph)[0]).run(
        before.clone(), torch.ones(5, 3), torch.ones(5)
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(found, f(before.clone(), torch.ones(5, 3), torch.ones(5)), strict=True)
    )


IMAGES = (8, 16, 32, 32)


@pytest.mark.parametrize(
    "f, sizes, expected",
    [
        pytest.param(
            lambda x: x * torch.zeros(4, 3).exp().neg(),
            [(4, 3)],
            ["exp", "neg_", "mul_"],
            id="a constant that calls take",
        ),
        pytest.param(lambda x: x @ torch.ones(3).diag_embed(), [(4, 3)], ["mm"], id="constants"),
        pytest.param(lambda x: x.sin() * x.sin(), [(4, 3)], ["sin", "mul_"], id="repetitions"),
        pytest.param(lambda x: x.clone().sin(), [(4, 3)], ["sin"], id="copies"),
        pytest.param(lambda x: x.view(12).view(2, 6).sum(0), [(4, 3)], ["view", "sum"], id="views"),
        pytest.param(lambda x: (x * 1).sin(), [(4, 3)], ["sin"], id="neutral numbers"),
        pytest.param(lambda x: [x.sin(), x.exp()][:1], [(4, 3)], ["sin"], id="what is not used"),
        pytest.param(nn.functional.linear, [(4, 3), (5, 3), (5,)], ["linear"], id="layers"),
        pytest.param(lambda x: x.mean(), [(4, 3)], ["sum", "div_"], id="means"),
        pytest.param(lambda x: x.square(), [(4, 3)], ["mul"], id="squares"),
        pytest.param(
            lambda x, y: x.expand(4, 3) * y, [(3,), (4, 3)], ["mul"], id="expanded operands"
        ),
        pytest.param(
            lambda x: x.square() + (x * x),
            [(4, 3)],
            ["mul", "add_"],
            id="repetitions after squares",
        ),
        pytest.param(
            lambda x, y: [x.sin(), y.sin()],
            [(4, 3), (4, 3)],
            ["_foreach_sin", "getitem", "getitem"],
            id="batches",
        ),
        pytest.param(
            lambda x: nn.functional.max_pool2d(x, 2),
            [IMAGES],
            ["max_pool2d", "getitem"],
            id="poolings",
        ),
        pytest.param(
            torch.relu, [(2048, 2048)], ["empty_in_huge_pages", "relu"], id="large results"
        ),
    ],
)
def test_a_graph_that_writes_to_nothing_gets_every_rewrite(
    f: Any, sizes: list[tuple[int, ...]], expected: list[str]
) -> None:
    assert runs(f, *sizes) == expected
