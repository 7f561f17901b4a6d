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

from .executed import (
    Noting,
    calls_of_graph,
    check_bits,
    executed,
    executed_in_backward,
    last_calls,
    same_bits,
)
from .rewritten_graphs import rewrites, runs

aten = torch.ops.aten


X, Y = torch.randn(4, 3), torch.randn(4, 3)


def test_a_dead_intermediate_is_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * y).tanh() + y

    assert executed(f, X, Y) == [aten.mul.Tensor, aten.tanh_.default, aten.add_.Tensor]


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
    check_bits(f, X, Y)


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

    assert executed(f, X) == [aten.add.Tensor, aten.mul_.Tensor]


@pytest.mark.parametrize("number", [2, 0.1, -0.0, float("inf"), 1 << 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic_with_a_number_gives_the_same_bits(number: float, dtype: torch.dtype) -> None:
    check_bits(lambda x: (x * number, x + number, x - number, x / number), X.to(dtype))
    check_bits(lambda x: (x.sum() * number, x.sum() / 3), X.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.complex64])
def test_numbers_beside_tensors_of_other_dtypes_stay_numbers(dtype: torch.dtype) -> None:
    x = (8 * X).to(dtype)
    ((_, number),) = last_calls(lambda x: x * 0.1, x).arguments
    assert type(number) is float and number == 0.1
    check_bits(lambda x: (x * 0.1, x + 3), x)


def test_a_square_is_a_product_of_the_same_bits() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.square()

    assert executed(f, X) == [aten.mul.Tensor]
    check_bits(f, 1e3 * X)
    check_bits(f, X.double())


def test_the_second_of_two_that_commute_is_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x[0] * y.tanh(), x - y.sin()

    assert [t for t in executed(f, X, Y) if t is not aten.select.int] == [
        aten.tanh.default, aten.mul_.Tensor, aten.sin.default, aten.sub.Tensor,
    ]  # fmt: skip


def test_a_scaled_second_term_is_not_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.add(x, y.tanh(), alpha=3)

    assert executed(f, X, Y) == [aten.tanh.default, aten.add.Tensor]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (10, 32), (1001,), (3, 0)], ids=str)
def test_a_mean_is_a_divided_sum_of_the_same_bits(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, dtype=dtype)
    assert executed(torch.mean, x) == (
        [aten.sum.default, aten.div_.Tensor] if x.numel() else [aten.mean.default]
    )


@pytest.mark.parametrize(
    "f", [lambda x: x.half().mean(), lambda x: x.mean(0), lambda x: x.mean(dtype=torch.float64)]
)
def test_other_means_stay(f: Any) -> None:
    assert not {aten.sum.default, aten.div_.Tensor} & set(executed(f, X))


def test_what_was_expanded_for_a_product_is_not() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.expand(4, 3) * y

    assert executed(f, X[0], Y) == [aten.mul.Tensor]


def test_an_expanded_tensor_that_gives_a_result_its_shape_stays() -> None:
    row = X[0].clone()

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.expand(4, 3) * y, x.expand(4, 3) + x.expand(4, 3)

    assert executed(f, row, row)[0] is aten.expand.default
    check_bits(lambda x, y: x.expand(4, 3) * y, row, Y.double())


def test_a_layer_with_bias_is_one_call_of_linear() -> None:
    given = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
    assert executed(torch.nn.functional.linear, *given) == [aten.linear.default]


def test_the_graph_that_a_compiler_holds_is_left_as_it_is() -> None:
    noting = Noting()
    compiled = aot.aot_function(nn.functional.linear, noting)
    for _ in range(2):
        compiled(torch.randn(4, 3), torch.randn(5, 3), torch.randn(5))
    assert noting.calls.ops == [aten.linear.default]
    (graph,) = (module.graph for module in noting.modules)
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [
        aten.t.default,
        aten.addmm.default,
    ]


def test_a_transposed_weight_that_something_else_uses_stays() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        turned = w.t()
        return torch.addmm(b, x, turned), turned + 1

    given = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
    assert executed(both, *given) == [aten.t.default, aten.addmm.default, aten.add.Tensor]


def test_a_product_that_is_scaled_is_no_layer() -> None:
    given = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
    check_bits(lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2), *given)


def test_a_cotangent_that_is_used_up_takes_the_gradient_of_relu() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x) * x).sum()

    assert aten.threshold_backward.grad_input in executed_in_backward(f, X)


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

    targets = executed(f, images, weight, mean, var)
    assert targets == [aten._native_batch_norm_legit_functional.default, aten.relu_.default]


def test_one_of_several_results_that_is_used_later_is_not_written_over() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        normalized, mean, _ = aten.native_layer_norm(x, [3], None, None, 1e-5)
        return torch.relu(normalized), normalized * y, mean

    assert aten.relu_.default not in executed(f, X, Y)


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
    (ours, normalized), calls = calls_of_graph(fx.GraphModule({}, graph), X)
    assert aten.relu.default in calls.ops and torch.equal(ours, normalized.relu())


def test_the_gradients_of_a_convolution_and_a_pooling_are_written_over() -> None:
    """The backward of convolution, batch norm, relu and pooling, twice: each gradient of relu
    overwrites the cotangent that it takes."""
    noting = Noting()
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
    for network in (aot.aot_module(model, aot.nop, noting), reference):
        for _ in range(2):
            network(images).sum().backward()
    ops = noting.calls.ops
    assert ops.count(aten.threshold_backward.grad_input) == 2
    assert aten.threshold_backward.default not in ops
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

    assert executed(f, X)[-1] == aten.rsub.Scalar_out


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
    ((_, added),) = rewrites(lambda x: x + number, (3,)).arguments
    assert isinstance(added, call)


def test_a_mean_is_a_sum_as_long_as_its_length_is_a_number_of_float32() -> None:
    assert runs(torch.mean, (1 << 12, 1 << 12)) == ["sum", "div_"]
    assert runs(torch.mean, ((1 << 24) + 1,)) == ["mean"]
    assert runs(torch.mean, (1,)) == ["sum", "div_"] and runs(torch.mean, (0,)) == ["mean"]


def test_numbers_lie_on_the_processor_whatever_the_default_device_is() -> None:
    module = aot.make_fx(lambda x: [(x * 0.1) / 3])(X)
    with torch.device("meta"):
        _, calls = calls_of_graph(module, X)
    numbers = [number for _, number in calls.arguments]
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
    given = torch.ones(4, 3), torch.ones(5, 3), torch.ones(5)
    module = aot.make_fx(f)(*(t.clone() for t in given))
    results, _ = calls_of_graph(module, *given)
    same_bits(results, f(*(t.clone() for t in given)))


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
            ["_foreach_sin"],
            id="batches",
        ),
        pytest.param(
            lambda x: nn.functional.max_pool2d(x, 2),
            [IMAGES],
            # with channels last in memory
            ["contiguous", "max_pool2d_with_indices", "clone", "clone"],
            id="poolings",
        ),
        pytest.param(torch.relu, [(2048, 2048)], ["empty", "relu"], id="large results"),
    ],
)
def test_a_graph_that_writes_to_nothing_gets_every_rewrite(
    f: Any, sizes: list[tuple[int, ...]], expected: list[str]
) -> None:
    assert runs(f, *sizes) == expected
