"""The boxed calling convention, the compiler that replays, and ops of a layer for Inductor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot import make_boxed_compiler, make_boxed_func, make_fx

X = torch.arange(6.0).view(2, 3)


@pytest.fixture(autouse=True)
def generated_at_once() -> None:
    """Replaces the fixture of this name: here a compiler answers as users see it."""


def test_a_boxed_function_empties_its_list_before_it_runs() -> None:
    given: list[Any] = [1, 2]
    boxed = make_boxed_func(lambda a, b: (a, b, list(given)))
    assert boxed(given) == (1, 2, []) and given == []
    assert boxed._boxed_call is True  # type: ignore[attr-defined]


def test_a_compiler_can_be_boxed() -> None:
    seen: list[Any] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append((module, inputs))
        return module.forward

    module = make_fx(torch.sin)(X)
    args = [X]
    assert torch.equal(make_boxed_compiler(compiler)(module, args)([X]), X.sin())
    assert seen == [(module, args)]
