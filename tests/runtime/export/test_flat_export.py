"""Graphs without a program around them: what they compute, what their signature says,
what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import aot
from runtime.aot import aot_export_joint_simple, aot_export_module


class Scaled(nn.Module):
    """Counts its calls and adds to an argument."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros(()))

    def forward(
        self, x: torch.Tensor, *, shift: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, None, int]:
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


def scaled() -> tuple[Scaled, Any, Any]:
    """Return a module, its graph and the signature of the graph."""
    module = Scaled()
    kwargs = {"shift": {"by": torch.zeros(3)}}
    graph, signature = aot_export_module(module, (torch.ones(3),), trace_joint=False, kwargs=kwargs)
    return module, graph, signature


def test_the_graph_takes_parameters_buffers_and_leaves_and_returns_new_values_first() -> None:
    module, graph, _ = scaled()
    new_calls, new_shift, out, none, three = graph(
        module.scale, module.calls, torch.tensor([1.0, 1.0, 2.0]), torch.zeros(3)
    )
    assert (new_calls, none, three) == (1, None, 3)
    assert new_shift.tolist() == [1.0] * 3
    assert out.tolist() == [2.0, 3.0, 7.0]


def test_the_signature_names_the_inputs_of_the_graph() -> None:
    _, graph, signature = scaled()
    assert signature.parameters == ["scale"] and signature.buffers == ["calls"]
    assert len(signature.user_inputs) == 2 and signature.in_spec.num_leaves == 4
    state = [*signature.inputs_to_parameters, *signature.inputs_to_buffers]
    placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    assert [*state, *signature.user_inputs] == placeholders


def test_the_signature_names_the_results_of_the_graph() -> None:
    _, graph, signature = scaled()
    results: Any = graph.graph.output_node().args[0]
    assert signature.buffers_to_mutate == {results[0].name: "calls"}
    assert signature.user_inputs_to_mutate == {results[1].name: signature.user_inputs[1]}
    assert signature.user_outputs == [results[2].name, None, None]
    assert signature.out_spec.num_leaves == 3
    assert signature.backward_signature is None


def test_export_leaves_the_module_and_the_arguments_as_they_are() -> None:
    module, shift = Scaled(), torch.zeros(3)
    aot_export_module(module, (torch.ones(3),), trace_joint=False, kwargs={"shift": {"by": shift}})
    assert (
        module.calls == 0
        and shift.tolist() == [0.0] * 3
        and (module.calls._version, shift._version) == (0, 0)
    )
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
    assert backward is not None and [*backward.gradients_to_parameters.values()] == [
        "norm.weight",
        "norm.bias",
    ]
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
    graph, _ = aot_export_module(
        nn.Flatten(), (mode.from_tensor(torch.ones(2, 3, 4)),), trace_joint=False
    )
    assert graph(torch.ones(5, 2, 2))[0].shape == (5, 4)
    graph, _ = aot_export_module(
        nn.Flatten(), (torch.ones(2, 3, 4),), trace_joint=False, dynamic_shapes=True
    )
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
        (
            lambda w, x: ((w * x).sum(),),
            2,
            "output_loss_index is 2, and the program returns 1 results",
        ),
        (lambda w, x: {"loss": (w * x).sum()}, 0, "not dict"),
        (lambda w, x: ((w * x).sum(),), None, "needs output_loss_index"),
        (lambda w, x: (x.requires_grad_().sum(),), 0, r"calls requires_grad_\(\) on argument 0"),
        (
            written_parameter,
            0,
            "requires gradients, and received a mutation: parameter or buffer 'w'",
        ),
    ],
)
def test_what_has_no_joint_graph_is_refused(
    f: Callable[..., Any], index: int | None, says: str
) -> None:
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
    graph, _ = aot_export_module(
        Calls(lambda w, a: (a.unsqueeze_(0).mul_(2).squeeze_(0) * 1,)), (x,), trace_joint=False
    )
    # after the call it has the sizes that it had before
    assert [r.tolist() for r in graph(torch.ones(2), x)] == [[[2.0] * 3] * 2] * 2
    with pytest.raises(
        RuntimeError,
        match="duplicated inputs that are mutated in the graph: argument 0 and argument 1",
    ):
        aot_export_module(Calls(lambda w, a, b: (a.add_(1) + b,)), (x, x), trace_joint=False)
    with pytest.raises(
        RuntimeError,
        match="aliased inputs that are mutated in the graph: argument 0 and argument 1",
    ):
        aot_export_module(Calls(lambda w, a, b: (a.add_(1), b * 1)), (x, x[0]), trace_joint=False)
    # nothing is written
    graph, _ = aot_export_module(Calls(lambda w, a, b: (a + b,)), (x, x[0]), trace_joint=False)
    assert graph(torch.ones(2), x, x[0])[0].tolist() == [[2.0] * 3] * 2


class TestJointSimple:
    def test_without_an_argument_that_requires_grad_it_has_no_backward(self) -> None:
        graph = aot_export_joint_simple(
            lambda x, n: (x * n, None), (torch.ones(2), 3), trace_joint=True
        )
        out, none = graph(torch.ones(2), 3)
        assert out.tolist() == [3.0, 3.0] and none is None

    def test_each_argument_has_a_gradient_or_none(self) -> None:
        x, y = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0])
        unused = torch.ones(1, requires_grad=True)
        graph = aot_export_joint_simple(
            lambda a, b, c: (a * a * b,), (x, y, unused), trace_joint=True
        )
        (out,), grads = graph((x.detach(), y, unused.detach()), (torch.tensor([1.0]),))
        assert (
            out.tolist() == [12.0]
            and grads[0].tolist() == [12.0]
            and grads[1] is None
            and grads[2] is None
        )

    @pytest.mark.parametrize(
        ("f", "args", "says"),
        [
            (lambda x: (x.view(-1),), (torch.ones(2),), "Result 0 is input 0 or a view of it"),
            (lambda x: (x * 2, x), (torch.ones(2),), "Result 1 is input 0 or a view of it"),
            (lambda x: (x.split(1)[1],), (torch.ones(2),), "Result 0 is input 0 or a view of it"),
            (lambda x: x * 2, (torch.ones(2),), "requires outputs to be a single list or tuple"),
            (
                lambda x: ([x * 2],),
                (torch.ones(2),),
                "requires outputs to be a single list or tuple",
            ),
            (lambda x: (x[0] * 2,), ([torch.ones(2)],), "requires a flat tuple of inputs"),
            (
                lambda x: (x.add_(1) * 2,),
                (torch.ones(2),),
                "does not support input mutations. func writes to input 0",
            ),
            (
                lambda x: (x.unsqueeze_(0) * 2,),
                (torch.ones(2),),
                "received a metadata mutation: input 0",
            ),
            (
                lambda x, y: (x * 2, y.expand(2).view(2)),
                (torch.ones(2), torch.ones(1)),
                "Result 1 is input 1 or a view of it",
            ),
            (
                lambda x, y: ({"a": x * 2}, y * 2),
                (torch.ones(2), torch.ones(1)),
                "requires outputs to be a single list or tuple",
            ),
            (
                lambda x, y: {"a": x * 2, "b": y * 2},
                (torch.ones(2), torch.ones(1)),
                "requires outputs to be a single list or tuple",
            ),
            (lambda x: (x * 2,), torch.ones(2), "requires a flat tuple of inputs"),
            (
                lambda x: (x + 1,),
                (TwoTensor(torch.ones(2), torch.ones(2)),),
                "a TwoTensor is among the inputs, and an exported graph",
            ),
        ],
    )
    @pytest.mark.parametrize("joint", [False, True])
    def test_what_would_change_the_calling_convention_is_refused(
        self, f: Any, args: Any, says: str, joint: bool
    ) -> None:
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
    torch.testing.assert_close(
        [loss.detach(), *found], [expected.detach(), *(p.grad for p in module.parameters())]
    )


def test_a_graph_before_dispatch_has_no_gradients_of_its_own() -> None:
    with pytest.raises(RuntimeError, match="pre_dispatch is not supported"):
        aot_export_module(
            Loss(), (torch.ones(2, 3),), trace_joint=True, output_loss_index=1, pre_dispatch=True
        )
    with pytest.raises(RuntimeError, match=r"received a metadata mutation: argument 0 .*aten::t_"):
        aot_export_module(
            Calls(lambda w, a: (a.t_() * 1,)),
            (torch.ones(2, 3),),
            trace_joint=False,
            pre_dispatch=True,
        )


@pytest.mark.parametrize(("pre_dispatch", "dynamic"), [(False, False), (True, False), (True, True)])
def test_dropout_that_drops_nothing_is_its_argument(pre_dispatch: bool, dynamic: bool) -> None:
    def f(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        y = torch.dropout(x, 0.5, train=False)
        y.add_(1)
        return (x * 2,)

    module = Calls(f)
    graph, s = aot_export_module(
        module,
        (torch.zeros(2),),
        trace_joint=False,
        pre_dispatch=pre_dispatch,
        dynamic_shapes=dynamic,
    )
    new, out = graph(module.w, torch.zeros(3) if dynamic else torch.zeros(2))
    assert (
        list(s.user_inputs_to_mutate.values()) == s.user_inputs
        and set(new.tolist()) == {1.0}
        and set(out.tolist()) == {2.0}
    )


def called(graph: Any) -> list[Any]:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


def hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda g: g * 2)
    return x * 2


def seeded(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return x * torch.rand(2)


class Counting(runtime.autograd.Function):
    """Counts its backward passes in an argument."""

    @staticmethod
    def forward(ctx: Any, x: Any, count: Any) -> Any:
        ctx.count = count
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        ctx.count.add_(1)
        return g, None


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (
            lambda x, y: (hooked(x), y * 2),
            (
                "registers a hook on input 0. An exported graph cannot. "
                "Register it on the caller's tensor"
            ),
        ),
        (
            lambda x, y: (seeded(x), y * 2),
            "sets the state of a random generator, and an exported graph cannot",
        ),
        (
            lambda x, y: (Counting.apply(x, y),),
            "the backward pass writes to input 1. An exported graph cannot",
        ),
    ],
)
def test_what_happens_around_a_graph_is_refused(f: Any, says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        aot_export_joint_simple(
            f, (torch.ones(2, requires_grad=True), torch.zeros(2)), trace_joint=True
        )


@pytest.mark.parametrize("joint", [False, True])
def test_a_program_is_traced_with_grad_mode_if_it_is_differentiated(joint: bool) -> None:
    def f(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((w * x).sum() * (5.0 if torch.is_grad_enabled() else 7.0),)

    exported, _ = aot_export_module(
        Calls(f), (torch.ones(2),), trace_joint=joint, output_loss_index=0 if joint else None
    )
    simple = aot_export_joint_simple(
        f, (torch.ones(2, requires_grad=True), torch.ones(2)), trace_joint=joint
    )
    for graph in (exported.graph, simple.graph):
        factors = [a for n in graph.nodes for a in n.args if type(a) is float]
        assert set(factors) == {5.0 if joint else 7.0}
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_ops_are_decomposed_as_asked(pre_dispatch: bool) -> None:
    aten: Any = torch.ops.aten
    table = {aten.tanh.default: lambda x: 2 * (2 * x).sigmoid() - 1}
    module = Calls(lambda w, x: (x.tanh(),))
    assert aten.tanh.default in called(
        aot_export_module(module, (torch.ones(2),), trace_joint=False, pre_dispatch=pre_dispatch)[0]
    )
    graph, _ = aot_export_module(
        module, (torch.ones(2),), trace_joint=False, decompositions=table, pre_dispatch=pre_dispatch
    )
    assert aten.tanh.default not in called(graph) and aten.sigmoid.default in called(graph)
    simple = aot_export_joint_simple(
        lambda x: (x.tanh(),), (torch.ones(2),), trace_joint=False, decompositions=table
    )
    assert aten.tanh.default not in called(simple)
    torch.testing.assert_close(simple(torch.ones(2))[0], torch.ones(2).tanh())


def test_a_graph_may_be_run_with_grad_mode() -> None:
    bags: Any = nn.EmbeddingBag(5, 2)
    graph, _ = aot_export_module(
        Calls(lambda w, x: (bags(x),)), (torch.tensor([[0, 1], [2, 3]]),), trace_joint=False
    )
    assert torch.ops.aten._embedding_bag.default in called(graph)


def symbolic(t: torch.Tensor) -> Any:
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(t)


def test_sizes_are_numbers_unless_a_fake_tensor_or_the_caller_makes_them_symbols() -> None:
    def sizes(graph: Any) -> set[type]:
        return {
            type(n) for p in graph.graph.nodes if p.op == "placeholder" for n in p.meta["val"].shape
        }

    def flatten(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.flatten(1) * 2,)

    x = torch.ones(2, 3, 4)
    module = Calls(lambda w, x: flatten(x))
    for dynamic in (None, False):
        assert sizes(
            aot_export_module(module, (x,), trace_joint=False, dynamic_shapes=dynamic)[0]
        ) == {int}
    for gradient in (False, True):
        given = torch.ones(2, 3, 4, requires_grad=gradient)
        assert sizes(aot_export_joint_simple(flatten, (given,), trace_joint=True)) == {int}
    graph = aot_export_joint_simple(flatten, (symbolic(x),), trace_joint=False)
    assert graph(torch.ones(5, 2, 2))[0].shape == (5, 4)


def test_a_graph_module_of_fake_values_makes_a_graph_of_their_sizes() -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.flatten(x, 1) * 2,)

    module, x = torch.fx.symbolic_trace(Flat()), torch.ones(2, 3, 4)
    assert aot_export_module(module, (x,), trace_joint=False)[0](x)[0].shape == (2, 12)
    next(n for n in module.graph.nodes if n.op == "placeholder").meta["val"] = symbolic(x)
    graph, _ = aot_export_module(module, (x,), trace_joint=False)
    assert graph(torch.ones(5, 2, 2))[0].shape == (5, 4)


def test_a_result_of_a_branch_is_no_view() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            aot.cond(x.sum() > 0, lambda x: (x.sin(), x.cos()), lambda x: (x.exp(), x + 1), (x,))
        )

    found = aot_export_joint_simple(f, (torch.ones(2),), trace_joint=False)(torch.ones(2))
    torch.testing.assert_close(found, (torch.ones(2).sin(), torch.ones(2).cos()))


def test_constants_and_new_tensors_are_no_views() -> None:
    graph = aot_export_joint_simple(
        lambda x: (x * 2, torch.ones(2), 3, None), (torch.ones(2),), trace_joint=False
    )
    doubled, ones, three, none = graph(torch.ones(2))
    assert (doubled.tolist(), ones.tolist(), three, none) == ([2.0, 2.0], [1.0, 1.0], 3, None)


@pytest.mark.parametrize("index", [0, 1, 2, -1, -3])
def test_the_loss_is_counted_from_either_end(index: int) -> None:
    def f(w: torch.Tensor, x: torch.Tensor) -> list[Any]:
        outs: list[Any] = [x * 1, None, x * 2]
        outs[index] = (w * x).sum()
        return outs

    graph, s = aot_export_module(
        Calls(f), (torch.tensor([3.0, 5.0]),), trace_joint=True, output_loss_index=index
    )
    assert (
        s.backward_signature is not None
        and s.backward_signature.loss_output == s.user_outputs[index]
    )
    assert graph(torch.ones(2), torch.tensor([3.0, 5.0]))[-1].tolist() == [3.0, 5.0]


def test_the_first_argument_of_a_module_without_buffers_is_no_parameter() -> None:
    def written(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        y.add_(1)
        return ((w * x).sum(),)

    x = torch.ones(2, requires_grad=True)
    _, s = aot_export_module(
        Calls(written), (x, torch.ones(2)), trace_joint=True, output_loss_index=0
    )
    backward = s.backward_signature
    assert backward is not None and list(backward.gradients_to_parameters.values()) == ["w"]
    assert list(backward.gradients_to_user_inputs.values()) == s.user_inputs[:1]
    assert list(s.user_inputs_to_mutate.values()) == s.user_inputs[1:]


@pytest.mark.parametrize(("index", "n"), [(-2, 1), (1, 1), (2, 2), (-3, 2)])
def test_a_loss_beyond_the_results_is_refused(index: int, n: int) -> None:
    program = Calls(lambda w, x: ((w * x).sum(),) * n)
    with pytest.raises(
        RuntimeError, match=f"output_loss_index is {index}, and the program returns {n} results"
    ):
        aot_export_module(program, (torch.ones(2),), trace_joint=True, output_loss_index=index)


def test_records_of_an_export_are_not_changed() -> None:
    _, s = aot_export_module(
        Calls(lambda w, x: ((w * x).sum(),)),
        (torch.ones(2),),
        trace_joint=True,
        output_loss_index=0,
    )
    for record, name in (
        (s, "parameters"),
        (s.backward_signature, "loss_output"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)


@pytest.mark.parametrize("pre_dispatch", [True, False])
def test_the_code_of_an_exported_graph_has_its_names(pre_dispatch: bool) -> None:
    graph, _ = aot_export_module(
        torch.nn.Linear(3, 2), (torch.ones(1, 3),), trace_joint=False, pre_dispatch=pre_dispatch
    )
    assert "def forward(self, arg0_1, arg1_1, arg2_1):" in graph.code


def test_a_parameter_that_the_program_freezes_requires_grad_after_the_export() -> None:
    w = nn.Parameter(torch.ones(3))

    def frozen(x: torch.Tensor) -> tuple[torch.Tensor]:
        w.requires_grad_(False)
        return (x * w,)

    for _ in range(2):
        with pytest.warns(UserWarning, match="changes requires_grad of 1 tensor. The exported"):
            aot_export_joint_simple(frozen, (torch.ones(3),), trace_joint=False)
        assert w.requires_grad


def test_a_namespace_of_no_module_is_state_that_an_export_tells_of() -> None:
    names: dict[str, Any] = {}
    exec("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x * 2\n", names)
    with pytest.warns(UserWarning, match="the program changes 'n' of"):
        aot.export(names["f"], (torch.ones(2),))
    assert names["n"] == 0
