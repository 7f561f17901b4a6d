"""Runtime tensors given to torch's own autograd, without the drop-in: the call is forwarded or
refused, and is never silently wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torch.utils.checkpoint import checkpoint

import runtime
from runtime import jit
from runtime.aot import make_fx
from runtime.checkpoint import create_selective_checkpoint_contexts
from runtime.func import functionalize, grad, vmap
from tests.runtime.of_torch import HOOKS_ARE_AN_OPTION


def applied(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    return function.apply(*args, **kwargs)


class Tripled(torch.autograd.Function):
    """A square whose derivative is 3x rather than 2x, to tell it from a derived one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *, power: int = 2) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**power

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return 3 * g * ctx.saved_tensors[0]


class TripledBySetup(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, other: Any = None) -> torch.Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return 3 * g * ctx.saved_tensors[0], None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, _: Any) -> Any:
        return 3 * t * ctx.saved_tensors[0]


x = torch.tensor([2.0, 5.0])


def of_the_session(f: Callable[..., Any]) -> Any:
    leaf = runtime.wrap(x.clone(), True)
    f(leaf).sum().backward()
    return leaf.grad


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda: of_the_session(Tripled.apply),
        lambda: of_the_session(TripledBySetup.apply),
        lambda: runtime.func.grad(lambda x: applied(TripledBySetup, x).sum())(x),
        lambda: runtime.func.grad(lambda x: applied(TripledBySetup, x=x).sum())(x),
        lambda: runtime.func.jvp(TripledBySetup.apply, (x,), (torch.ones(2),))[1],
        lambda: runtime.func.vmap(runtime.func.grad(TripledBySetup.apply))(x),
        lambda: runtime.func.jacrev(TripledBySetup.apply)(x).diagonal(),
    ],
    ids=["session", "setup", "grad", "keyword", "jvp", "vmap of grad", "jacrev"],
)
def test_torchs_function_uses_its_own_derivative_under_every_transform(
    differentiate: Callable[[], Any],
) -> None:
    assert runtime.unwrap(differentiate()).tolist() == [6.0, 15.0]


def test_a_function_without_setup_context_is_refused_by_a_transform() -> None:
    with pytest.raises(RuntimeError, match="setup_context"):
        runtime.func.grad(lambda x: applied(Tripled, x).sum())(x)


def test_torchs_function_on_plain_tensors_is_of_torch() -> None:
    leaf = x.clone().requires_grad_()
    y = applied(Tripled, leaf)
    assert not isinstance(y.grad_fn, runtime.autograd.graph.Node)
    y.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [6.0, 15.0]


@pytest.mark.parametrize(
    "ask",
    [lambda y, x: torch.autograd.backward(y), lambda y, x: torch.autograd.grad(y, x)],
    ids=["backward", "grad"],
)
def test_torchs_engine_refuses_runtime_tensors_and_says_what_to_call(ask: Any) -> None:
    leaf = runtime.wrap(x.clone(), True)
    with pytest.raises(
        RuntimeError, match=r"a runtime tensor \(of the session\).*Call runtime.autograd.backward"
    ):
        ask((leaf * leaf).sum(), leaf)

    def inner(v: Any) -> Any:
        ask((v * v).sum(), v)

    with pytest.raises(RuntimeError, match="a value of grad, vjp or jacrev"):
        runtime.func.grad(inner)(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_torchs_checkpoint_gives_the_gradient(reentrant: bool) -> None:
    leaf = runtime.wrap(x.clone(), True)
    checkpoint(lambda v: v.exp() * v, leaf, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(runtime.unwrap(leaf.grad), (x + 1) * x.exp())


@pytest.mark.skipif(
    not HOOKS_ARE_AN_OPTION, reason="torch's checkpoint has no respect_saved_tensors_hooks"
)
@pytest.mark.parametrize("respected", [True, False])
def test_torchs_checkpoint_shows_what_a_policy_saves_to_the_hooks_around(respected: bool) -> None:
    packed: list[Any] = []

    def pack(t: Any) -> Any:
        packed.append(runtime.unwrap(t).detach())
        return t

    policy = partial(create_selective_checkpoint_contexts, [torch.ops.aten.exp.default])
    leaf = runtime.wrap(x.clone(), True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = checkpoint(
            lambda v: v.exp().sin(),
            leaf,
            use_reentrant=False,
            context_fn=policy,
            respect_saved_tensors_hooks=respected,
        )
    y.sum().backward()
    torch.testing.assert_close(packed, [x, x.exp()] if respected else [x])
    torch.testing.assert_close(runtime.unwrap(leaf.grad), x.exp().cos() * x.exp())


def _linear(x: Any) -> Any:
    _, push = torch.func.linearize(lambda y: (y * y).sum(), x)
    return push(torch.ones_like(x))


def _traced(x: Any) -> Any:
    return torch_make_fx(lambda y: y * 2 + x)(torch.ones(2))(x)


@pytest.mark.parametrize("program", [_linear, _traced], ids=["linearize", "make_fx"])
@pytest.mark.parametrize(
    "transform",
    [
        jit,
        functionalize,
        lambda f: make_fx(f),
        vmap,
        lambda f: lambda x: grad(lambda y: f(y).sum())(x),
        lambda f: lambda x: f(runtime.tensor(x.tolist(), requires_grad=True)),
    ],
    ids=["jit", "functionalize", "make_fx", "vmap", "grad", "session"],
)
def test_a_trace_of_torchs_that_would_miss_calls_is_refused(transform: Any, program: Any) -> None:
    with pytest.raises(RuntimeError, match=r"a trace of torch's, .*test_intercept\.py"):
        transform(program)(torch.tensor([[1.0, 2.0]]))


def test_a_trace_of_torchs_sees_calls_inside_of_a_transform_of_ours() -> None:
    graph = torch_make_fx(lambda x: functionalize(lambda y: (y + 1).mul_(x))(x))(torch.ones(2))
    assert torch.equal(graph(torch.full((2,), 3.0)), torch.full((2,), 12.0))
