"""A graph that reads numbers of tensors computes the same with tensors in their place, as Inductor
gets it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime.aot import inductor
from runtime.jit import jit

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a factor": lambda x, t: x * t.item() / (1 + t.item()),
    "powers": lambda x, t: x * (1 - 0.9 ** t.item()) ** 0.5,
    "alpha": lambda x, t: x.add(x, alpha=-t.item()).sub(x, alpha=t.item()),
    "lerp": lambda x, t: x.lerp(x * 2, t.item()),
    "addcmul": lambda x, t: torch.addcmul(x, x, x, value=t.item()),
    "addcdiv": lambda x, t: torch.addcdiv(x, x, x + 3, value=-t.item()),
    "an exponent": lambda x, t: x.abs() ** t.item(),
    "a value that fills": lambda x, t: x * 2 + torch.zeros_like(x).fill_(t.item()),
    "a root": lambda x, t: x * torch.sym_sqrt(t.item()),
    "the larger one": lambda x, t: x * torch.sym_max(t.item(), 0.5),
}


HERE = partial(inductor, isolated=False)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """The graphs that Inductor gets, which run as they are."""
    found: list[fx.GraphModule] = []

    def as_it_is(module: fx.GraphModule, inputs: list[Any]) -> Callable[[list[Any]], Any]:
        found.append(module)
        return lambda args: module(*args)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", as_it_is)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_takes_a_tensor_in_place_of_a_number(name: str, graphs: list[fx.GraphModule]) -> None:
    x, t, later = torch.linspace(-1, 1, 5), torch.tensor(0.7), torch.tensor(0.3)
    program = PROGRAMS[name]
    replay, of_tensors = jit(program), jit(program, compiler=HERE)
    for number in (t, later):
        assert torch.equal(replay(x, number), program(x, number))
        torch.testing.assert_close(of_tensors(x, number), program(x, number))
    (graph,) = (module.graph for module in graphs)
    assert all(isinstance(n.meta["val"], Tensor) for n in graph.nodes if n.op != "output")


def test_numbers_of_the_program_keep_their_precision() -> None:
    x, t = torch.linspace(-1, 1, 5, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)

    def program(x: Tensor, t: Tensor) -> Tensor:
        return x * (1 - 0.9 ** t.item())

    torch.testing.assert_close(jit(program, compiler=HERE)(x, t), program(x, t), rtol=1e-12, atol=0)


def test_a_number_among_the_results_is_one() -> None:
    f = jit(lambda x: (x * 2, x.sum().item()), compiler=HERE)
    for factor in (1.0, 2.0):
        doubled, total = f(torch.ones(3) * factor)
        assert doubled.tolist() == [2 * factor] * 3
        assert type(total) is float and math.isclose(total, 3 * factor)


BRANCHES: dict[str, Callable[[Tensor], Any]] = {
    "a tensor of truths": lambda x: x.sin() if x.sum() > 0 else x - 1,
    "a number": lambda x: x.sin() if x.sum().item() * 2 > 0 else x - 1,
    "equal elements": lambda x: x.sin() if torch.equal(x, x.abs()) else x - 1,
    "close elements": lambda x: x.sin() if torch.allclose(x, x.abs(), rtol=1e-3) else x - 1,
    "other sizes": lambda x: x.sin() if torch.equal(x, x[1:]) or x[0] > 0 else x - 1,
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_is_asked_for_behind_the_graph(name: str, graphs: list[fx.GraphModule]) -> None:
    program, x = BRANCHES[name], torch.tensor([0.5, 2.0, 3.0])
    compiled = jit(program, compiler=HERE)
    for values in (x, -x, x * 2):
        torch.testing.assert_close(compiled(values), program(values))
    assert len(graphs) == 2


def test_an_op_that_may_raise_on_the_other_side_is_refused() -> None:
    table = torch.arange(3.0)
    f = jit(lambda i: table[i] if i.max() < 3 else table, compiler=HERE)
    with pytest.raises(RuntimeError, match=r"it branches on a number .*, and an op may raise"):
        f(torch.tensor([0, 1]))


def test_an_op_that_takes_no_tensor_there_is_an_error_with_its_name() -> None:
    x, t = torch.linspace(-1, 1, 5), torch.tensor(0.7)
    f = jit(lambda x, t: torch.nn.functional.threshold(x, t.item(), 0.0), compiler=HERE)
    with pytest.raises(RuntimeError, match=r"threshold.* takes a number .* read of a tensor"):
        f(x, t)
