"""A program that asks for the class of a tensor takes the branch that it takes in eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from runtime.aot import aot_function, nop
from tests.runtime.aot.subclass_helpers import Scaled, as_in_torch, nested, two


def by_class(x: Any) -> Any:
    return x * 2 if isinstance(x, TwoTensor) else x * 3


def by_class_of_a_result(x: Any) -> Any:
    y = x.sin()
    view = y[0]
    return [t * 2 if isinstance(t, TwoTensor) else t * 3 for t in (y, view, view.sum(), y.detach())]


def by_class_after_a_write(x: Any) -> Any:
    x.mul_(2)
    x.t_()
    return x * 2 if isinstance(x, TwoTensor) else x * 3


def by_class_under_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = x.exp()
    return x * 2 + (y * 2 if isinstance(y, TwoTensor) else y * 3)


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize("program", [by_class, by_class_of_a_result, by_class_after_a_write, by_class_under_no_grad])
def test_isinstance_is_as_in_torch(program: Any, make: Any) -> None:
    as_in_torch(program, lambda: [make()])


@pytest.mark.parametrize("dynamic", [False, True])
def test_plain_tensors_and_other_classes_take_the_other_side(dynamic: bool) -> None:
    compiled = aot_function(by_class, nop, dynamic=dynamic)
    x = torch.ones(2, 3)
    assert compiled(x).equal(x * 3)
    assert compiled(TwoTensor(x, x * 5)).b.equal(x * 10)
    scaled = compiled(Scaled(x, 4.0))
    assert (scaled.elements * scaled.scale).equal(x * 12)
    with torch.no_grad():
        assert compiled(TwoTensor(x, x * 5)).b.equal(x * 10)


def test_a_closed_over_tensor_shows_its_class() -> None:
    w = TwoTensor(torch.ones(2), torch.ones(2) * 5)
    found = aot_function(lambda x: by_class(w * x), nop)(torch.ones(2))
    assert found.a.tolist() == [2.0, 2.0] and found.b.tolist() == [10.0, 10.0]


@pytest.mark.parametrize("ask", [lambda x: x.a, lambda x: hasattr(x, "a"), lambda x: (x * 2).b, lambda x: getattr(x, "a", None)])
@pytest.mark.parametrize("recording", [False, True])
def test_other_attributes_of_the_class_are_refused_by_name(ask: Any, recording: bool) -> None:
    def program(x: Any) -> Any:
        ask(x)
        return x * 2

    with torch.set_grad_enabled(recording), pytest.raises(RuntimeError, match=r"asks a TwoTensor for its attribute '[ab]'.*test_shown\.py"):
        aot_function(program, nop)(TwoTensor(torch.ones(2), torch.ones(2)))


def test_attributes_that_the_class_does_not_have_are_absent() -> None:
    def program(x: Any) -> Any:
        return x * 2 if hasattr(x, "scale") else x * 3

    found = aot_function(program, nop)(TwoTensor(torch.ones(2), torch.ones(2)))
    assert found.a.tolist() == [3.0, 3.0]
