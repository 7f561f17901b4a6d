"""A graph that reads numbers of tensors computes the same with tensors in their place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime.aot.compilers.inductor_graphs import NumberTensors, numbers_of
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


def captured(
    program: Callable[..., Any], *args: Tensor
) -> tuple[Callable[..., Any], fx.GraphModule]:
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    f = jit(program, compiler=keep)
    f(*args)
    return f, graphs[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_takes_a_tensor_in_place_of_a_number(name: str) -> None:
    x, t = torch.linspace(-1, 1, 5), torch.tensor(0.7)
    f, module = captured(PROGRAMS[name], x, t)
    later = torch.tensor(0.3)
    expected = PROGRAMS[name](x, later)
    assert torch.equal(f(x, later), expected)
    torch.testing.assert_close(NumberTensors(module).run(x, later)[0], expected)


def test_numbers_of_the_program_keep_their_precision() -> None:
    x, t = torch.linspace(-1, 1, 5, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    _, module = captured(lambda x, t: x * (1 - 0.9 ** t.item()), x, t)
    torch.testing.assert_close(
        NumberTensors(module).run(x, t)[0], x * (1 - 0.9 ** t.item()), rtol=1e-12, atol=0
    )


def test_a_number_among_the_results_is_known() -> None:
    _, module = captured(lambda x: (x * 2, x.sum().item()), torch.ones(3))
    assert numbers_of(module) == [1]
    assert math.isclose(NumberTensors(module).run(torch.ones(3) * 2)[1].item(), 6.0)


def test_an_op_that_takes_no_tensor_there_is_an_error_with_its_name() -> None:
    x, t = torch.linspace(-1, 1, 5), torch.tensor(0.7)
    _, module = captured(lambda x, t: torch.nn.functional.threshold(x, t.item(), 0.0), x, t)
    with pytest.raises(RuntimeError, match="threshold"):
        NumberTensors(module).run(x, t)
