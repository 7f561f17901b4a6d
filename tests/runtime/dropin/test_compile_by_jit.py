"""With ``install(compile="jit")`` a program's ``torch.compile`` is ``runtime.jit``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import dropin
from runtime.jit import explain


def test_functions_modules_and_decorators() -> None:
    with dropin.installed(compile="jit"):

        @torch.compile(dynamic=False)
        def f(x: Any) -> Any:
            return x.sin() * 2

        x = torch.zeros(3, requires_grad=True)
        f(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2.0] * 3 and len(explain(f).programs) == 1
        model = nn.Linear(2, 1)
        compiled = torch.compile(model)
        compiled(torch.ones(4, 2)).sum().backward()
        assert model.weight.grad is not None and model.weight.grad.tolist() == [[4.0, 4.0]]
        model.compile()
        assert torch.equal(model(torch.ones(4, 2)), compiled(torch.ones(4, 2)))
        assert torch.compile(model, disable=True) is model


def test_what_cannot_be_captured_runs_eagerly_or_is_an_error() -> None:
    def f(x: Any) -> Any:
        return x * x.tolist()[0] * 2

    with dropin.installed(compile="jit"):
        with pytest.warns(UserWarning, match="cannot be captured, so that it runs eagerly"):
            assert torch.compile(f)(torch.ones(1)).item() == 2.0
        with pytest.raises(RuntimeError, match="asks for the elements of a tensor"):
            torch.compile(f, fullgraph=True)(torch.ones(1))


def test_a_backend_that_is_a_function_compiles_the_graphs() -> None:
    graphs: list[Any] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        graphs.append(module)
        return module.forward

    with dropin.installed(compile="jit"):
        assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1)).item() == 2.0
    assert len(graphs) == 1


def test_another_word_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"compile='trace'; .* captures programs with 'dynamo' or 'jit'"
    ):
        dropin.install(compile="trace")
    assert not dropin.is_installed() and runtime.jit is not None


def test_an_argument_that_requires_grad_is_returned_under_inference_mode() -> None:
    with dropin.installed():
        x = torch.ones(2).requires_grad_()
        jitted = runtime.jit(lambda a: [a])
        with torch.inference_mode():
            assert jitted(x)[0] is x
