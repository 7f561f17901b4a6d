"""What the calls of control flow decide: which branch of a batch runs, where results lie, on which
device, and what graphs call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime.aot import associative_scan, cond, make_fx, map, scan, while_loop
from runtime.func import grad, jvp, vmap
from tests.runtime.trace.graphs import CallsSeen

HIGHER = torch.ops.higher_order
X = torch.tensor([[0.3, 0.4, 0.1], [0.5, 0.2, 0.6]])
NUMBERS = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(2, 3, 4)


def branches(x: Any) -> Any:
    return cond(
        x.sum() > 0, lambda x: (x.sin(), x.outer(x)), lambda x: (x.cos(), x.outer(x).exp()), (x,)
    )


@pytest.mark.parametrize(
    ("sign", "runs"),
    [((1, 1), ["sin"]), ((-1, -1), ["cos", "exp"]), ((1, -1), ["cos", "exp", "sin"])],
)
def test_a_branch_runs_if_an_element_takes_it(sign: tuple[int, int], runs: list[str]) -> None:
    x = X * torch.tensor(sign)[:, None]
    with CallsSeen() as seen:
        found = vmap(branches)(x)
    assert (
        sorted({name.removeprefix("aten::") for name in seen.names} & {"sin", "cos", "exp"}) == runs
    )
    expected = [
        (row.sin(), row.outer(row)) if s > 0 else (row.cos(), row.outer(row).exp())
        for row, s in zip(x, sign, strict=True)
    ]
    torch.testing.assert_close(
        found, tuple(torch.stack(each) for each in zip(*expected, strict=True))
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cond": lambda x: HIGHER.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos(),), (x,))[0],
    "while_loop": lambda x: HIGHER.while_loop(
        lambda x: x.sum() < 3, lambda x: (x + 1,), (x.sin(),), ()
    )[0],
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_take_functions_at_any_level(name: str, sign: int) -> None:
    f, x = FUNCTIONS[name], sign * X[0]
    expected = f(x)
    torch.testing.assert_close(vmap(f)(torch.stack([x, x])), torch.stack([expected, expected]))
    torch.testing.assert_close(make_fx(f)(-x)(x), expected)
    by_sin = name == "while_loop" or sign > 0
    torch.testing.assert_close(grad(lambda x: f(x).sum())(x), x.cos() if by_sin else -x.sin())
    torch.testing.assert_close(
        make_fx(grad(lambda x: f(x).sum()))(-x)(x), x.cos() if by_sin else -x.sin()
    )
    torch.testing.assert_close(jvp(f, (x,), (x,))[1], x * (x.cos() if by_sin else -x.sin()))


def _count(x: Any) -> Any:
    return while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, y * 2),
        (torch.zeros((), dtype=torch.int64, device=x.device), x),
    )[1]


ON_DEVICES: dict[str, Callable[[Any], Any]] = {
    "cond": lambda x: cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "cond of a transpose": lambda x: cond(x.sum() > 0, torch.sin, torch.cos, (x.t(),)),
    "while_loop": _count,
    "scan": lambda x: scan(lambda c, x: (c + x, c * x), x[0] * 1, x, unroll=False)[1],
    "map": lambda x: map(lambda x: x.sin(), x, unroll=False),
    "associative_scan": lambda x: associative_scan(torch.add, x, 0),
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (n, mode)
        for n in ON_DEVICES
        for mode in ("real", "fake", "symbolic")
        if mode != "real" or ("cond" not in n and "while" not in n)
    ],
)
def test_a_graph_has_all_tensors_on_the_device_of_the_argument(name: str, mode: str) -> None:
    module = make_fx(ON_DEVICES[name], tracing_mode=mode)(X.to("meta"))
    graphs = [m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
    values = [
        n.meta["val"]
        for graph in graphs
        for n in graph.nodes
        if isinstance(n.meta.get("val"), Tensor)
    ]
    assert values and {v.device.type for v in values} == {"meta"}


NAMES: dict[str, list[str]] = {
    "cond": ["true_graph_0", "false_graph_0"],
    "while_loop": ["while_loop_cond_graph_0", "while_loop_body_graph_0"],
    "scan": ["scan_combine_graph_0"],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_has_its_pieces_by_the_names_that_torch_gives_them(name: str) -> None:
    module = make_fx(ON_DEVICES[name], tracing_mode="symbolic")(X)
    assert [n.target for n in module.graph.nodes if n.op == "get_attr"] == NAMES[name]
    (call,) = [n for n in module.graph.nodes if n.target is getattr(HIGHER, name)]
    assert [n.target for n in call.all_input_nodes if n.op == "get_attr"] == NAMES[name]


LAYOUTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "alike": (lambda x: (x.sin(), x.cos()), lambda x: (x.cos(), x.sin())),
    "the first": (lambda x: (x.t().sin(), x.cos()), lambda x: (x.t().contiguous().cos(), x.sin())),
    "the last": (lambda x: (x.sin(), x.t().cos()), lambda x: (x.cos(), x.t().contiguous().sin())),
    "both": (
        lambda x: (x.t().sin(), x.t().cos()),
        lambda x: (x.t().contiguous().cos(), x.t().contiguous().sin()),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_results_of_two_layouts_are_contiguous(name: str) -> None:
    module = make_fx(lambda x: cond(x.sum() > 0, *LAYOUTS[name], (x,)))(X)
    for x, f in zip((X, -X), LAYOUTS[name], strict=True):
        found = module(x)
        torch.testing.assert_close(found, f(x))
        assert all(t.is_contiguous() for t in found)


@pytest.mark.parametrize("unroll", [True, False, None])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_a_scan_goes_along_any_of_three_dimensions(
    dim: int, reverse: bool, unroll: bool | None
) -> None:
    def f(xs: Any) -> Any:
        return scan(
            lambda c, x: (c + x, (c * x, c.sum())),
            xs.select(dim, 0) * 0,
            xs,
            dim=dim,
            reverse=reverse,
            unroll=unroll,
        )

    slices = NUMBERS.unbind(dim)
    carry, ys, sums = slices[0] * 0, [], []
    for x in reversed(slices) if reverse else slices:
        ys.append(carry * x)
        sums.append(carry.sum())
        carry = carry + x
    order = slice(None, None, -1 if reverse else 1)
    for run in (f, make_fx(f)(NUMBERS)):
        found, (y, s) = run(NUMBERS)
        torch.testing.assert_close(
            (found, y.movedim(dim, 0), s), (carry, torch.stack(ys[order]), torch.stack(sums[order]))
        )


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_associative_scan_goes_along_any_of_three_dimensions(dim: int, reverse: bool) -> None:
    x = NUMBERS.flip(dim) if reverse else NUMBERS
    expected = x.cumsum(dim).flip(dim) if reverse else x.cumsum(dim)
    torch.testing.assert_close(associative_scan(torch.add, NUMBERS, dim, reverse), expected)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "map": (
        lambda x: map(lambda x: x.t(), X[None] * x, unroll=False),
        "the function of map returns a tensor that shares",
    ),
    "scan": (
        lambda x: scan(lambda c, x: (c * 1, x), x, X[None] * x, unroll=False),
        "the function of scan returns a tensor that shares",
    ),
    "a number of the condition": (
        lambda x: while_loop(lambda y: 3.5, lambda y: (y,), (x,)),
        "boolean scalar tensor or a boolean but got 3.5",
    ),
    "a vector": (
        lambda x: while_loop(lambda y: y[0] > 0, lambda y: (y,), (x,)),
        r"but got torch.bool\[3\]",
    ),
    "floats": (
        lambda x: while_loop(lambda y: y.sum(), lambda y: (y,), (x,)),
        r"but got torch.float32\[\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told(name: str) -> None:
    f, says = REFUSED[name]
    with pytest.raises(RuntimeError, match=says):
        make_fx(f)(X)


def _widened(x: Any, w: Any) -> Any:
    return HIGHER.out_dtype(torch.ops.aten.mul.Tensor, torch.float64, x, w)


def test_out_dtype_has_the_derivative_of_each_argument() -> None:
    x, w = X, X.cos()
    assert _widened(x, w).dtype is torch.float64
    for at, other in ((0, w), (1, x)):
        found = grad(lambda *args: _widened(*args).sum().float(), at)(x, w)
        torch.testing.assert_close(found, other)
        t = torch.ones_like(x)
        moved = jvp(
            lambda v, at=at: _widened(v, w) if at == 0 else _widened(x, v), ((x, w)[at],), (t,)
        )[1]
        torch.testing.assert_close(moved, other.double())
    both = grad(lambda *args: _widened(*args).sum().float(), (0, 1))(x, w)
    torch.testing.assert_close(both, (w, x))


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 0), (1, 1), (None, 1)])
def test_out_dtype_of_a_batch_is_one_along_dimension_zero(dims: tuple[Any, Any]) -> None:
    square = X[:, :2]
    found = vmap(_widened, dims)(square, square.exp())
    rows = [
        [
            t if d is None else t.select(d, i)
            for t, d in zip((square, square.exp()), dims, strict=True)
        ]
        for i in range(2)
    ]
    torch.testing.assert_close(found, torch.stack([a.double() * b.double() for a, b in rows]))
