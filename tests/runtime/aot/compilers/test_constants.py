"""Constants are computed once; arithmetic with ones and zeros is left out only where
it changes no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from runtime import aot
from runtime.aot.compilers.constants import _number, fold, without_neutral
from runtime.func import grad, jacrev

from .by_hand import aten, node_of, symbolic
from .random_graphs import inputs
from .rewritten_graphs import calls, runs

X = inputs(0)[0]


def test_what_is_computed_for_its_size_alone_is_not_computed() -> None:
    # a result is no argument
    assert calls(lambda x: x * torch.ones_like(x.exp().sum(0)), X) == ["mul"]
    assert calls(grad(lambda x: x.sin().sum()), X) == ["cos"]


def test_an_identity_is_made_once() -> None:
    assert set(calls(jacrev(lambda x: x.sin()), torch.randn(5))) <= {"cos", "mul", "view"}


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 1,
        lambda x: x * 1.0,
        lambda x: x / 1,
        lambda x: x - 0.0,
        lambda x: x - 0,
        lambda x: x + -0.0,
    ],
)
def test_arithmetic_that_changes_no_bit_is_left_out(f: Any) -> None:
    assert calls(lambda x: f(x).neg(), X) == ["neg"] == calls(lambda x: f(x).neg(), X.double())


@pytest.mark.parametrize(
    "f", [lambda x: x + 0, lambda x: x + 0.0, lambda x: x - -0.0, lambda x: x * 0, lambda x: x * -1]
)
def test_arithmetic_that_changes_a_bit_is_kept(f: Any) -> None:
    assert len(calls(lambda x: f(x).neg(), X)) == 2


def test_a_product_with_one_of_another_size_or_dtype_is_kept() -> None:
    assert len(calls(lambda x: (x[0] * torch.ones(4, 3)).neg(), X)) == 3
    assert len(calls(lambda x: (x * torch.ones(1, dtype=torch.float64)).neg(), X.half())) == 2
    assert calls(lambda x: (x * 1).neg(), torch.arange(3)) == ["mul", "neg_"]


def test_a_tensor_of_one_number_is_a_number() -> None:
    assert calls(lambda x: x * torch.full_like(x, 3.0), X) == ["mul"]
    assert calls(lambda x: x + torch.zeros_like(x), X) == ["add"]


def test_a_constant_that_is_a_result_is_new_in_every_call() -> None:
    compiled = aot.aot_function(lambda x: (torch.ones_like(x), torch.zeros(3).view(1, 3)), aot.nop)
    first, second = compiled(X), compiled(X)
    first[0].zero_()
    first[1].fill_(7)
    assert torch.equal(second[0], torch.ones(4, 3)) and torch.equal(
        compiled(X)[1], torch.zeros(1, 3)
    )


def test_a_constant_that_the_program_writes_to_is_new_in_every_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(3)
        total += x[0]
        return total

    compiled = aot.aot_function(f, aot.nop)
    assert all(torch.equal(compiled(torch.ones(2, 3)), torch.ones(3)) for _ in range(3))


def test_large_constants_are_not_kept() -> None:
    assert "ones_like" in calls(lambda x: x @ torch.ones_like(x), torch.randn(100, 100))


def test_a_constant_of_up_to_2_to_the_12_elements_is_kept() -> None:
    def scaled(x: torch.Tensor) -> Any:
        return x * torch.eye(x.shape[0])

    assert runs(scaled, (64, 64)) == ["mul"]
    assert runs(scaled, (65, 65)) == ["eye", "mul"]


@pytest.mark.parametrize(
    "value, number",
    [
        (torch.ones(2, 3), "1.0"),
        (torch.full((3,), -0.0), "-0.0"),
        (torch.tensor(2.5, dtype=torch.float64), "2.5"),
        (torch.eye(2), "None"),
        (torch.tensor([0.0, -0.0]), "None"),
        (torch.tensor([-1.0, 1.0]), "None"),
        (torch.full((2,), float("nan")), "None"),
        (torch.ones(2, dtype=torch.int64), "None"),
        (torch.ones(2, dtype=torch.float16), "None"),
        (torch.ones(0), "None"),
        (3, "3.0"),
        (-0.0, "-0.0"),
        (True, "None"),
        (None, "None"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_number_that_all_elements_are(value: Any, number: str) -> None:
    assert str(_number(value)) == number


def test_a_constant_takes_the_place_of_an_argument_by_position_and_by_name() -> None:
    graph = fx.Graph()
    x, one = node_of(X, graph), graph.call_function(aten.ones.default, ([4, 3],))
    users = [
        graph.call_function(aten.add.Tensor, (x, one)),
        graph.call_function(aten.add.Tensor, (x,), {"other": one}),
    ]
    for n in (one, *users):
        n.meta["val"] = torch.ones(4, 3)
    graph.output(users)
    fold(graph)
    assert torch.equal(users[0].args[1], torch.ones(4, 3))  # type: ignore[arg-type]
    assert torch.equal(users[1].kwargs["other"], torch.ones(4, 3))  # type: ignore[arg-type]
    assert not one.users


def test_a_product_with_ones_of_a_narrower_dtype_is_left_out() -> None:
    assert calls(lambda x: (x * torch.ones(4, 3)).neg(), X.double()) == ["neg"]
    assert calls(lambda x: x * torch.full((4, 3), 0.1), X.double()) == ["mul"]


def test_a_constant_of_a_double_is_computed_once_too() -> None:
    assert calls(lambda x: x * torch.ones_like(x.exp().sum(0)), X.double()) == ["mul"]


def _graph_of(
    func: Any, args: tuple[Any, ...], value: torch.Tensor
) -> tuple[fx.Graph, fx.Node, fx.Node]:
    """A graph with a call of ``func``, which is said to give ``value``, and a user of it. A string
    stands for an input."""
    inputs = {"x": X, "number": 2.5, "symbolic": symbolic(0)}
    graph = fx.Graph()
    made = graph.call_function(
        func, tuple(node_of(inputs[a], graph) if isinstance(a, str) else a for a in args)
    )
    user = graph.call_function(aten.sin.default, (made,))
    made.meta["val"] = user.meta["val"] = value
    graph.output([user])
    return graph, made, user


@pytest.mark.parametrize(
    "func, args",
    [
        pytest.param(aten.full_like.default, ("x", "number"), id="a number of the graph"),
        pytest.param(aten.new_ones.default, ("symbolic", [4, 3]), id="an argument of any size"),
        pytest.param(
            aten.full.default, ([4, 3], "number"), id="a number of the graph, without a tensor"
        ),
    ],
)
def test_what_depends_on_the_arguments_is_no_constant(func: Any, args: tuple[Any, ...]) -> None:
    graph, made, user = _graph_of(func, args, X)
    fold(graph)
    assert user.args == (made,)


@pytest.mark.parametrize(
    "value, folded",
    [
        (torch.empty(4, 3), True),
        (torch.empty(4, 3).double(), False),
        (torch.empty(3, 4), False),
        (torch.empty(3, 4).t(), False),
    ],
)
def test_a_constant_that_is_not_as_the_graph_says_is_left_to_each_call(
    value: torch.Tensor, folded: bool
) -> None:
    """As where the default dtype is another one than at the trace."""
    graph, made, user = _graph_of(aten.ones.default, ([4, 3],), value)
    fold(graph)
    assert (user.args != (made,)) is folded


def test_constants_lie_on_the_processor_whatever_the_default_device_is() -> None:
    graph, _, user = _graph_of(aten.ones_like.default, ("x",), X)
    with torch.device("meta"):
        fold(graph)
    (one,) = user.args
    assert (
        isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.equal(torch.ones(4, 3))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_of_one_number_is_kept_without_dimensions(dtype: torch.dtype) -> None:
    graph = fx.Graph()
    x, tenths = node_of(X.double(), graph), torch.full((4, 3), 0.1, dtype=dtype)
    product = graph.call_function(aten.mul.Tensor, (x, tenths))
    product.meta["val"] = X.double()
    graph.output([product])
    with torch.device("meta"):
        without_neutral(graph)
    number: Any = product.args[1]
    assert (
        number.shape == ()
        and number.dtype is dtype
        and number.device.type == "cpu"
        and number.equal(tenths[0, 0])
    )
