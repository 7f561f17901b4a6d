"""What the records beside an exported graph say of a module that has one of everything, and that
the code of a graph is up to date."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from runtime.aot import aot_export_joint_simple, aot_export_module, export


class Everything(nn.Module):
    """Parameters, a shared one too, buffers of both kinds, a constant, and writes to one of
    each."""

    count: Tensor
    kept: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((2,), 2.0))
        self.inner = nn.Linear(2, 2)
        self.again = self.inner.bias
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("kept", torch.ones(2), persistent=False)
        self.register_buffer("seen", torch.zeros(2))
        self.constant = torch.full((2,), 3.0)

    def forward(
        self, x: Tensor, n: int, more: list[Tensor], *, scale: Tensor
    ) -> tuple[Tensor, dict[str, Any], int]:
        self.count.add_(1)
        more[1].mul_(2)
        self.seen.copy_(x.detach())
        y = self.inner(x) * self.first * n + self.kept + more[0] * scale + self.constant
        return y.detach(), {"loss": (y * self.second).sum(), "n": None}, 4


def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.tensor([1.0, -1.0]), 3, [torch.ones(2), torch.ones(2)]), {
        "scale": torch.tensor(0.5)
    }


BUFFERS = ["count", "kept", "seen"]


def _module() -> Everything:
    torch.manual_seed(0)
    return Everything()


def _placeholders(graph: fx.GraphModule) -> list[str]:
    return [n.name for n in graph.graph.nodes if n.op == "placeholder"]


def _results(graph: fx.GraphModule) -> list[str | None]:
    results: Any = graph.graph.output_node().args[0]
    return [r.name if isinstance(r, fx.Node) else None for r in results]


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_signature_without_gradients(pre_dispatch: bool) -> None:
    args, kwargs = arguments()
    graph, s = aot_export_module(
        _module(), args, trace_joint=False, kwargs=kwargs, pre_dispatch=pre_dispatch
    )
    parameters = ["first", "second", "again", "inner.weight", "inner.bias"]
    inputs = [f"arg{i}_1" for i in range(len(parameters) + len(BUFFERS) + 5)]
    assert _placeholders(graph) == list(inspect.signature(graph.forward).parameters) == inputs
    assert (s.parameters, s.buffers, s.user_inputs) == (parameters, BUFFERS, inputs[8:])
    assert s.inputs_to_parameters == dict(zip(inputs[:5], parameters, strict=True))
    assert s.inputs_to_buffers == dict(zip(inputs[5:8], BUFFERS, strict=True))
    names = _results(graph)
    assert list(s.buffers_to_mutate.items()) == [(names[0], "count"), (names[1], "seen")]
    assert s.user_inputs_to_mutate == {names[2]: inputs[11]} and s.parameters_to_mutate == {}
    assert (
        s.user_outputs == names[3:] and names[5:] == [None, None] and s.backward_signature is None
    )
    assert (s.in_spec.num_leaves, s.out_spec.num_leaves) == (len(inputs), 4)


def test_a_signature_with_gradients_names_each_by_its_output() -> None:
    args, kwargs = arguments()
    args[0].requires_grad_()
    kwargs["scale"].requires_grad_()
    module = _Loss(_module())
    graph, s = aot_export_module(
        module, args, trace_joint=True, output_loss_index=-1, kwargs=kwargs
    )
    names, backward = _results(graph), s.backward_signature
    assert backward is not None
    own = [name for name in s.parameters if name.startswith("of.")]
    assert list(backward.gradients_to_parameters.values()) == own
    assert list(backward.gradients_to_user_inputs.values()) == [s.user_inputs[0], s.user_inputs[4]]
    assert [*backward.gradients_to_parameters, *backward.gradients_to_user_inputs] == names[-6:]
    assert s.user_outputs == names[3:5] and backward.loss_output == names[4]


class _Loss(nn.Module):
    """The first result and the loss of :class:`Everything`, which uses each
    parameter under one name."""

    def __init__(self, of: Everything) -> None:
        super().__init__()
        del of.again
        self.of = of

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        detached, results, _ = self.of(*args, **kwargs)
        return detached, results["loss"]


def test_the_signature_of_a_program() -> None:
    args, kwargs = arguments()
    program = export(_module(), args, kwargs)
    s = program.graph_signature
    inputs = [(i.kind, i.target, i.persistent) for i in s.input_specs]
    parameters = ["first", "second", "again", "inner.weight"]
    assert inputs[:7] == [
        *((InputKind.PARAMETER, name, None) for name in parameters),
        *((InputKind.BUFFER, name, name != "kept") for name in BUFFERS),
    ]
    assert inputs[7:9] == [
        (InputKind.PARAMETER, "inner.bias", None),
        (InputKind.CONSTANT_TENSOR, "_tensor_constant0", None),
    ]
    assert [i.arg.name for i in s.input_specs[9:]] == ["x", "n", "more_0", "more_1", "scale"]
    assert {k for k, _, _ in inputs[9:]} == {InputKind.USER_INPUT}
    assert [(o.kind, o.target) for o in s.output_specs] == [
        (OutputKind.BUFFER_MUTATION, "count"),
        (OutputKind.BUFFER_MUTATION, "seen"),
        (OutputKind.USER_INPUT_MUTATION, "more_1"),
        *[(OutputKind.USER_OUTPUT, None)] * 4,
    ]
    assert set(program.state_dict) == {*parameters, "inner.bias", "count", "seen"}
    assert program.state_dict["again"] is program.state_dict["inner.bias"]
    assert set(program.constants) == {"kept", "_tensor_constant0"}


def test_a_program_with_one_of_everything_does_what_the_module_does() -> None:
    module, (args, kwargs) = _module(), arguments()
    program = export(module, *arguments()).module()
    found, expected = program(*args, **kwargs), module(*(theirs := arguments())[0], **theirs[1])
    torch.testing.assert_close((found[0], found[1]["loss"]), (expected[0], expected[1]["loss"]))
    assert found[1]["n"] is None and found[2] == 4
    torch.testing.assert_close(args[2], theirs[0][2])
    torch.testing.assert_close(dict(program.named_buffers())["seen"], module.seen)


SIMPLE: dict[str, Any] = {
    "a tuple": lambda: aot_export_joint_simple(
        lambda x, y: (x * y, y * 2), (torch.ones(2), torch.ones(2)), trace_joint=False
    ),
    "a list": lambda: aot_export_joint_simple(
        lambda x, y: [x * y, y * 2], (torch.ones(2), torch.ones(2)), trace_joint=False
    ),
    "a module": lambda: aot_export_module(
        _Product(), (torch.ones(2), torch.ones(2)), trace_joint=False
    )[0],
    "a module before dispatch": lambda: aot_export_module(
        _Product(), (torch.ones(2),) * 2, trace_joint=False, pre_dispatch=True
    )[0],
}


class _Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [x * y, y * 2]


@pytest.mark.parametrize("name", SIMPLE)
def test_a_graph_is_called_by_position_and_returns_a_tuple(name: str) -> None:
    graph = SIMPLE[name]()
    assert (
        list(inspect.signature(graph.forward).parameters)
        == _placeholders(graph)
        == ["arg0_1", "arg1_1"]
    )
    found = graph(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert [t.tolist() for t in found] == [[3.0, 8.0], [6.0, 8.0]]
    assert type(found) is tuple


def test_a_joint_graph_has_lists_of_arguments_and_of_results() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    graph = aot_export_joint_simple(
        lambda a, b, n: (a * b, b * n), (x, x.detach(), 3), trace_joint=True
    )
    outs, gradients = graph([x.detach(), x.detach(), 3], [torch.ones(2)])
    assert type(outs) is list and [t.tolist() for t in outs] == [[1.0, 4.0], [3.0, 6.0]]
    assert (
        type(gradients) is list
        and gradients[0].tolist() == [1.0, 2.0]
        and gradients[1:] == [None, None]
    )
