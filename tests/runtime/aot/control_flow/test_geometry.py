"""How what calls of control flow take and return lies in memory, and which sizes
their graphs are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime.aot import associative_scan, cond, make_fx, map, scan, while_loop
from runtime.errors import EscapedValue
from runtime.func import grad, jvp, vmap

HIGHER = torch.ops.higher_order
X = torch.tensor([[0.3, 0.4, 0.1], [0.5, 0.2, 0.6]])
ZERO = torch.zeros((), dtype=torch.int64)


def _calls(module: Any, operator: Any) -> list[Any]:
    return [n for n in module.graph.nodes if n.target is operator]


@pytest.mark.parametrize("sign", [1, -1])
def test_results_of_one_layout_keep_it(sign: int) -> None:
    def f(x: Any) -> Any:
        return cond(
            x.sum() > 0, lambda x: (x.t().sin(), x.sin()), lambda x: (x.t().cos(), x.cos()), (x,)
        )

    for given in (X, X.t()):
        found = make_fx(f)(given)(sign * given)
        expected = (given.t() * sign).sin() if sign > 0 else (given.t() * sign).cos()
        torch.testing.assert_close(found[0], expected)
        assert [t.stride() for t in found] == [given.t().stride(), given.stride()]


def test_an_operand_that_a_branch_closes_over_is_passed_once() -> None:
    graph = make_fx(lambda x: cond(x.sum() > 0, lambda y: x * y, lambda y: x - y, (x,)))(X)
    (call,) = _calls(graph, HIGHER.cond)
    assert len(call.args[3]) == 1
    for x, expected in ((X, X * X), (-X, X * 0)):
        torch.testing.assert_close(graph(x), expected)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_condition_is_one_element_of_any_shape(sign: int, shape: tuple[int, ...]) -> None:
    def f(x: Any) -> Any:
        return cond((x.sum() > 0).reshape(shape), torch.sin, torch.cos, (x,))

    graph = make_fx(f)(X)
    (call,) = _calls(graph, HIGHER.cond)
    assert call.args[0].meta["val"].shape == ()
    expected = X.sin() if sign > 0 else X.cos()
    torch.testing.assert_close(graph(sign * X), expected)
    torch.testing.assert_close(vmap(f)(torch.stack([sign * X, -sign * X]))[0], expected * 1)


def test_an_operand_without_elements_has_a_branch() -> None:
    graph = make_fx(lambda x, y: cond(y.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,)))(
        torch.zeros(0, 3), X
    )
    assert graph(torch.zeros(0, 3), -X).shape == (0, 3)


@pytest.mark.parametrize("strides", [(1, 2), (0, 1), (3, 0), (6, 2)])
def test_a_branch_is_captured_with_the_strides_of_its_operand(strides: tuple[int, int]) -> None:
    def f(x: Any) -> Any:
        return cond(
            x.sum() > 0,
            lambda x: x.expand(2, *x.shape).sin(),
            lambda x: x.expand(2, *x.shape).cos(),
            (x,),
        )

    x = torch.arange(1.0, 21.0).as_strided((3, 2), strides)
    branch: Any = make_fx(f)(x).true_graph_0
    seen = [n.meta["val"] for n in branch.graph.nodes if n.op == "placeholder"]
    assert [t.stride() for t in seen] == [strides] and seen[0].shape == (3, 2)
    torch.testing.assert_close(make_fx(f)(x)(-x), (-x).cos().expand(2, 3, 2))


def test_a_branch_sees_several_sizes_that_no_operand_has() -> None:
    def f(x: Any, y: Any) -> Any:
        n, m = x.shape
        k = n * m
        return cond(y.sum() > 0, lambda y: y * k, lambda y: y - n + m, (y,))

    graph = make_fx(f, tracing_mode="symbolic")(torch.ones(3, 4), X)
    for shape, y in (((5, 6), X), ((7, 2), -X)):
        n, m = shape
        torch.testing.assert_close(
            graph(torch.ones(shape), y), y * n * m if y.sum() > 0 else y - n + m
        )


def test_a_branch_sees_a_size_that_depends_on_values() -> None:
    def f(x: Any, y: Any) -> Any:
        n = x.nonzero().shape[0]
        return cond(y.sum() > 0, lambda y: y * n, lambda y: y - n, (y,))

    graph = make_fx(f, tracing_mode="symbolic")(torch.ones(3), X)
    for x, y in ((torch.tensor([1.0, 0.0, 2.0]), X), (torch.ones(5), -X)):
        n = int(x.count_nonzero())
        torch.testing.assert_close(graph(x, y), y * n if y.sum() > 0 else y - n)


def test_the_size_of_an_operand_may_depend_on_values() -> None:
    def f(x: Any) -> Any:
        return cond(x.sum() > 0, lambda i: i.sum(0), lambda i: i.prod(0), (x.nonzero(),))

    graph = make_fx(f, tracing_mode="symbolic")(torch.ones(3))
    for x in (torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([-1.0, 0.0, 0.0, -2.0, -2.0])):
        i = x.nonzero()
        assert torch.equal(graph(x), i.sum(0) if x.sum() > 0 else i.prod(0))


def test_a_branch_is_captured_with_numbers_that_are_places_in_a_tensor() -> None:
    graph = make_fx(
        lambda x, i: cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[i] * 2, (x, i))
    )(X, torch.tensor([1, 0]))
    for x in (X, -X):
        torch.testing.assert_close(graph(x, torch.tensor([0, 0])), x[[0, 0]] * (1 if x is X else 2))


def test_a_value_of_a_branch_that_is_kept_has_escaped() -> None:
    kept: list[Any] = []

    def branch(x: Any) -> Any:
        kept.append(x.sin())
        return x * 2

    make_fx(lambda x: cond(x.sum() > 0, branch, torch.cos, (x,)))(X)
    with pytest.raises(EscapedValue):
        kept[0] + 1


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_a_carry_that_starts_as_a_constant_of_another_layout_is_contiguous(mode: str) -> None:
    start = X.t()

    def f(x: Any) -> Any:
        return (
            while_loop(
                lambda i, y: i < 2, lambda i, y: (i + 1, (y.view(-1) * 2).view(3, 2)), (ZERO, start)
            )[1]
            + x
        )

    traced = make_fx(f, tracing_mode=mode, _allow_non_fake_inputs=True)(torch.ones(3, 2))
    torch.testing.assert_close(traced(torch.zeros(3, 2)), start * 4)


def test_steps_are_counted_in_integers() -> None:
    def f(x: Any) -> Any:
        return while_loop(lambda y: y.sum() < 10, lambda y: (y * 2,), (x,))[0].sum()

    counts = [
        n.args[2][0].meta["val"]
        for n in _calls(make_fx(grad(f))(X), HIGHER.while_loop)
        if len(n.args[2]) > 1
    ]
    assert counts and all(c.dtype is torch.int64 and c.shape == () for c in counts)


def test_the_tangents_of_a_branch_may_be_one_tensor_twice() -> None:
    def branch(x: Any) -> Any:
        y = x * 3
        return y + 1, y + 2

    def f(x: Any, t: Any) -> Any:
        return jvp(lambda x: cond(x.sum() > 0, branch, lambda x: (x * 1, x * 2), (x,)), (x,), (t,))[
            1
        ]

    graph = make_fx(f)(X, X)
    torch.testing.assert_close(graph(X, X), (X * 3, X * 3))
    torch.testing.assert_close(graph(-X, X), (X, X * 2))


def test_a_graph_from_elsewhere_that_returns_its_argument_is_a_branch_of_a_batch() -> None:
    same, negated = fx.symbolic_trace(lambda x: (x,)), fx.symbolic_trace(lambda x: (-x,))

    def f(p: Any, x: Any) -> Any:
        return HIGHER.cond(p.sum() > 0, same, negated, (x,))[0]

    graph = make_fx(vmap(f, (None, 0)))(X, X)
    torch.testing.assert_close(graph(X, X), X)
    torch.testing.assert_close(graph(-X, X), -X)


NOTHING: list[Callable[[Any], Any]] = [
    lambda x: associative_scan(torch.add, x[:0], 0),
    lambda x: associative_scan(torch.add, x[:, :0], 1, reverse=True),
    lambda x: map(torch.sin, x[:0]),
    lambda x: scan(lambda c, e: (c, e), x[0], x[:0]),
]


@pytest.mark.parametrize("f", NOTHING)
def test_nothing_is_scanned_along_a_dimension_without_elements(f: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match="length of at least 1"):
        f(X)


def test_partial_results_are_combined_in_one_of_two_modes() -> None:
    with pytest.raises(ValueError, match="must either 'pointwise' or 'generic', but got other"):
        associative_scan(torch.add, X, 0, combine_mode="other")


def test_a_scan_over_no_tensors_returns_its_start() -> None:
    assert scan(lambda c, x: (c + 1, x), X, ()) == (X, [])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_an_associative_scan_combines_each_pair_of_elements_once_and_nothing_with_nothing(
    n: int,
) -> None:
    sizes: list[int] = []

    def add(a: Any, b: Any) -> Any:
        sizes.append(len(a))
        return a + b

    assert associative_scan(add, torch.arange(1, n + 1), 0).tolist() == [
        i * (i + 1) // 2 for i in range(1, n + 1)
    ]
    assert all(sizes) and sum(sizes) == {1: 0, 2: 1, 3: 2, 4: 4, 5: 5, 6: 7}[n]


@pytest.mark.parametrize("unroll", [True, None])
def test_a_function_is_mapped_over_elements_from_the_first_to_the_last(unroll: bool | None) -> None:
    torch.manual_seed(0)
    expected = torch.stack([row * torch.rand(3) for row in X])
    torch.manual_seed(0)
    assert map(lambda row: row * torch.rand(3), X, unroll=unroll).equal(expected)
    assert not _calls(
        make_fx(lambda x: map(torch.sin, x, unroll=False))(X), torch.ops.aten.flip.default
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [True, False])
def test_a_scan_of_one_element_has_one_step(unroll: bool, reverse: bool) -> None:
    def f(xs: Any) -> Any:
        return scan(lambda c, x: (c + x, (c * x, 3)), xs[0] * 2, xs, reverse=reverse, unroll=unroll)

    for run in (f, make_fx(f)(X[:1])):
        carry, (ys, three) = run(X[:1])
        torch.testing.assert_close((carry, ys), (X[0] * 3, (2 * X * X)[:1]))
        assert three == 3


def _nested(f: Callable[..., Any]) -> Any:
    return make_fx(lambda x: while_loop(lambda t: t["a"][0].sum() < 9, f, ({"a": (x, x * 2)},)))(X)


def test_the_carry_keeps_its_structure() -> None:
    graph = _nested(lambda t: ({"a": (t["a"][0] * 2, t["a"][1] + 1)},))
    # the sum is 8.4 at first, 16.8 after one step
    torch.testing.assert_close(graph(X * 4), ({"a": (X * 8, X * 8 + 1)},))
    for other in (
        lambda t: ({"a": [t["a"][0] * 2, t["a"][1] * 2]},),
        lambda t: ({"b": (t["a"][0] * 2, t["a"][1] * 2)},),
    ):
        with pytest.raises(
            RuntimeError,
            match=(
                r"(?s)while_loop: body_fn returns the structure .*the carry has "
                r".*Return a tuple like"
            ),
        ):
            _nested(other)
        with pytest.raises(RuntimeError, match="while_loop: body_fn returns the structure"):
            while_loop(lambda t: True, other, ({"a": (X, X * 2)},))


def test_a_draw_for_each_element_is_on_the_device_of_the_operands() -> None:
    def f(x: Any, elements: Any) -> Any:
        return vmap(
            lambda _: cond(x.sum() > 0, torch.rand_like, lambda x: x * 2, (x,)),
            randomness="different",
        )(elements)

    graph = make_fx(f, tracing_mode="fake")(X.to("meta"), torch.ones(4, device="meta"))
    values = [n.meta["val"] for n in graph.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
    assert {v.device.type for v in values} == {"meta"} and values[-1].shape == (4, 2, 3)
