"""Every node of a traced graph says where it comes from."""

from typing import Any

import torch
from torch import nn

from runtime.aot import aot_function, make_fx, nop
from runtime.func import grad
from tests.runtime.trace.graphs import Net, line_of, node


def test_every_call_knows_the_line_of_the_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return nn.functional.gelu(y)  # the caller of a library is named, not the library

    module = make_fx(f)(torch.ones(2))
    assert (
        line_of(node(module, "sin")) == f"{__file__}:{f.__code__.co_firstlineno + 1}: y = x.sin()"
    )
    assert str(line_of(node(module, "gelu"))).startswith(
        f"{__file__}:{f.__code__.co_firstlineno + 2}: "
    )
    assert line_of(node(module, "x_1")) is None


def test_a_program_without_a_line_of_the_users_has_that_of_the_layer() -> None:
    line = line_of(node(make_fx(nn.Tanh())(torch.ones(2)), "tanh"))
    assert line is not None and "activation.py" in line and "tanh" in line


def test_a_call_of_a_backward_pass_has_the_line_and_the_number_of_its_forward_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        z = y.exp()
        return z.sum()

    module = make_fx(grad(f))(torch.ones(2))
    forward, backward = node(module, "sin"), node(module, "cos")
    assert line_of(backward) == line_of(forward) and line_of(forward) is not None
    assert backward.meta["seq_nr"] == forward.meta["seq_nr"] != node(module, "exp").meta["seq_nr"]


def test_nodes_of_a_joint_graph_know_the_lines_of_the_program() -> None:
    lines: set[str | None] = set()

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        lines.update(line_of(n) for n in module.graph.nodes if n.op == "call_function")
        return nop(module, inputs)

    import runtime

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin().exp()

    x = runtime.wrap(torch.ones(2), requires_grad=True)
    aot_function(f, compiler)(x).sum().backward()
    assert lines == {f"{__file__}:{f.__code__.co_firstlineno + 1}: return x.sin().exp()"}


def test_stack_traces_are_recorded_as_text_if_asked_for() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def f(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    assert "stack_trace" not in node(make_fx(f)(torch.ones(2)), "sin").meta
    trace = node(make_fx(f, record_stack_traces=True)(torch.ones(2)), "sin").stack_trace
    assert trace is not None
    assert trace.index(", in f\n") < trace.index(", in inner\n") and trace.endswith(
        "return x.sin()"
    )


def test_module_stacks_name_the_modules_that_run() -> None:
    net = Net().eval()
    module = make_fx(net, record_module_stack=True)(torch.randn(4, 3))
    stacks = {
        n.name: n.meta["nn_module_stack"] for n in module.graph.nodes if n.op == "call_function"
    }
    prefix, root = "torch.nn.modules", ("", f"{Net.__module__}.Net")
    assert stacks["addmm"] == {"": root, "first": ("first", f"{prefix}.linear.Linear")}
    assert list(stacks["relu"].items()) == [
        ("", root),
        ("rest", ("rest", f"{prefix}.container.Sequential")),
        ("rest.0", ("rest.0", f"{prefix}.activation.ReLU")),
    ]
    assert stacks["addmm_1"] == {"": root, "first@1": ("first", f"{prefix}.linear.Linear")}
    assert stacks["add"] == {"": root}
    assert node(module, "addmm").meta["torch_fn"] == (
        "linear_1",
        "builtin_function_or_method.linear",
    )
    without = make_fx(net, record_module_stack=True, _disable_torch_fn_metadata_mode=True)(
        torch.randn(4, 3)
    )
    assert not any("torch_fn" in n.meta for n in without.graph.nodes)


def test_a_call_knows_its_line_while_the_functions_of_torch_are_noted() -> None:
    """The mode that notes them has a frame between the call and the program."""

    class Wave(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    module = make_fx(Wave(), record_module_stack=True)(torch.ones(2))
    assert "torch_fn" in node(module, "sin").meta
    assert str(line_of(node(module, "sin"))).endswith(": return torch.sin(x)")


def test_the_root_of_a_module_stack_may_be_named_by_the_function() -> None:
    net = Net().eval()

    def f(x: torch.Tensor) -> Any:
        return net(x)

    f._orig_mod = net  # type: ignore[attr-defined]
    module = make_fx(f, record_module_stack=True)(torch.randn(4, 3))
    assert list(node(module, "relu").meta["nn_module_stack"]) == ["", "rest", "rest.0"]


def test_a_second_trace_finds_the_same_lines() -> None:
    """What a file is, torch's or the user's, is remembered from the first trace."""
    net = nn.Sequential(nn.Tanh())

    def f(x: torch.Tensor) -> Any:
        return net(x).sin()

    first, second = ([line_of(n) for n in make_fx(f)(torch.ones(2)).graph.nodes] for _ in range(2))
    line = f"{__file__}:{f.__code__.co_firstlineno + 1}: return net(x).sin()"
    assert first == second == [None, line, line, None]
