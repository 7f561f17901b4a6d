"""A graph for symbolic sizes holds for other sizes too, where ATen's own composite kernels
ask for numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from runtime.aot import aot_function, make_fx, nop
from runtime.func import jvp, vjp, vmap

Case = tuple[Callable[..., Any], Callable[[int], tuple[torch.Tensor, ...]]]


def _matrix(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, n + 1, dtype=torch.float64),)


def _complex(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, n + 1, dtype=torch.complex128),)


def _three(n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, 2 * n), torch.randn(2 * n, 3 * n), torch.randn(3 * n, 3)


CASES: dict[str, Case] = {
    "kron": (torch.kron, lambda n: (torch.randn(n, 3), torch.randn(2, n + 1))),
    "kron of other ranks": (torch.kron, lambda n: (torch.randn(n), torch.randn(2, n, 3))),
    "take_along_dim": (
        lambda x, i: torch.take_along_dim(x, i, -1),
        lambda n: (torch.randn(n, 5), torch.randint(-5, 5, (n, n + 2))),
    ),
    "take_along_dim of a row": (
        lambda x, i: torch.take_along_dim(x, i, 1),
        lambda n: (torch.randn(1, 5), torch.randint(5, (n, 2))),
    ),
    "take_along_dim of all": (
        torch.take_along_dim,
        lambda n: (torch.randn(n, 5), torch.randint(n, (n,))),
    ),
    "gradient": (torch.gradient, _matrix),
    "gradient with curved edges": (lambda x: torch.gradient(x, edge_order=2), _matrix),
    "gradient with a step": (lambda x: torch.gradient(x, spacing=2.5, dim=0), _matrix),
    "gradient with steps": (lambda x: torch.gradient(x, spacing=[2.5, 0.5], edge_order=2), _matrix),
    "gradient with coordinates": (
        lambda x, t: torch.gradient(x, spacing=(t,), dim=0, edge_order=2),
        lambda n: (
            torch.randn(n, 3, dtype=torch.float64),
            torch.rand(n, dtype=torch.float64).cumsum(0),
        ),
    ),
    "gradient with coordinates and plain edges": (
        lambda x, t: torch.gradient(x, spacing=(t,), dim=(1,)),
        lambda n: (
            torch.randn(3, n, dtype=torch.float64),
            torch.rand(n, dtype=torch.float64).cumsum(0),
        ),
    ),
    "gradient of integers": (torch.gradient, lambda n: (torch.arange(n) ** 2,)),
    "multi_dot": (lambda *xs: torch.linalg.multi_dot(xs), _three),
    "multi_dot of vectors": (
        lambda *xs: torch.linalg.multi_dot(xs),
        lambda n: (torch.randn(n), torch.randn(n, 2 * n), torch.randn(2 * n, 3), torch.randn(3)),
    ),
    "max_pool1d": (
        lambda x: F.max_pool1d(x, 3, 2, padding=1),
        lambda n: (torch.randn(2, n, 2 * n),),
    ),
    "max_pool1d with gaps": (
        lambda x: F.max_pool1d(x, 2, stride=1, dilation=2, ceil_mode=True),
        lambda n: (torch.randn(n, 2 * n),),
    ),
    "fft of more samples or fewer": (lambda x: torch.fft.fft(x, 7), _matrix),
    "rfft of more samples or fewer": (lambda x: torch.fft.rfft(x, 6, 0), _matrix),
    "fft2 of one size that stays": (lambda x: torch.fft.fft2(x, (-1, 7)), _matrix),
    "ifftn of two sizes": (lambda x: torch.fft.ifftn(x, (6, 5), (1, 0)), _complex),
    "ihfft2 of other sizes": (lambda x: torch.fft.ihfft2(x, (6, 8)), _matrix),
    "fft of the size that there is": (lambda x: torch.fft.fft(x, x.shape[-1]), _matrix),
    "fill_diagonal": (lambda x: x.clone().fill_diagonal_(2.0), _matrix),
    "bilinear": (
        F.bilinear,
        lambda n: (torch.randn(n, 3), torch.randn(n, 4), torch.randn(5, 3, 4), torch.randn(5)),
    ),
    "mean of complex numbers": (lambda x: x.mean(), _complex),
    "mean of complex rows": (lambda x: x.mean(0, keepdim=True), _complex),
    "std_mean of complex numbers": (torch.std_mean, _complex),
    "var_mean of complex rows": (lambda x: torch.var_mean(x, 1, correction=0), _complex),
    "fractional_max_pool3d": (
        lambda x: F.fractional_max_pool3d(
            x, 2, output_size=(2, 3, 2), _random_samples=torch.full((2, 3, 3), 0.4)
        ),
        lambda n: (torch.randn(2, 3, n + 1, n + 2, 2 * n),),
    ),
    "conv_tbc": (
        lambda x, w, b: torch.conv_tbc(x, w, b, 1),
        lambda n: (torch.randn(n, 2, 3), torch.randn(3, 3, n), torch.randn(n)),
    ),
}


FORMS: dict[str, Case] = {  # of the arguments, whose graph is made and not compiled
    "take_along_dim in the middle": (
        lambda x, i: torch.take_along_dim(x, i, 1),
        lambda n: (torch.randn(n, 5, 1, 3), torch.randint(-5, 5, (1, n, 2, 3))),
    ),
    "take_along_dim of rows": (
        lambda x, i: torch.take_along_dim(x, i, 0),
        lambda n: (torch.randn(5, n), torch.randint(5, (n, 1))),
    ),
    "gradient of two elements": (
        lambda x: torch.gradient(x, dim=1),
        lambda n: (torch.randn(n, 2),),
    ),
    "gradient of three elements": (
        lambda x: torch.gradient(x, dim=1, edge_order=2),
        lambda n: (torch.randn(n, 3),),
    ),
    "gradient of two coordinates": (
        lambda x, t: torch.gradient(x, spacing=(t,), dim=1),
        lambda n: (torch.randn(n, 2), torch.tensor([0.5, 2.0])),
    ),
    "gradient of other dimensions": (
        lambda x: torch.gradient(x, spacing=[2.0, 0.5], dim=(-1, 0)),
        _matrix,
    ),
    "multi_dot of a vector first": (
        lambda *xs: torch.linalg.multi_dot(xs),
        lambda n: (torch.randn(n), torch.randn(n, 2 * n), torch.randn(2 * n, 3)),
    ),
    "multi_dot of a vector last": (
        lambda *xs: torch.linalg.multi_dot(xs),
        lambda n: (torch.randn(3, n), torch.randn(n, 2 * n), torch.randn(2 * n)),
    ),
    "max_pool1d of its own step": (
        lambda x: F.max_pool1d(x, 3),
        lambda n: (torch.randn(2, n, 2 * n),),
    ),
    "max_pool1d by the name of its argument": (
        lambda x: torch.ops.aten.max_pool1d(self=x, kernel_size=2),
        lambda n: (torch.randn(2, n),),
    ),
    "fft of one sample": (lambda x: torch.fft.fft(x, 1), _matrix),
    "fft of all samples": (torch.fft.fft, _matrix),
    "rfft of a norm": (lambda x: torch.fft.rfft(x, 7, norm="ortho"), _matrix),
    "fftn of the last sizes": (lambda x: torch.fft.fftn(x, (7,)), _matrix),
    "fftn of three dimensions": (
        lambda x: torch.fft.fftn(x, (6, 5), (0, 1)),
        lambda n: (torch.randn(n, n + 1, 2),),
    ),
}


def _results(f: Callable[..., Any], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = f(*inputs)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def _gradients(
    f: Callable[..., Any], inputs: tuple[torch.Tensor, ...]
) -> list[torch.Tensor | None]:
    xs = [x.clone().requires_grad_(x.is_floating_point() or x.is_complex()) for x in inputs]
    parts = [r.abs().square().sum() for r in _results(f, *xs) if r.requires_grad]
    torch.stack(parts).sum().backward()
    return [x.grad for x in xs]


@pytest.mark.parametrize("name", CASES | FORMS)
def test_a_graph_for_symbolic_sizes_is_right_for_another_size(name: str) -> None:
    torch.manual_seed(0)
    f, inputs = (CASES | FORMS)[name]
    traced = make_fx(lambda *xs: _results(f, *xs), tracing_mode="symbolic")(*inputs(4))
    for n in (5, 9):
        given = inputs(n)
        torch.testing.assert_close(traced(*given), _results(f, *given))


@pytest.mark.parametrize("name", [name for name in CASES if name != "gradient of integers"])
def test_one_compiled_program_gives_the_gradients_of_any_size(name: str) -> None:
    torch.manual_seed(0)
    f, inputs = CASES[name]
    graphs: list[Any] = []

    def counting(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = aot_function(lambda *xs: _results(f, *xs), counting, bw_compiler=nop, dynamic=True)
    for n in (4, 7, 9):
        given = inputs(n)
        torch.testing.assert_close(_gradients(compiled, given), _gradients(f, given))
    assert len(graphs) == 1


def test_transforms_of_them_have_graphs_for_any_size() -> None:
    torch.manual_seed(0)
    for name in ("kron", "gradient", "mean of complex numbers", "max_pool1d"):
        f, inputs = CASES[name]

        def through(*xs: torch.Tensor, f: Any = f) -> Any:
            outs, pull = vjp(lambda *ys: _results(f, *ys), *xs)
            return *pull(outs), *jvp(lambda *ys: _results(f, *ys), xs, xs)[1]

        traced = make_fx(through, tracing_mode="symbolic")(*inputs(4))
        given = inputs(6)
        torch.testing.assert_close(traced(*given), through(*given))


def test_a_batch_of_them_has_a_graph_for_any_size() -> None:
    f = vmap(torch.kron)
    traced = make_fx(f, tracing_mode="symbolic")(torch.ones(3, 4, 5), torch.ones(3, 2, 6))
    x, y = torch.randn(5, 6, 7), torch.randn(5, 3, 8)
    torch.testing.assert_close(
        traced(x, y), torch.stack([torch.kron(a, b) for a, b in zip(x, y, strict=True)])
    )


INDICES = torch.zeros(4, 5, dtype=torch.long)
Refused = list[tuple[Callable[..., Any], list[tuple[int, ...]]]]
IN_ITS_WORDS: Refused = [
    (lambda x: torch.take_along_dim(x, INDICES[0], 0), [(4, 5)]),
    (lambda x: torch.take_along_dim(x, INDICES[None], 1), [(4, 5)]),
    (lambda x: torch.take_along_dim(x, torch.zeros(4, 5), 0), [(4, 5)]),
    (lambda x: torch.take_along_dim(x, INDICES, 2), [(4, 5)]),
    (lambda x: torch.take_along_dim(x, INDICES, -3), [(4, 5)]),
    (lambda x: torch.gradient(x, dim=5), [(4, 5)]),
    (lambda x: torch.gradient(x, dim=-3), [(4, 5)]),
    (lambda x: torch.gradient(x, edge_order=3), [(4, 5)]),
    (lambda x: torch.gradient(x, edge_order=0), [(4, 5)]),
    (lambda x: torch.gradient(x, dim=(0, 0)), [(4, 5)]),
    (lambda x: torch.gradient(x, dim=(0, -2)), [(4, 5)]),
    (lambda x: torch.gradient(x, edge_order=2), [(2, 5)]),
    (lambda x: torch.gradient(x, spacing=[1.0]), [(4, 5)]),
    (lambda x, t: torch.gradient(x, spacing=(t,), dim=0), [(4, 5), (4, 1)]),
    (lambda *xs: torch.linalg.multi_dot(xs), [(4, 5), (5, 6), (7, 8)]),
    (lambda *xs: torch.linalg.multi_dot(xs), [(4, 5), (6, 6), (6, 8)]),
    (lambda *xs: torch.linalg.multi_dot(xs), [(4, 5)]),
    (lambda *xs: torch.linalg.multi_dot(xs), [(1, 5, 5), (5, 6), (6, 8)]),
    (lambda *xs: torch.linalg.multi_dot(xs), [(4, 5), (5,), (5, 8)]),
    (lambda *xs: torch.linalg.multi_dot(xs), [(4, 5), (5, 4), (4, 1, 8)]),
    (lambda x: F.max_pool1d(x, 3), [(4,)]),
    (lambda x: F.max_pool1d(x, 3), [(4, 3, 3, 3)]),
    (lambda x: x.clone().fill_diagonal_(1.0), [(4,)]),
    (lambda x: x.clone().fill_diagonal_(1.0), [(4, 5, 4)]),
    (lambda x: torch.fft.fft(x, 0), [(4, 5)]),
    (lambda x: torch.fft.fft(x, -2), [(4, 5)]),
    (lambda x: torch.fft.fft(x, 3, 2), [(4, 5)]),
    (lambda x: torch.fft.fft(x, 3, -3), [(4, 5)]),
    (lambda x: torch.fft.fftn(x, (3, 3), (0,)), [(4, 5)]),
]
IN_OTHER_WORDS: Refused = [
    (lambda x: torch.take_along_dim(x, INDICES[:3], 1), [(4, 5)]),
    (lambda x, t: torch.gradient(x, spacing=(t,), dim=0), [(4, 5), (5,)]),
    (lambda x: F.fractional_max_pool3d(x, 4, output_size=3), [(1, 5, 5, 5)]),
]


@pytest.mark.parametrize(("f", "shapes"), IN_ITS_WORDS + IN_OTHER_WORDS)
def test_what_the_op_refuses_is_refused_in_a_trace(
    f: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [torch.ones(shape) for shape in shapes]
    with pytest.raises((RuntimeError, IndexError)) as expected:
        f(*inputs)
    words = None if (f, shapes) in IN_OTHER_WORDS else re.escape(str(expected.value)[:30])
    with pytest.raises(type(expected.value), match=words):
        make_fx(f, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)


def _fewest(sizes: tuple[int, ...]) -> int:
    """Of all orders in which matrices of these sizes can be multiplied, the fewest
    multiplications."""
    if len(sizes) < 3:
        return 0
    return min(
        _fewest(sizes[: cut + 1]) + _fewest(sizes[cut:]) + sizes[0] * sizes[cut] * sizes[-1]
        for cut in range(1, len(sizes) - 1)
    )


@pytest.mark.parametrize(
    "sizes",
    [(2, 30, 3, 40), (40, 3, 30, 2), (5, 2, 9, 3, 20), (20, 3, 2, 9, 5, 7), (3, 4, 50, 2, 60, 5)],
)
def test_a_chain_of_products_is_multiplied_in_the_order_of_the_fewest_operations(
    sizes: tuple[int, ...],
) -> None:
    inputs = [torch.randn(n, m, dtype=torch.float64) for n, m in pairwise(sizes)]
    traced = make_fx(lambda *xs: torch.linalg.multi_dot(xs), tracing_mode="symbolic")(*inputs)
    with FlopCounterMode(display=False) as counted:
        found = traced(*inputs)
    torch.testing.assert_close(found, functools.reduce(torch.mm, inputs))
    assert counted.get_total_flops() == 2 * _fewest(sizes)


def test_a_diagonal_that_wraps_is_no_diagonal_for_symbolic_sizes() -> None:
    with pytest.raises(RuntimeError, match="symbolic sizes"):
        make_fx(lambda x: x.clone().fill_diagonal_(1.0, wrap=True), tracing_mode="symbolic")(
            torch.zeros(7, 3)
        )


def test_of_orders_that_take_as_many_operations_the_product_has_that_of_aten() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(4, 4) for _ in range(5)]
    traced = make_fx(lambda *xs: torch.linalg.multi_dot(xs), tracing_mode="symbolic")(*inputs)
    assert traced(*inputs).equal(torch.linalg.multi_dot(inputs))


PLAIN: dict[str, Callable[..., torch.Tensor]] = {
    "kron": torch.kron,
    "take_along_dim": lambda x, y: torch.take_along_dim(x, y.long(), 1),
    "multi_dot": lambda x, y: torch.linalg.multi_dot((x, y, x)),
    "fill_diagonal_": lambda x, y: (x * y).fill_diagonal_(2.0),
}


@pytest.mark.parametrize("name", PLAIN)
def test_sizes_that_are_numbers_have_the_calls_of_aten(name: str) -> None:
    """A size of one is a number in every graph."""
    inputs = torch.ones(1, 1), torch.zeros(1, 1)
    graphs = [
        trace(PLAIN[name], tracing_mode="symbolic")(*inputs).graph
        for trace in (make_fx, torch_make_fx)
    ]
    ops = [
        [n.target for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
        for graph in graphs
    ]
    assert ops[0] == ops[1]


def test_traces_of_torch_are_what_they_are_without_this_package() -> None:
    """torch's tracer takes the sizes of kron as numbers."""
    traced = torch_make_fx(torch.kron, tracing_mode="symbolic")(torch.ones(4, 5), torch.ones(2, 3))
    assert not any(node.target is torch.ops.aten.sym_size.int for node in traced.graph.nodes)
