"""Graphs that are recorded before dispatch: composite ops whole, grad mode and
autocast as calls."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runtime.aot import cond, make_fx
from runtime.func import functionalize, grad, hessian, jacrev, jvp, linearize, vmap
from tests.runtime.trace.graphs import Net, close, line_of, names, node, targets

aten = torch.ops.aten


def test_composite_ops_stay_whole_before_dispatch() -> None:
    net = Net().eval()
    x = torch.randn(4, 3)
    module = make_fx(net, pre_dispatch=True)(x)
    calls = [
        aten.linear.default,
        aten.relu.default,
        aten.batch_norm.default,
        aten.linear.default,
        aten.add.Tensor,
    ]
    assert targets(module) == calls
    close(module(x), net(x))


def test_changes_of_grad_mode_and_autocast_are_calls_before_dispatch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.nn.functional.layer_norm(x, (3,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = y @ y.t()
        return z.float() + x.sum()

    x = torch.randn(4, 3)
    module = make_fx(f, pre_dispatch=True)(x)
    assert [
        n for n in names(module) if n.startswith("_") or n in ("layer_norm", "matmul", "sum_1")
    ] == [
        "_set_grad_enabled",
        "layer_norm",
        "_set_grad_enabled_1",
        "_enter_autocast",
        "matmul",
        "_exit_autocast",
        "sum_1",
    ]
    close(module(x), f(x))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_modes_at_the_end_of_a_graph_before_dispatch_are_those_at_its_start() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._C._set_grad_enabled(False)
        return x + 1

    with torch.enable_grad():
        module = make_fx(f, pre_dispatch=True)(torch.ones(2))
        torch._C._set_grad_enabled(True)
        module(torch.ones(2))
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "transform",
    [
        grad,
        vmap,
        hessian,
        jacrev,
        functionalize,
        lambda f: lambda x: jvp(f, (x,), (x,))[1],
        lambda f: lambda x: linearize(f, x)[1](x),
    ],
    ids=["grad", "vmap", "hessian", "jacrev", "functionalize", "jvp", "linearize"],
)
@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_transforms_are_traced_before_dispatch(transform: Any, mode: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone().clamp_(-1, 1) + torch.arange(x.shape[-1])
        return (nn.functional.softmax(y, -1) * torch.ones(x.shape[-1])).sum()

    x = torch.randn(4, 3)
    module = make_fx(transform(f), tracing_mode=mode, pre_dispatch=True)(x)
    close(module(x), transform(f)(x))


def test_a_draw_inside_a_transform_is_one_call_before_dispatch() -> None:
    module = make_fx(grad(lambda x: (x * torch.rand(3)).sum()), pre_dispatch=True)(torch.ones(3))
    assert [t for t in targets(module) if t is aten.rand.default] == [aten.rand.default]


def test_traces_before_dispatch_nest() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        inner = make_fx(lambda y: nn.functional.linear(y, y).sin(), pre_dispatch=True)(x)
        out: torch.Tensor = inner(x) * 2
        return out

    x = torch.randn(3, 3)
    close(make_fx(f, pre_dispatch=True)(x)(x), f(x))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lambda x: jvp(f, (x,), (x,))[1],
        lambda f: vmap(f, randomness="same"),
        functionalize,
    ],
    ids=["jvp", "vmap", "functionalize"],
)
def test_dropout_inside_a_transform_draws_as_without_a_trace(transform: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.3)

    _draws_as_eager(transform(f), torch.randn(4, 30))


def _draws_as_eager(f: Any, x: torch.Tensor, **options: Any) -> None:
    module = make_fx(f, pre_dispatch=True, **options)(x)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    close(module(x), expected)


@pytest.mark.parametrize(
    "transform",
    [lambda f: grad(lambda x: f(x).sum()), functionalize],
    ids=["grad", "functionalize"],
)
def test_dropout_in_place_inside_a_transform_draws_as_without_a_trace(transform: Any) -> None:
    _draws_as_eager(
        transform(lambda x: nn.functional.dropout(x * 1, 0.3, inplace=True)), torch.randn(4, 30)
    )


def test_recurrent_layers_inside_a_transform_have_their_dropout() -> None:
    """Torch's decomposition in Python leaves it out, and is the only one for sizes
    that are symbols."""
    layers, x = nn.LSTM(2, 3, 2, dropout=0.5), torch.randn(4, 1, 2)
    f = functionalize(lambda x: layers(x)[0])
    _draws_as_eager(f, x)
    options: Any = {"tracing_mode": "symbolic", "_allow_non_fake_inputs": True}
    with pytest.raises(RuntimeError, match="leaves out the dropout"):
        make_fx(f, pre_dispatch=True, **options)(x)
    _draws_as_eager(functionalize(lambda x: layers.eval()(x)[0]), x, **options)


def test_a_change_of_mode_is_noted_for_a_branch_that_no_mode_sees() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        positive = x.sum() > 0
        with torch.no_grad():
            y: torch.Tensor = cond(positive, torch.sin, torch.cos, (x,))
        return y * 2

    before = names(make_fx(f, pre_dispatch=True)(torch.ones(2)))
    order = ["gt", "_set_grad_enabled", "cond", "_set_grad_enabled_1", "mul"]
    assert [n for n in before if n in order] == order
    assert not any("grad" in n for n in names(make_fx(f)(torch.ones(2))))


BF16, HALF = torch.bfloat16, torch.float16


def under(dtype: torch.dtype, enabled: bool = True) -> Any:
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


def off_inside(x: torch.Tensor) -> Any:
    with under(BF16):
        a = x @ x
        with under(BF16, False):
            b = x @ x
        return a, b, x @ x


def one_after_another(x: torch.Tensor) -> Any:
    with under(BF16):
        a = x @ x
    with under(HALF):
        return a, x @ x


def two_left_at_once(x: torch.Tensor) -> Any:
    with under(BF16):
        a = x @ x
        with under(HALF):
            b = x @ x
    return a, b, x @ x


def two_of_three_left_at_once(x: torch.Tensor) -> Any:
    with under(BF16):
        a = x @ x
        with under(HALF):
            b = x @ x
            with under(HALF, False):
                c = x @ x
        return a, b, c, x @ x


def left_by_another(x: torch.Tensor) -> Any:
    with under(HALF, False):
        a = x @ x
        with under(HALF):
            b = x @ x
    return a, b, x @ x


AUTOCAST: dict[Callable[[Any], Any], str] = {
    off_inside: "enter bfloat16, matmul, exit, matmul, enter bfloat16, matmul, exit",
    one_after_another: "enter bfloat16, matmul, enter float16, matmul, exit, exit",
    two_left_at_once: "enter bfloat16, matmul, enter float16, matmul, exit, exit, matmul",
    two_of_three_left_at_once: (
        "enter bfloat16, matmul, enter float16, matmul, enter no float16, matmul, "
        "exit, exit, matmul, exit"
    ),
    left_by_another: "enter no float16, matmul, enter float16, matmul, exit, exit, matmul",
}


@pytest.mark.parametrize("program", AUTOCAST, ids=lambda f: f.__name__)
def test_regions_of_autocast_are_entered_and_left_in_the_graph(
    program: Callable[[Any], Any],
) -> None:
    x = torch.randn(3, 3)
    module = make_fx(program, pre_dispatch=True)(x)
    calls = []
    for call in module.graph.nodes:
        if call.target is torch.amp.autocast_mode._enter_autocast:
            device, dtype, enabled, cached = call.args
            assert (device, cached) == ("cpu", False)
            calls.append(f"enter {'' if enabled else 'no '}{dtype}".replace("torch.", ""))
        elif call.target is torch.amp.autocast_mode._exit_autocast:
            calls.append("exit")
        elif call.target is aten.matmul.default:
            calls.append("matmul")
    assert ", ".join(calls) == AUTOCAST[program]
    torch.testing.assert_close(module(x), program(x), rtol=0, atol=0)
    assert not torch.is_autocast_enabled("cpu")


def test_a_region_that_leaves_the_autocast_of_the_caller_returns_to_it() -> None:
    def f(x: torch.Tensor) -> Any:
        with under(BF16, False):
            y = x @ x
        return y, x @ x

    with under(BF16):
        module = make_fx(f, pre_dispatch=True)(torch.ones(2, 2))
        assert [t.dtype for t in module(torch.ones(2, 2))] == [torch.float32, BF16]
    assert [n for n in names(module) if "autocast" in n] == ["_enter_autocast", "_exit_autocast"]


def test_an_autocast_that_a_program_leaves_on_ends_with_its_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        torch.set_autocast_enabled("cpu", True)
        return x @ x

    try:
        module = make_fx(f, pre_dispatch=True)(torch.ones(2, 2))
    finally:
        torch.set_autocast_enabled("cpu", False)
    assert [n for n in names(module) if "autocast" in n or "matmul" in n] == [
        "_enter_autocast",
        "matmul",
        "_exit_autocast",
    ]
    assert module(torch.ones(2, 2)).dtype is BF16 and not torch.is_autocast_enabled("cpu")


def test_a_change_of_grad_mode_has_the_line_of_the_call_after_it_and_no_value() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x.sin()

    change = node(make_fx(f, pre_dispatch=True)(torch.ones(2)), "_set_grad_enabled")
    assert line_of(change) == f"{__file__}:{f.__code__.co_firstlineno + 2}: return x.sin()"
    assert change.meta["val"] is None and change.args == (False,)


def test_after_a_trace_before_dispatch_another_thread_may_trace() -> None:
    made: list[Any] = []

    def trace() -> None:
        made.append(make_fx(torch.sin, pre_dispatch=True)(torch.ones(2)))

    trace()
    other = threading.Thread(target=trace, daemon=True)
    other.start()
    other.join(20)
    assert len(made) == 2


def test_what_a_functionalized_program_makes_is_its_own_before_dispatch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(2)
        made.add_(x)
        return made * 2

    module = make_fx(functionalize(f), pre_dispatch=True)(torch.ones(2))
    assert targets(module) == [aten.zeros.default, aten.add.Tensor, aten.mul.Tensor]
    close(module(torch.ones(2)), f(torch.ones(2)))
