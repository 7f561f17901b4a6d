"""Numbers that a program computes of symbolic sizes become calls of functions in its graph, and
equal Python's for every later size."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from runtime import jit

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: x * float(x.shape[0]),
    "sym_float": lambda x: x * torch.sym_float(x.shape[0]),
    "power": lambda x: x * x.shape[0] ** -0.5,
    "sqrt": lambda x: x * math.sqrt(x.shape[0]),
    "round": lambda x: x.new_zeros(round(x.shape[0] * 0.3)),
    "round to one digit": lambda x: x * round(x.shape[0] * 0.37, 1),
    "int": lambda x: x.new_zeros(int(x.shape[0] * 0.7)),
    "ceil": lambda x: x.new_zeros(math.ceil(x.shape[0] * 0.7)),
    "floor": lambda x: x.new_zeros(math.floor(x.shape[0] / 2.5)),
    "logarithm": lambda x: x * math.log(x.shape[0]),
    "quotient": lambda x: x * (x.shape[0] // 2.5),
    "remainder": lambda x: x * (x.shape[0] % 2.5),
    "minimum": lambda x: x.new_zeros(min(x.shape)),
    "scale of an attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x, x, x, is_causal=True
    ),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_number_of_symbolic_sizes_equals_pythons(program: Callable[[Tensor], Tensor]) -> None:
    run = jit(program, dynamic=True)
    for shape in ((6, 4), (9, 5), (3, 7), (6, 4)):
        x = torch.randn(shape)
        assert torch.equal(run(x), program(x))
