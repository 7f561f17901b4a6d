"""Graphs without a program around them: what they compute, what their signature says, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runtime.aot import aot_export_joint_simple, aot_export_module


class Scaled(nn.Module):
    """Counts its calls and adds to an argument."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, shift: dict[str, torch.Tensor]) -> tuple[torch.Tensor, None, int]:
        self.calls.add_(1)
        shift["by"].add_(1)
        return x * self.scale + shift["by"], None, 3


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(x)
        return y.detach(), (y * y * y).sum()


def test_the_graph_takes_parameters_buffers_and_leaves_and_returns_new_values_first() -> None:
    module = Scaled()
    graph, s = aot_export_module(module, (torch.ones(3),), trace_joint=False, kwargs={"shift": {"by": torch.zeros(3)}})
    new_calls, new_shift, out, none, three = graph(module.scale, module.calls, torch.tensor([1.0, 1.0, 2.0]), torch.zeros(3))
    assert (new_calls, none, three) == (1, None, 3) and new_shift.tolist() == [1.0] * 3 and out.tolist() == [2.0, 3.0, 7.0]
    assert s.parameters == ["scale"] and s.buffers == ["calls"] and len(s.user_inputs) == 2
    placeholders = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    assert [*s.inputs_to_parameters, *s.inputs_to_buffers, *s.user_inputs] == placeholders
    results: Any = graph.graph.output_node().args[0]
    assert s.buffers_to_mutate == {results[0].name: "calls"} and s.user_inputs_to_mutate == {results[1].name: s.user_inputs[1]}
    assert s.user_outputs == [results[2].name, None, None] and s.backward_signature is None
    assert s.out_spec.num_leaves == 3 and s.in_spec.num_leaves == 4


def test_export_leaves_the_module_and_the_arguments_as_they_are() -> None:
    module, shift = Scaled(), torch.zeros(3)
    aot_export_module(module, (torch.ones(3),), trace_joint=False, kwargs={"shift": {"by": shift}})
    assert module.calls == 0 and shift.tolist() == [0.0] * 3 and (module.calls._version, shift._version) == (0, 0)
    loss = Loss()
    before = {k: v.clone() for k, v in loss.state_dict().items()}
    aot_export_module(loss, (torch.randn(4, 3),), trace_joint=True, output_loss_index=1)
    torch.testing.assert_close(dict(loss.state_dict()), before, rtol=0, atol=0)


def test_a_joint_graph_gives_the_gradients_of_the_loss() -> None:
    module, x = Loss(), torch.randn(4, 3, requires_grad=True)
    graph, s = aot_export_module(module, (x,), trace_joint=True, output_loss_index=1)
    results = graph(*module.parameters(), *module.buffers(), x)
    names = [n.name for n in graph.graph.output_node().args[0]]  # type: ignore[union-attr]
    found = dict(zip(names, results, strict=True))
    _, loss = module(x)
    loss.backward()
    backward = s.backward_signature
    assert backward is not None and [*backward.gradients_to_parameters.values()] == ["norm.weight", "norm.bias"]
    torch.testing.assert_close(found[backward.loss_output], loss)
    for name, parameter in backward.gradients_to_parameters.items():
        torch.testing.assert_close(found[name], module.get_parameter(parameter).grad)
    ((name, argument),) = backward.gradients_to_user_inputs.items()
    assert argument == s.user_inputs[0]
    torch.testing.assert_close(found[name], x.grad)
    for name, buffer in s.buffers_to_mutate.items():
        torch.testing.assert_close(found[name], module.get_buffer(buffer))


def test_a_shared_parameter_has_the_gradient_of_the_uses_of_each_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Parameter(torch.tensor([2.0]))

        def forward(self) -> tuple[torch.Tensor]:
            return ((self.a * self.a * self.b).sum(),)

    module = Tied()
    graph, s = aot_export_module(module, (), trace_joint=True, output_loss_index=0)
    assert s.parameters == ["a", "b"]
    assert [r.item() for r in graph(module.a, module.b)] == [8.0, 8.0, 4.0]  # a³, then 2ab and a²


def test_fake_arguments_of_symbolic_size_make_one_graph_for_all_sizes() -> None:
    env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    mode = torch._subclasses.fake_tensor.FakeTensorMode(shape_env=env)
    graph, _ = aot_export_module(nn.Flatten(), (mode.from_tensor(torch.ones(2, 3, 4)),), trace_joint=False)
    assert graph(torch.ones(5, 2, 2))[0].shape == (5, 4)
    graph, _ = aot_export_module(nn.Flatten(), (torch.ones(2, 3, 4),), trace_joint=False, dynamic_shapes=True)
    assert graph(torch.ones(5, 2, 2))[0].shape == (5, 4)


class Calls(nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, *args: Any) -> Any:
        return self.f(self.w, *args)


def written_parameter(w: torch.Tensor, x: torch.Tensor) -> Any:
    with torch.no_grad():
        w.add_(1)
    return ((w * x).sum(),)


def test_a_parameter_that_the_loss_does_not_use_is_named() -> None:
    model = Calls(lambda w, x: ((w * x).sum(),))
    model.unused = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="does not depend on parameter or buffer 'unused'"):
        aot_export_module(model, (torch.ones(2),), trace_joint=True, output_loss_index=0)


@pytest.mark.parametrize(
    ("f", "index", "says"),
    [
        (lambda w, x: ((w * x).sum(), w * 2), 0, r"was not the loss.*Return 1 as \.detach\(\)"),
        (lambda w, x: (w * x,), 0, r"must have one element\. Its shape is \[2\]"),
        (lambda w, x: (x.sum(), w.detach()), 0, "does not require grad"),
        (lambda w, x: ((w * x).sum(),), 2, "output_loss_index is 2, and the program returns 1 results"),
        (lambda w, x: {"loss": (w * x).sum()}, 0, "not dict"),
        (lambda w, x: ((w * x).sum(),), None, "needs output_loss_index"),
        (lambda w, x: (x.requires_grad_().sum(),), 0, r"calls requires_grad_\(\) on argument 0"),
        (written_parameter, 0, "requires gradients, and received a mutation: parameter or buffer 'w'"),
    ],
)
def test_what_has_no_joint_graph_is_refused(f: Callable[..., Any], index: int | None, says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        aot_export_module(Calls(f), (torch.ones(2),), trace_joint=True, output_loss_index=index)


def test_without_gradients_a_written_parameter_is_a_result() -> None:
    graph, s = aot_export_module(Calls(written_parameter), (torch.ones(2),), trace_joint=False)
    assert list(s.parameters_to_mutate.values()) == ["w"]
    assert graph(torch.ones(2), torch.ones(2))[0].tolist() == [2.0, 2.0]


def test_what_no_result_of_a_graph_can_stand_for_is_refused() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"received a metadata mutation: argument 0 .*aten::t_"):
        aot_export_module(Calls(lambda w, a: (a.t_() * 1,)), (x,), trace_joint=False)
    graph, _ = aot_export_module(Calls(lambda w, a: (a.unsqueeze_(0).mul_(2).squeeze_(0) * 1,)), (x,), trace_joint=False)
    assert [r.tolist() for r in graph(torch.ones(2), x)] == [[[2.0] * 3] * 2] * 2  # after the call it has the sizes that it had before
    with pytest.raises(RuntimeError, match="duplicated inputs that are mutated in the graph: argument 0 and argument 1"):
        aot_export_module(Calls(lambda w, a, b: (a.add_(1) + b,)), (x, x), trace_joint=False)
    with pytest.raises(RuntimeError, match="aliased inputs that are mutated in the graph: argument 0 and argument 1"):
        aot_export_module(Calls(lambda w, a, b: (a.add_(1), b * 1)), (x, x[0]), trace_joint=False)
    graph, _ = aot_export_module(Calls(lambda w, a, b: (a + b,)), (x, x[0]), trace_joint=False)  # nothing is written
    assert graph(torch.ones(2), x, x[0])[0].tolist() == [[2.0] * 3] * 2


class TestJointSimple:
    def test_without_an_argument_that_requires_grad_it_has_no_backward(self) -> None:
        graph = aot_export_joint_simple(lambda x, n: (x * n, None), (torch.ones(2), 3), trace_joint=True)
        out, none = graph(torch.ones(2), 3)
        assert out.tolist() == [3.0, 3.0] and none is None

    def test_each_argument_has_a_gradient_or_none(self) -> None:
        x, y = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0])
        unused = torch.ones(1, requires_grad=True)
        graph = aot_export_joint_simple(lambda a, b, c: (a * a * b,), (x, y, unused), trace_joint=True)
        (out,), grads = graph((x.detach(), y, unused.detach()), (torch.tensor([1.0]),))
        assert out.tolist() == [12.0] and grads[0].tolist() == [12.0] and grads[1] is None and grads[2] is None

    @pytest.mark.parametrize(
        ("f", "args", "says"),
        [
            (lambda x: (x.view(-1),), (torch.ones(2),), "Result 0 is input 0 or a view of it"),
            (lambda x: (x * 2, x), (torch.ones(2),), "Result 1 is input 0 or a view of it"),
            (lambda x: (x.split(1)[1],), (torch.ones(2),), "Result 0 is input 0 or a view of it"),
            (lambda x: x * 2, (torch.ones(2),), "requires outputs to be a single list or tuple"),
            (lambda x: ([x * 2],), (torch.ones(2),), "requires outputs to be a single list or tuple"),
            (lambda x: (x[0] * 2,), ([torch.ones(2)],), "requires a flat tuple of inputs"),
            (lambda x: (x.add_(1) * 2,), (torch.ones(2),), "does not support input mutations. func writes to input 0"),
            (lambda x: (x.unsqueeze_(0) * 2,), (torch.ones(2),), "received a metadata mutation: input 0"),
        ],
    )
    @pytest.mark.parametrize("joint", [False, True])
    def test_what_would_change_the_calling_convention_is_refused(self, f: Any, args: Any, says: str, joint: bool) -> None:
        with pytest.raises(RuntimeError, match=says):
            aot_export_joint_simple(f, args, trace_joint=joint)


def test_a_graph_before_dispatch_switches_the_grad_mode_and_has_composite_ops_whole() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            y = self.norm(self.conv(x))
            with torch.no_grad():
                z = y * 3
                z.add_(1)
            return ((y.reshape(-1) * z.view(-1)).sum(),)

    module, x = Net(), torch.randn(2, 1, 3, 3)
    graph, s = aot_export_module(module, (x,), trace_joint=False, pre_dispatch=True)
    called = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert torch.ops.aten.conv2d.default in called
    modes = [n.args for n in graph.graph.nodes if n.target is torch._C._set_grad_enabled]
    assert modes == [(False,), (True,)] and len(s.buffers_to_mutate) == 3
    *_, loss = graph(*module.parameters(), *module.buffers(), x)
    loss.backward()
    found = [p.grad for p in module.parameters()]
    module.zero_grad()
    (expected,) = module(x)
    expected.backward()
    torch.testing.assert_close([loss.detach(), *found], [expected.detach(), *(p.grad for p in module.parameters())])


def test_a_graph_before_dispatch_has_no_gradients_of_its_own() -> None:
    with pytest.raises(RuntimeError, match="pre_dispatch is not supported"):
        aot_export_module(Loss(), (torch.ones(2, 3),), trace_joint=True, output_loss_index=1, pre_dispatch=True)
    with pytest.raises(RuntimeError, match=r"received a metadata mutation: argument 0 .*aten::t_"):
        aot_export_module(Calls(lambda w, a: (a.t_() * 1,)), (torch.ones(2, 3),), trace_joint=False, pre_dispatch=True)


@pytest.mark.parametrize(("pre_dispatch", "dynamic"), [(False, False), (True, False), (True, True)])
def test_dropout_that_drops_nothing_is_its_argument(pre_dispatch: bool, dynamic: bool) -> None:
    def f(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = torch.dropout(x, 0.5, train=False)
        y.add_(1)
        return (x * 2,)

    module = Calls(f)
    graph, s = aot_export_module(module, (torch.zeros(2),), trace_joint=False, pre_dispatch=pre_dispatch, dynamic_shapes=dynamic)
    new, out = graph(module.w, torch.zeros(3) if dynamic else torch.zeros(2))
    assert list(s.user_inputs_to_mutate.values()) == s.user_inputs and set(new.tolist()) == {1.0} and set(out.tolist()) == {2.0}
