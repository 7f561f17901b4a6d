"""Compiled programs that are called under ``no_grad``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import runtime
from runtime import tensor
from tests.runtime.aot.capture.boundary_helpers import both, compiled, equal


def test_a_leaf_may_change_its_geometry_and_its_elements() -> None:
    def f(x: Any) -> Any:
        x.t_()
        x.mul_(2)
        return x

    def program(f: Callable[..., Any]) -> Any:
        x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        with torch.no_grad():
            return f(x), x.is_leaf, x.requires_grad

    assert equal(*both(f, program))


def test_it_sees_which_arguments_require_grad() -> None:
    w, c = tensor([1.0], requires_grad=True), tensor([1.0])

    def f(x: Any, y: Any) -> Any:
        return [
            x.requires_grad,
            y.requires_grad,
            w.requires_grad,
            c.requires_grad,
            (x * y * w * c).requires_grad,
        ]

    g = compiled(f)
    with torch.no_grad():
        for x, y in ((w, c), (c, w * 1), (c, c), (w, w)):
            assert g(x, y) == f(x, y)


def test_a_view_that_it_takes_requires_grad_for_what_is_computed_with_grad() -> None:
    def f(x: Any) -> Any:
        view = x[1:]
        with torch.enable_grad():
            return [view.requires_grad, (view * 2).requires_grad]

    x = tensor([1.0, 2.0], requires_grad=True) * 1
    with torch.no_grad():
        assert compiled(f)(x) == f(x)


def test_what_it_computes_with_grad_has_a_history() -> None:
    def program(f: Callable[..., Any]) -> Any:
        leaf = tensor([1.0, 2.0], requires_grad=True)
        x = leaf * 1
        with torch.no_grad():
            found = f(x)
        loss = sum(t.sum() for t in (*found, x) if t.requires_grad)
        return found, [t.requires_grad for t in found], x, runtime.autograd.grad(loss, leaf)

    def f(x: Any) -> Any:
        before = x * 3
        with torch.enable_grad():
            x.mul_(2)
            y = x.sin()
            view = x[1:]
        return before, y, y * 2, view, view.view(-1)

    assert equal(*both(f, program))


def test_a_view_of_a_view_from_no_grad_ends_the_history_there() -> None:
    def f(x: Any) -> Any:
        with torch.no_grad():
            rows = x[:2]
        return rows[0], rows

    def program(f: Callable[..., Any]) -> Any:
        x = tensor([[1.0], [2.0], [3.0]], requires_grad=True)
        row, rows = f(x)
        flags = [row.requires_grad, row.is_leaf, rows.requires_grad, rows.is_leaf]
        return flags, runtime.autograd.grad(row.sum() * 2 + (x * x).sum(), x)

    assert equal(*both(f, program))


def test_detach_without_grad_mode_leaves_the_view_that_it_detaches_its_history() -> None:
    def f(x: Any) -> Any:
        row = x[0]
        with torch.no_grad():
            row.detach().sum()
        return row

    def program(f: Callable[..., Any]) -> Any:
        x = tensor([[1.0], [2.0]], requires_grad=True)
        return f(x).is_leaf, runtime.autograd.grad(f(x).sum(), x)

    assert equal(*both(f, program))


def test_a_view_of_an_intermediate_requires_grad_as_that_does() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        with torch.no_grad():
            return y[1:]

    def program(f: Callable[..., Any]) -> Any:
        x = tensor([1.0, 2.0], requires_grad=True)
        y = f(x)
        (y.sum() + x.sum()).backward()
        return y, y.requires_grad, y.is_leaf, y.grad is None, x.grad

    assert equal(*both(f, program))
