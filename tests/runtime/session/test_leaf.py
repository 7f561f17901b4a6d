"""A plain tensor of torch that requires grad is a leaf of our tape. Its gradient arrives where torch would put it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

import runtime
from runtime.session import leaf as leaves
from runtime.session.leaf import as_leaf


class Square(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g * ctx.saved_tensors[0]


def plain() -> torch.Tensor:
    return torch.tensor([1.0, 2.0], requires_grad=True)


def test_a_plain_tensor_is_the_same_leaf_every_time() -> None:
    t = plain()
    assert as_leaf(t) is as_leaf(t) and as_leaf(t) is not as_leaf(plain())


def test_gradients_add_up_in_the_plain_tensors_grad() -> None:
    t = plain()
    Square.apply(t).sum().backward()
    first = t.grad
    Square.apply(t).sum().backward()
    assert t.grad is first and type(first) is torch.Tensor and first.tolist() == [4.0, 8.0]


def test_hooks_of_the_plain_tensor_run() -> None:
    t, seen = plain(), []
    Square.apply(t)
    handle = t.register_hook(lambda g: g * 10)
    t.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    Square.apply(t).sum().backward()
    handle.remove()
    Square.apply(t).sum().backward()
    assert t.grad is not None and t.grad.tolist() == [22.0, 44.0]
    assert [p is t for p in seen] == [True, True]


def test_other_data_make_another_leaf() -> None:
    t = plain()
    before = as_leaf(t)
    t.data = torch.tensor([3.0, 4.0])
    assert as_leaf(t) is not before
    Square.apply(t).sum().backward()
    assert t.grad is not None and t.grad.tolist() == [6.0, 8.0]


def test_the_leaf_goes_with_the_plain_tensor() -> None:
    t = plain()
    number, held = id(t), weakref.ref(as_leaf(t))
    out = Square.apply(t).sum()
    del t
    gc.collect()
    assert number not in leaves._known
    out.backward()
    del out
    gc.collect()
    assert held() is None


def test_a_tensor_that_is_frozen_before_the_backward_pass_gets_no_gradient() -> None:
    t = plain()
    out = Square.apply(t).sum()
    t.requires_grad_(False)
    out.backward()
    assert t.grad is None
