"""Programs that call ``requires_grad_()`` of what they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import runtime

from .boundary_helpers import compiled


@pytest.mark.parametrize("use", [lambda w: w, lambda w: w * 2, lambda w: (w, w)])
def test_a_view_from_before_requires_grad_is_refused(use: Any) -> None:
    def f(x: Any) -> Any:
        v = x.sin()
        w = v.view(-1)
        v.requires_grad_()  # w requires grad now
        return use(w), v

    with pytest.raises(RuntimeError, match=r"takes a view of a tensor, calls requires_grad_\(\) on the tensor, and uses the view"):
        compiled(f)(torch.ones(2, 2))


def test_a_written_view_of_an_argument_becomes_a_leaf() -> None:
    def f(x: Any) -> Any:
        v = x.squeeze(0)
        v.clamp_(0, 1)
        return v.requires_grad_()

    x = runtime.tensor([[2.0, 0.5]])
    v = compiled(f)(x)
    assert v.requires_grad and v.is_leaf and not x.requires_grad and x.tolist() == [[1.0, 0.5]]
    v.square().sum().backward()
    assert v.grad.tolist() == [2.0, 1.0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_a_leaf_of_the_program_have_its_history(dynamic: bool) -> None:
    def f(x: Any) -> Any:
        leaf = x.sin().detach().requires_grad_()
        return leaf.t(), leaf[0]

    def seen(x: Any, f: Any) -> Any:
        a, b = f(x)
        with torch.no_grad():
            a.zero_()  # they share memory
        return [(t.requires_grad, t.is_leaf, t.tolist(), t._base is a._base) for t in (a, b)], a._base.is_leaf

    expected = seen(torch.ones(2, 3, requires_grad=True), f)
    assert seen(runtime.wrap(torch.ones(2, 3), requires_grad=True), compiled(f, dynamic=dynamic)) == expected


def test_requires_grad_of_an_argument_with_a_view_among_the_arguments_is_refused() -> None:
    """The view requires grad then, too. A call of tensors that share nothing has a program of its own."""

    def f(x: Any, view: Any) -> Any:
        x.requires_grad_()
        return view.sum() * 2 + x.sum()

    x = torch.ones(3)
    compiled_f = compiled(f)
    with pytest.raises(RuntimeError, match=r"requires_grad_\(\) on argument 0, which shares memory with another one"):
        compiled_f(x, x[1:])
    assert compiled_f(torch.ones(3), torch.ones(2)).item() == 7.0
    with pytest.raises(RuntimeError, match=r"requires_grad_\(\) on argument 0, which shares memory with another one"):
        compiled_f(x, x[1:])
