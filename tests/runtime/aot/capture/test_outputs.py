"""How each result of a program is made: computed, an argument, or views of one; see
`boundary_text` for the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from tests.runtime.aot.capture.boundary_helpers import compiled


class Views(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x[0]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return torch.stack([g, g * 0])


class Reversed(runtime.autograd.Function):
    """Gives its argument, and the gradient with the other sign."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -g


class Same(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 3


def of_a_result(x: Any) -> Any:
    z = x * 2
    return Reversed.apply(z), z, z[0]


def of_what_is_detached(x: Any) -> Any:
    z = x.detach()
    return Reversed.apply(z.mul_(x)), z


VIEWS_BY_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "of an argument": lambda x: Reversed.apply(x),
    "the argument as it is": lambda x: Same.apply(x),
    "the first row": lambda x: Views.apply(x),
    "a view of one": lambda x: Reversed.apply(x)[1:],
    "two views of one": lambda x: Reversed.apply(x).unbind(),
    "one of a view": lambda x: Reversed.apply(x[0]),
    "one of one": lambda x: Same.apply(Reversed.apply(x)),
    "of a result alone": lambda x: Reversed.apply(x * 2),
    "of a result beside it": of_a_result,
    "of a written detached argument": of_what_is_detached,
}


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("name", VIEWS_BY_FUNCTIONS)
def test_a_view_that_a_function_has_made_keeps_the_gradient_of_the_function_and_the_memory(
    name: str, history: bool
) -> None:
    def outcome(f: Callable[[Any], Any]) -> Any:
        x = runtime.wrap(torch.arange(6.0).view(2, 3), requires_grad=True)
        given = x * 1 if history else x
        made = f(given)
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        sum((i + 2) * r.sum() for i, r in enumerate(results) if r.requires_grad).backward()
        storages = [runtime.unwrap(r).untyped_storage().data_ptr() for r in (given, *results)]
        return x.grad.tolist(), [r.tolist() for r in results], [storages.index(s) for s in storages]

    f = VIEWS_BY_FUNCTIONS[name]
    assert outcome(compiled(f)) == outcome(f)
