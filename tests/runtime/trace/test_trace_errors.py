"""What a trace refuses, and with which words, and constants that are no tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from runtime.aot import make_fx
from tests.runtime.trace.graphs import node, targets

X = torch.tensor([1.0, 2.0])
aten = torch.ops.aten


def test_a_condition_on_a_value_that_is_not_known_names_the_line() -> None:
    with pytest.raises(GuardOnDataDependentSymNode) as error:
        make_fx(lambda x: x * 2 if x.sum().item() > 1 else x, tracing_mode="symbolic")(X)
    line = str(error.value).splitlines()[-1]
    assert line.startswith(
        "The program asks for a condition on a value that is not known while it "
        "is traced. It happened at "
    )
    assert "test_trace_errors.py" in line


def test_a_fake_tensor_is_no_constant_of_a_program_on_real_tensors() -> None:
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    with pytest.raises(
        RuntimeError, match="the program closes over a fake tensor, and its arguments are real"
    ):
        make_fx(lambda x: x * fake)(X)


CHANGES: dict[str, Any] = {
    "transpose": lambda t: t.t_(),
    "unsqueeze": lambda t: t.unsqueeze_(0),
    "squeeze": lambda t: t.squeeze_(0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", ["real", "fake"])
def test_sizes_of_what_the_program_closes_over_do_not_change_in_place(
    mode: str, change: str
) -> None:
    closed = torch.ones(1, 2)
    with pytest.raises(
        RuntimeError,
        match=(
            r"metadata mutating ops on a tensor that the program closes "
            r"over.*test_trace_errors\.py"
        ),
    ):
        make_fx(
            lambda x: (CHANGES[change](closed), x)[1],
            tracing_mode=mode,
            _allow_non_fake_inputs=True,
        )(X)
    assert closed.shape == (1, 2)


@pytest.mark.parametrize("change", CHANGES)
def test_sizes_of_what_the_program_makes_or_is_given_change_in_place(change: str) -> None:
    def program(x: Tensor) -> Any:
        made = x * 2
        CHANGES[change](made)
        CHANGES[change](x)
        return made, made.shape, x + 1, x.stride()

    module = make_fx(program)(torch.ones(1, 2))
    x = torch.arange(2.0).view(1, 2)
    torch.testing.assert_close(module(x.clone()), program(x.clone()))


@pytest.mark.parametrize(
    "value", [complex(1, math.inf), complex(2, -math.inf), complex(math.inf, 1), 1 + 2j], ids=str
)
def test_any_complex_number_is_a_constant_of_a_graph(value: complex) -> None:
    def program(x: Tensor) -> Tensor:
        return x * value + torch.full((2,), value)

    module = make_fx(program)(X)
    torch.testing.assert_close(module(X), program(X), equal_nan=True)
    if math.isinf(value.imag):
        assert node(module, "_opaque_obj0").op == "get_attr"
    else:
        assert not [n for n in module.graph.nodes if n.op == "get_attr"]


def test_a_generator_that_is_used_twice_is_one_constant_and_another_one_is_another() -> None:
    one, two = torch.Generator(), torch.Generator()

    def program(x: Tensor) -> list[Tensor]:
        return [torch.rand(2, generator=g) + x for g in (one, two, one)]

    module = make_fx(program)(X)
    assert len({n.target for n in module.graph.nodes if n.op == "get_attr"}) == 2
    for g, seed in ((one, 1), (two, 2)):
        g.manual_seed(seed)
    found = module(X)
    for g, seed in ((one, 1), (two, 2)):
        g.manual_seed(seed)
    torch.testing.assert_close(found, program(X))


def test_parameters_and_tensors_are_attributes_that_are_numbered_apart() -> None:
    weights, tensors = (
        [torch.nn.Parameter(torch.ones(2)) for _ in range(2)],
        [torch.ones(2), torch.ones(2)],
    )
    module = make_fx(lambda x: x * weights[0] + weights[1] * tensors[0] - tensors[1] + weights[0])(
        X
    )
    assert [name for name, _ in module.named_parameters()] == [
        "_param_constant0",
        "_param_constant1",
    ]
    assert [name for name, _ in module.named_buffers()] == [
        "_tensor_constant0",
        "_tensor_constant1",
    ]
    assert module._param_constant1 is weights[1] and module._tensor_constant1 is tensors[1]
    assert sum(n.op == "get_attr" for n in module.graph.nodes) == 4


def test_a_program_without_arguments_has_no_placeholders() -> None:
    module = make_fx(lambda: torch.ones(2) * 3)()
    assert [n.op for n in module.graph.nodes] == [
        "call_function",
        "call_function",
        "output",
    ] and module().tolist() == [3.0, 3.0]
    assert targets(module) == [aten.ones.default, aten.mul.Tensor]


def test_a_constant_has_the_line_of_its_first_use() -> None:
    closed = torch.ones(2)

    def program(x: Tensor) -> Tensor:
        x = x + closed
        return x * closed

    line = program.__code__.co_firstlineno + 1
    constant = node(make_fx(program)(X), "_tensor_constant0")
    assert constant.meta["user_line"] == (__file__, line, "program")
