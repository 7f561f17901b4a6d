"""Inductor as a compiler. `inductor_programs` has the programs; here are a few of them, and
what is refused."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from runtime import jit
from runtime.aot import aot_function, aot_module, inductor, make_fx

ROOT = Path(__file__).parents[4]
here = partial(inductor, isolated=False)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_copies_and_training_steps_are_as_eager(kernels: Path) -> None:
    names = ["copies", "steps"]
    command = [sys.executable, "-m", "tests.runtime.aot.compilers.inductor_programs", *names]
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(kernels),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0 and done.stdout.count("as eager") == len(names), (
        done.stdout + done.stderr
    )


def test_a_program_that_inductor_does_not_compile_is_refused_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")

    def failing(*_: object, **__: object) -> None:
        raise KeyError("no such kernel\nmore lines")

    monkeypatch.setattr(compile_fx, "compile_fx_inner", failing)
    with pytest.raises(
        RuntimeError,
        match=r"a graph of 1 call.*: KeyError: 'no such kernel.*Use compiler=\"replay\"",
    ):
        aot_function(torch.sin, here)(torch.ones(2))


def test_an_op_whose_abstract_kernel_is_wrong_is_refused_by_name() -> None:
    with torch.library._scoped_library("inductor_tests", "DEF") as library:
        library.define("transposed(Tensor x) -> Tensor")
        library.impl("transposed", lambda x: x.t().clone(), "CPU")
        library.impl("transposed", torch.empty_like, "Meta")
        with pytest.raises(
            RuntimeError,
            match=(
                r"abstract kernels say of inductor_tests\.transposed\.default that "
                r"a result has shape \[2, 3\]"
            ),
        ):
            aot_function(lambda x: torch.ops.inductor_tests.transposed(x), here)(torch.ones(2, 3))


def test_an_lstm_is_compiled_with_its_backward_pass() -> None:
    model, x = nn.LSTM(4, 3, num_layers=2, bidirectional=True), torch.randn(5, 2, 4)

    def gradients(f: Any) -> list[Any]:
        model.zero_grad()
        out, (_, cell) = f(x)
        (out.sum() + cell.square().sum()).backward()
        return [out, cell, *(p.grad for p in model.parameters())]

    torch.testing.assert_close(gradients(aot_module(model, here)), gradients(model))


@pytest.mark.parametrize("grad", [False, True])
def test_an_lstm_whose_batch_comes_first_gets_its_steps_side_by_side(grad: bool) -> None:
    """Inductor may leave out the copy that lays them out so."""
    model, x = nn.LSTM(4, 3, batch_first=True), torch.randn(5, 2, 4)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(jit(model, compiler=here)(x)[0], model(x)[0])


def test_an_lstm_of_any_size_is_compiled_for_each() -> None:
    """Its workspace has no size that is a symbol."""
    model, x = nn.LSTM(4, 3), torch.ones(2, 1, 4)
    torch.testing.assert_close(jit(model, compiler=here, dynamic=True)(x)[0], model(x)[0])


def test_arguments_that_are_no_tensors_are_not_given_to_inductor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")

    def noting(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        given.extend(inputs)

        def run(args: list[Any]) -> Any:
            return module(*args)

        return run

    monkeypatch.setattr(compile_fx, "compile_fx_inner", noting)
    out = aot_function(lambda x, flag, n, text: x * n, here)(torch.ones(2), None, 3, "text")
    assert out.tolist() == [3.0, 3.0] and len(given) == 1


@pytest.mark.parametrize("compiler", ["replay", here])
def test_an_error_leaves_what_the_program_would_write_behind_it(compiler: Any) -> None:
    @partial(jit, compiler=compiler)
    def step(x: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        inverse: torch.Tensor = torch.linalg.inv(x)
        written.add_(5)
        return inverse

    written = torch.ones(3)
    step(torch.eye(2), written)
    with pytest.raises(RuntimeError, match="singular"):
        step(torch.zeros(2, 2), written)
    assert written.tolist() == [6.0] * 3 and written._version == 1


def test_random_numbers_are_those_of_eager_mode() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand(64)

    def seeded(f: Any) -> Any:
        torch.manual_seed(0)
        return f(torch.ones(64))

    assert torch.equal(seeded(aot_function(program, here)), seeded(program))


def test_a_graph_that_does_not_return_a_list_is_refused() -> None:
    module = make_fx(torch.sin)(torch.ones(2))
    with pytest.raises(RuntimeError, match="it returns no list"):
        inductor(module, [torch.ones(2)])
