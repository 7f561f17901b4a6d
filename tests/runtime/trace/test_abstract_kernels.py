"""Ops for which torch has no abstract kernel are traced with symbolic sizes, and give eager's
results at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import runtime
from runtime.aot import aot_function, export, make_fx, nop
from runtime.func import grad, vmap

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "histogram of edges": lambda x: torch.histogram(x, torch.tensor([0.0, 0.5, 1.0])).hist,
    "histogram of a number of bins": lambda x: torch.histogram(x, 4),
    "masked softmax": lambda x: torch._masked_softmax(x[None, None], (x > 0.5)[None, None], 1, 0),
    "fake quantization": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
    "fake quantization of channels": lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.ones(6), torch.zeros(6), 1, 0, 255
    ),
    "binomial": lambda x: torch.binomial((x * 10).floor(), x),
    "dirichlet": lambda x: torch._sample_dirichlet(x),
    "geqrf": torch.geqrf,
    "gradient of gamma": grad(lambda x: torch._standard_gamma(x).sum()),
    "gradient of fractional pooling": grad(
        lambda x: F.fractional_max_pool3d(x.expand(1, 5, -1, -1), 2, output_size=2).sum()
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_gives_the_results_of_eager_at_another_size(name: str) -> None:
    f = PROGRAMS[name]
    module = make_fx(f, tracing_mode="symbolic")(torch.rand(4, 6))
    x = torch.rand(8, 6)
    torch.manual_seed(1)
    expected = f(x)
    torch.manual_seed(1)
    torch.testing.assert_close(module(x), expected, equal_nan=True)  # of a row that is masked


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_shapes_strides_and_dtypes_in_the_graph_are_those_of_the_kernel(name: str) -> None:
    f, x = PROGRAMS[name], torch.rand(4, 6)

    def results(mode: str) -> Any:
        (node,) = make_fx(f, tracing_mode=mode)(x).graph.find_nodes(op="output")
        out: Any = node.args[0]
        return [
            (n.meta["val"].shape, n.meta["val"].stride(), n.meta["val"].dtype)
            for n in (out if isinstance(out, (list, tuple)) else [out])
        ]

    assert results("fake") == results("real")


def ctc(x: Tensor) -> Tensor:
    labels = torch.tensor([[1, 2, 3], [1, 1, 1]])
    return torch.ctc_loss(x.log_softmax(2), labels, (7, 6), (3, 2), reduction=2, zero_infinity=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_lengths_of_a_ctc_loss_are_no_values(dynamic: bool) -> None:
    x = torch.rand(7, 2, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(ctc(x), x)
    torch.testing.assert_close(
        make_fx(grad(ctc), tracing_mode="symbolic" if dynamic else "real")(torch.rand(7, 2, 4))(
            x.detach()
        ),
        expected,
    )
    y = runtime.wrap(x.detach(), True)
    aot_function(ctc, nop, dynamic=dynamic)(y).backward()
    torch.testing.assert_close(runtime.unwrap(y.grad), expected)
    torch.testing.assert_close(
        export(ctc, (torch.rand(7, 2, 4),)).module()(x.detach()), ctc(x.detach())
    )


def test_a_batch_of_losses_in_another_order_in_memory_has_a_graph_for_any_size() -> None:
    """The graph takes a view of the losses, which exists or not by their strides."""
    loss = vmap(F.binary_cross_entropy, in_dims=(1, 0))
    compiled = aot_function(loss, nop, dynamic=True)
    for n in (4, 6):
        x, y = torch.rand(n, 3, n), torch.rand(3, n, n)
        expected = torch.stack(
            [F.binary_cross_entropy(a, b) for a, b in zip(x.unbind(1), y, strict=True)]
        )
        torch.testing.assert_close(compiled(x, y), expected)


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal of spreads": lambda x: torch.normal(0.0, x),
    "normal of means": lambda x: torch.normal(x, 1.0),
    "normal of both": lambda x: torch.normal(x, x[:1]),
    "poisson": torch.poisson,
    "_standard_gamma": torch._standard_gamma,
    "binomial": lambda x: torch.binomial((x * 9).floor(), x),
    "bernoulli": torch.bernoulli,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_second_draw_in_the_memory_of_a_first_one_is_that_of_eager_mode_at_any_size(
    draw: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return draw(x).bernoulli_(0.5)  # in the order of memory

    x = torch.linspace(0.1, 0.9, 20).reshape(4, 5).t()
    torch.manual_seed(0)
    expected = f(x)
    torch.manual_seed(0)
    found = aot_function(f, nop, dynamic=True)(x)
    assert torch.equal(found, expected) and found.stride() == expected.stride()
