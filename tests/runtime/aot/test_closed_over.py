"""Closed-over tensors in calls that act before the dispatcher sees them: custom Functions, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import tensor
from runtime.aot import aot_function, aot_module, nop


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    return aot_function(f, fw_compiler=nop, bw_compiler=nop)


class Product(runtime.autograd.Function):
    @staticmethod
    def forward(x: Any, w: Any) -> Any:
        return x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        return g * w, g * x


class OldProduct(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x * w

    backward = Product.backward


@pytest.mark.parametrize("kind", [torch.tensor, runtime.tensor])
@pytest.mark.parametrize("function", [Product, OldProduct])
def test_a_custom_function_gives_a_closed_over_tensor_its_gradient(function: Any, kind: Any) -> None:
    w = kind([3.0, 4.0], requires_grad=True)
    x = tensor([1.0, 2.0], requires_grad=True)
    f = compiled(lambda x: function.apply(x, w))
    for _ in range(2):
        f(x).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0] and x.grad.tolist() == [6.0, 8.0]


@pytest.mark.parametrize("old", [False, True])
def test_a_custom_function_may_compute_with_a_tensor_from_outside(old: bool) -> None:
    w, count = tensor([3.0, 4.0], requires_grad=True), tensor([0.0])

    class Scaled(runtime.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            count.add_(1)
            return x * w

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * w

    class OldScaled(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return Scaled.forward(x)

        backward = Scaled.backward

    x = tensor([1.0, 2.0], requires_grad=True)
    f = compiled(OldScaled.apply if old else Scaled.apply)
    f(x)
    y = f(x)
    y.sum().backward()
    assert y.tolist() == [3.0, 8.0] and x.grad.tolist() == [3.0, 4.0] and w.grad is None and count.item() == 2


@pytest.mark.parametrize("layer", [nn.LSTM(3, 2), nn.GRU(3, 2), nn.RNN(3, 2), nn.LSTMCell(3, 2)], ids=lambda m: type(m).__name__)
def test_the_weights_of_a_recurrent_layer_get_their_gradients(layer: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3)

    def gradients(run: Any) -> list[Any]:
        layer.zero_grad()
        out = run(x)
        while isinstance(out, tuple):
            out = out[0]
        out.square().sum().backward()
        return [p.grad.clone() for p in layer.parameters()]

    for a, b in zip(gradients(aot_module(layer, nop)), gradients(layer), strict=True):
        torch.testing.assert_close(a, b)
