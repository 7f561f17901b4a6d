"""Where a node comes from: which frame counts as the user's, what is shown of it, and what a node
takes over from another graph."""

from __future__ import annotations

import json
import linecache
import sysconfig
import weakref
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx import traceback as fx_traceback

import runtime
from runtime.aot import Explanation, default_partition, make_fx
from runtime.func import grad
from tests.runtime.trace.graphs import line_of, node


def line_in_a_report(**meta: Any) -> str | None:
    """The line that a report shows for a saved value whose node has these notes."""
    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    saved = graph.call_function(torch.ops.aten.sin.default, (x,))
    result = graph.call_function(torch.ops.aten.exp.default, (saved,))
    gradient = graph.call_function(torch.ops.aten.mul.Tensor, (tangent, saved))
    for n in graph.nodes:
        n.meta["val"] = torch.ones(2)
    saved.meta.update(meta)
    graph.output([result, gradient])
    joint = fx.GraphModule({}, graph)
    forward, backward = default_partition(joint, (), num_fwd_outputs=1)
    (value,) = Explanation.of(joint, forward, backward, num_fwd_outputs=1).saved
    return value.line


def frame(file: str, number: int, function: str) -> str:
    return f'File "{file}", line {number}, in {function}\n    code\n'


LAYER = nn.modules.module.__file__
INNER, LATER = frame(LAYER, 12, "_call_impl"), frame(LAYER, 14, "_call_impl")
USERS, OTHER = frame("/home/me/net.py", 3, "forward"), frame("/home/me/train.py", 9, "main")
STACKS: dict[str, tuple[str | None, str | None]] = {
    "nothing": (None, None),
    "an empty one": ("", None),
    "the innermost of the user's": (OTHER + USERS + INNER, "/home/me/net.py:3, in forward"),
    "one of the user's": (INNER + OTHER + INNER, "/home/me/train.py:9, in main"),
    "the innermost of others": (INNER + LATER, f"{LAYER}:14: {linecache.getline(LAYER, 14)}"),
}


@pytest.mark.parametrize("name", STACKS)
def test_the_line_of_a_node_of_another_program_is_read_from_its_stack(name: str) -> None:
    stack, expected = STACKS[name]
    found = line_in_a_report(stack_trace=stack)
    assert found == (expected and expected.rstrip())


def test_a_line_that_was_noted_comes_before_a_stack() -> None:
    noted = line_in_a_report(stack_trace=USERS, user_line=("a.py", 1, "f"))
    assert noted == "a.py:1, in f"


def _fails() -> None:
    raise KeyError("x")


def test_a_line_is_shown_with_its_source_or_with_its_function() -> None:
    number = _fails.__code__.co_firstlineno + 1
    shown = line_in_a_report(user_line=(__file__, number, "f"))
    assert shown == f'{__file__}:{number}: raise KeyError("x")'
    assert line_in_a_report(user_line=("/nowhere.py", 7, "f")) == "/nowhere.py:7, in f"


STANDARD = sysconfig.get_paths()["stdlib"]
FILES: dict[str, bool] = {
    torch.__file__: False,
    nn.modules.linear.__file__: False,
    nn.modules.module.__file__: False,
    str(runtime.__file__): False,
    fx.__file__: False,
    __file__: True,
    "/home/me/torchvision/ops.py": True,
    "<eval_with_key>.3": False,
    "<frozen importlib>": False,
    "<replay 4>": False,
    "<stdin>": True,
    torch.__file__.replace("/torch/", "/torchvision/"): True,
    "<__array_function__ 2>": False,
    f"{STANDARD}/site-packages/einops.py": True,
    f"{STANDARD}/abc.py": False,
    json.__file__: False,
}


@pytest.mark.parametrize("file", FILES)
def test_files_of_torch_of_python_and_ours_are_not_the_users(file: str) -> None:
    shown = line_in_a_report(stack_trace=OTHER + frame(file, 10**6, "f"))
    assert shown == (f"{file}:1000000, in f" if FILES[file] else "/home/me/train.py:9, in main")


def test_a_node_takes_over_what_torch_is_told_to_preserve() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    with fx_traceback.preserve_node_meta(), fx_traceback.annotate({"stage": 1}):
        kept = node(make_fx(f)(torch.ones(2)), "sin").meta
    assert kept["custom"] == {"stage": 1}
    with fx_traceback.annotate({"stage": 1}):
        assert "custom" not in node(make_fx(f)(torch.ones(2)), "sin").meta


class Shared(nn.Module):
    """A layer under two names, of which one is within another module."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Tanh()
        self.block = nn.Sequential(self.plain, nn.Sigmoid())
        self.calls = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = nn.ReLU()  # no submodule of this one
        for _ in range(self.calls):
            x = self.block(x)
        return torch.as_tensor(other(self.plain(x)))


def test_a_module_of_two_names_has_that_of_the_module_in_which_it_runs() -> None:
    traced = make_fx(Shared(), record_module_stack=True)(torch.ones(2))
    stacks = {
        n.name: list(n.meta["nn_module_stack"])
        for n in traced.graph.nodes
        if n.op == "call_function"
    }
    assert stacks == {
        "tanh": ["", "block", "block.0"], "sigmoid": ["", "block", "block.1"],
        "tanh_1": ["", "block@1", "block.0@1"], "sigmoid_1": ["", "block@1", "block.1@1"],
        "tanh_2": ["", "plain"], "relu": [""],
    }  # fmt: skip


def test_a_function_that_calls_a_part_of_its_root_names_the_root_first() -> None:
    net = Shared()

    def f(x: torch.Tensor) -> Any:
        return net.plain(x)

    f._orig_mod = net  # type: ignore[attr-defined]
    stack = node(make_fx(f, record_module_stack=True)(torch.ones(2)), "tanh").meta[
        "nn_module_stack"
    ]
    assert stack == {
        "": ("", f"{__name__}.Shared"),
        "plain": ("plain", "torch.nn.modules.activation.Tanh"),
    }


def test_without_a_module_there_is_no_stack_of_modules() -> None:
    traced = make_fx(lambda x: x.sin(), record_module_stack=True)(torch.ones(2))
    assert (
        "nn_module_stack" not in node(traced, "sin").meta
        and "stack_trace" in node(traced, "sin").meta
    )


def test_each_call_of_a_backward_pass_has_the_number_of_the_call_that_it_differentiates() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        z = y.exp() * y
        return z.cosh().sum()

    traced = make_fx(grad(f))(torch.ones(2))
    calls = [n for n in traced.graph.nodes if n.op == "call_function"]
    numbers = {n.name: n.meta["seq_nr"] for n in calls}
    forward = ["sin", "exp", "mul", "cosh", "sum_1"]
    assert [numbers[n] for n in forward] == sorted(numbers[n] for n in forward) and len(
        {numbers[n] for n in forward}
    ) == 5
    assert numbers["sinh"] == numbers["cosh"] and numbers["cos"] == numbers["sin"]
    assert line_of(node(traced, "sinh")) == line_of(node(traced, "cosh"))


def _stack(module: fx.GraphModule, name: str) -> list[tuple[str, str]]:
    return [(key, path) for key, (path, _) in node(module, name).meta["nn_module_stack"].items()]


def test_a_second_call_of_the_root_has_another_name_as_in_torch() -> None:
    net = nn.Sequential(nn.Tanh())

    def f(x: torch.Tensor) -> Any:
        return net(net(x))

    f._orig_mod = net  # type: ignore[attr-defined]
    traced = make_fx(f, record_module_stack=True)(torch.ones(2))
    assert _stack(traced, "tanh") == [("", ""), ("0", "0")]
    assert _stack(traced, "tanh_1") == [("@1", ""), ("0@1", "0")]


def test_a_module_that_another_one_borrows_has_the_first_of_its_names() -> None:
    class Borrows(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = layers  # a tuple, so they are no submodules

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers[0](x)

    net: Any = nn.Module()
    net.first = net.second = layer = nn.Tanh()
    net.block = Borrows(layer)
    net.forward = lambda x: net.block(x)
    assert _stack(make_fx(net, record_module_stack=True)(torch.ones(2)), "tanh") == [
        ("", ""),
        ("block", "block"),
        ("first", "first"),
    ]


def test_a_stack_has_frames_of_layers_and_of_text_that_was_run_and_none_for_a_torch_op() -> None:
    names: dict[str, Any] = {}
    exec("def g(x):\n    return x.sin()", names)
    layers = node(
        make_fx(nn.Sequential(nn.Tanh()), record_stack_traces=True)(torch.ones(2)), "tanh"
    )
    assert [line.split("/")[-1] for line in layers.meta["stack_trace"].splitlines()[::2]] == [
        f'container.py", line {_line(layers, 0)}, in forward',
        f'activation.py", line {_line(layers, 1)}, in forward',
    ]  # fmt: skip
    text = node(make_fx(names["g"], record_stack_traces=True)(torch.ones(2)), "sin").meta[
        "stack_trace"
    ]
    assert text.endswith('File "<string>", line 2, in g')
    assert (
        "stack_trace"
        not in node(make_fx(torch.sin, record_stack_traces=True)(torch.ones(2)), "sin").meta
    )


def _line(made: fx.Node, frame: int) -> str:
    return str(made.meta["stack_trace"].splitlines()[2 * frame].split(" line ")[1].split(",")[0])


def test_without_a_line_of_the_users_the_innermost_layer_counts() -> None:
    module = make_fx(nn.Sequential(nn.Sequential(nn.Tanh())))(torch.ones(2))
    file, _, function = node(module, "tanh").meta["user_line"]
    assert (file, function) == (nn.modules.activation.__file__, "forward")


@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("modules", [False, True])
def test_a_node_has_the_notes_that_the_trace_was_asked_for(stacks: bool, modules: bool) -> None:
    trace = make_fx(nn.Tanh(), record_stack_traces=stacks, record_module_stack=modules)
    notes = node(trace(torch.ones(2)), "tanh").meta
    # a stack of modules comes with the stack of frames
    assert ("stack_trace" in notes) is (stacks or modules)
    assert ("nn_module_stack" in notes) is modules


@pytest.mark.parametrize("option", ["record_stack_traces", "record_module_stack"])
def test_the_frames_of_a_program_are_forgotten_at_the_end(
    option: str, without_collector: None
) -> None:
    class Holds:
        pass

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            local = Holds()
            locals_of_frames.append(weakref.ref(local))
            return x.sin()

    locals_of_frames: list[Any] = []
    options: Any = {option: True}
    module = make_fx(Net(), **options)(torch.ones(2))
    assert module is not None
    assert [local() for local in locals_of_frames] == [None]


def test_an_error_in_a_backward_of_the_program_has_the_line_there() -> None:
    def f(x: torch.Tensor) -> Any:
        return Asks.apply(x).sum()  # type: ignore[no-untyped-call]

    with pytest.raises(
        RuntimeError, match=r"It happened at .*test_origins.py:\d+: return float\(g.sum\(\)\) \* g"
    ):
        make_fx(grad(f))(torch.ones(2))


class Asks(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> Any:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return float(g.sum()) * g
