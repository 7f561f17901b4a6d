"""linearize: one run of the function, then its derivative applied to any number of tangents,
under any transform."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime import wrap
from runtime.autograd import Function
from runtime.errors import EscapedValue
from runtime.func import functional_call, grad, jacfwd, jvp, linearize, vjp, vmap

W = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)
X, T = (
    torch.linspace(0.3, 1.2, 4, dtype=torch.float64),
    torch.linspace(1, -1, 4, dtype=torch.float64),
)


def with_writes(x: Any) -> Any:
    y = x.sin()
    z = y * x
    y.mul_(2)  # after its value entered the derivative of z
    z[1:3] = y[:2] ** 2
    z.t_().relu_()
    return z * y


def choice(x: Any) -> Any:
    return x.exp() if bool((x > 0).all()) else -x


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: (x @ W).tanh() * x,
    "several outputs": lambda x: {"a": x.sin(), "b": [x.sum(), W.sum()]},
    "linear": lambda x: x @ W,
    "identity": lambda x: x,
    "views": lambda x: torch.cat([x[1:].flip(0), x.reshape(2, 2).t().reshape(-1)]).view(7, 1),
    "writes": with_writes,
    "index": lambda x: x[torch.tensor([0, 0, 2])].cumsum(0).sort().values,
    "linalg": lambda x: torch.linalg.solve(W + torch.diag(x + 3), x),
    "control flow": lambda x: choice(x) * 2 if x.sum() > 1 else x,
    "dropout": lambda x: nn.functional.dropout(x, 0.5).exp(),
    "inner transforms": lambda x: (
        grad(lambda y: (y.sin() * x).sum())(x) + vmap(lambda a: a * x.sum())(x)
    ),
    "constant": lambda x: W.sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_jvp(name: str) -> None:
    f = PROGRAMS[name]
    torch.manual_seed(0)
    expected = jvp(f, (X,), (T,))
    torch.manual_seed(0)
    out, push = linearize(f, X)
    torch.testing.assert_close((out, push(T)), expected)
    torch.testing.assert_close(
        push(2 * T), torch.utils._pytree.tree_map(lambda t: 2 * t, expected[1])
    )


class Seen(TorchDispatchMode):
    """The ops that ran while it was entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


def test_the_function_runs_once_and_pushing_does_only_what_is_linear() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return (x.sin().exp() * x.cos()).sum()

    _, push = linearize(f, X)
    with Seen() as seen:
        push(T)
        push(X)
    assert len(calls) == 1
    assert "mul" in seen.names and not seen.names & {"sin", "cos", "exp"}


def test_trees_and_several_primals() -> None:
    def f(tree: Any, y: Any) -> Any:
        return {"out": tree["a"] * y, "pair": (tree["b"][0].sum(), y)}

    args, tangents = ({"a": X, "b": [T]}, X + T), ({"a": T, "b": [X]}, X)
    out, push = linearize(f, *args)
    torch.testing.assert_close((out, push(*tangents)), torch.func.jvp(f, args, tangents))


def test_the_linear_function_nests() -> None:
    f = PROGRAMS["pointwise"]
    _, push = linearize(f, X)
    jacobian = torch.func.jacfwd(f)(X)
    torch.testing.assert_close(vmap(push, out_dims=1)(torch.eye(4, dtype=torch.float64)), jacobian)
    torch.testing.assert_close(vjp(push, T)[1](X)[0], jacobian.t() @ X)
    torch.testing.assert_close(jacfwd(push)(T), jacobian)
    torch.testing.assert_close(linearize(push, T)[1](X), push(X))


def test_linearize_nests_and_its_derivative_by_the_primals_is_the_second() -> None:
    f = PROGRAMS["pointwise"]

    def pushed(lib: Any) -> Any:
        return lambda x: (
            lib.linearize(f, x)[1](T).sin().sum()
            if lib is runtime.func
            else lib.jvp(f, (x,), (T,))[1].sin().sum()
        )

    torch.testing.assert_close(
        grad(pushed(runtime.func))(X), torch.func.grad(pushed(torch.func))(X)
    )
    torch.testing.assert_close(
        jvp(pushed(runtime.func), (X,), (T,)), torch.func.jvp(pushed(torch.func), (X,), (T,))
    )
    xs = torch.stack([X, T])
    torch.testing.assert_close(
        vmap(pushed(runtime.func))(xs), torch.func.vmap(pushed(torch.func))(xs)
    )
    w = wrap(X.clone(), True)
    linearize(f, w)[1](T).sum().backward()
    assert w.grad is not None
    torch.testing.assert_close(
        runtime.unwrap(w.grad), torch.func.grad(lambda x: torch.func.jvp(f, (x,), (T,))[1].sum())(X)
    )


def test_modules_and_custom_functions() -> None:
    net = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 1)
    ).double()
    params = dict(net.named_parameters())
    x = torch.randn(5, 4, dtype=torch.float64)
    tangents = {k: torch.randn_like(v) for k, v in params.items()}

    def call(params: Any) -> Any:
        return functional_call(net, params, x)

    out, push = linearize(call, params)
    pushed = push(tangents)
    assert not pushed.requires_grad
    torch.testing.assert_close((out, pushed), jvp(call, (params,), (tangents,)))

    class Triple(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return 3 * t * ctx.saved_tensors[0]

    torch.testing.assert_close(linearize(Triple.apply, X)[1](T), 3 * T * X)


def test_a_write_to_what_it_keeps_is_an_error() -> None:
    x = X.clone()
    _, push = linearize(torch.sin, x)
    push(T)
    _, kept = linearize(lambda x: x * x, x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept(T)


@pytest.mark.parametrize(("f", "primals"), [(lambda: X.sin(), ()), (lambda x: (X.sin(), X), ((),))])
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr:UserWarning")  # torch's own
def test_without_primals_the_derivative_is_zero_as_in_torch(f: Any, primals: Any) -> None:
    expected, expected_push = torch.func.linearize(f, *primals)
    out, push = linearize(f, *primals)
    torch.testing.assert_close((out, push(*primals)), (expected, expected_push(*primals)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linearize(torch.sin, 3.0), "Expected all primals to be Tensors"),
        (lambda: linearize(lambda x: 3, X), "Expected f to return only Tensors"),
        (lambda: linearize(torch.sin, X)[1](T, T), "to have the same argspec as the primals"),
        (lambda: linearize(torch.sin, X)[1](3), "tangent:0 in flattened pytree is not a Tensor"),
        (
            lambda: linearize(torch.sin, X)[1](T[:2]),
            "tangent:0 with shape .* doesn't match the shape",
        ),
        (
            lambda: linearize(torch.sin, X)[1](T.float()),
            "tangent:0 with dtype torch.float32 .* doesn't match the dtype torch.float64",
        ),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


def test_what_it_keeps_is_freed_with_it_by_reference_counting() -> None:
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        out, push = linearize(lambda x: (x.sin() * x.exp()).sum() + X.max() * x.cos().sum(), X)
        push(T)
        assert tensors() > before
        del out, push
        assert tensors() == before
    finally:
        gc.enable()


def tensors() -> int:
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def test_an_output_of_the_outer_transform_is_a_constant_here() -> None:
    def outer(y: Any) -> Any:
        (square, moved), push = linearize(lambda x: (y * y, x * y), X)
        constant, tangent = push(T)
        assert not constant.any()
        return square.sum() + moved.sum() + tangent.sum()

    torch.testing.assert_close(grad(outer)(T), 2 * T + X + T)


@pytest.mark.parametrize("randomness", ("error", "different", "same"))
def test_a_primal_that_all_elements_of_an_enclosing_vmap_share(randomness: str) -> None:
    """The copy of a tangent that is all zeros is no draw."""

    def pushed(x: torch.Tensor, t: torch.Tensor) -> Any:
        out, push = linearize(torch.sin, x)
        return out, push(t)

    x, t = torch.randn(3), torch.randn(2, 3)
    out, found = vmap(pushed, (None, 0), out_dims=(None, 0), randomness=randomness)(x, t)
    assert torch.equal(out, x.sin())
    torch.testing.assert_close(found, x.cos() * t)


def test_what_no_output_needs_is_not_kept(without_collector: None) -> None:
    made: list[Any] = []

    def f(x: Any) -> Any:
        unused, used = x.detach() * 2, x.detach() * 3
        made.extend(map(weakref.ref, (unused, used)))
        x * unused
        return x * used

    _, push = linearize(f, X)
    assert made[0]() is None
    torch.testing.assert_close(push(T), 3 * X * T)


def test_a_value_that_outlives_the_function_has_escaped() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2)
        return x.sin()

    linearize(f, X)
    with pytest.raises(EscapedValue):
        kept[0] + 1


def test_a_write_is_noticed_where_the_tensor_belongs_to_another_level() -> None:
    def f(x: Any) -> Any:
        y = x.sin()
        squares = y * y  # its derivative needs the sine
        y.add_(squares)
        return y

    expected = jvp(f, (X,), (T,))[1]
    torch.testing.assert_close(runtime.unwrap(linearize(f, wrap(X))[1](T)), expected)
    torch.testing.assert_close(
        vmap(lambda x, t: linearize(f, x)[1](t))(X[None], T[None])[0], expected
    )
    torch.testing.assert_close(
        linearize(lambda x: vmap(f)(x[None])[0], wrap(X))[1](wrap(T)).detach(), wrap(expected)
    )


def test_a_constant_that_is_no_literal_of_python_is_one_of_the_derivative() -> None:
    def f(x: Any) -> Any:
        return x * complex(2, math.inf)

    out, push = linearize(f, X)
    torch.testing.assert_close((out, push(T)), jvp(f, (X,), (T,)), equal_nan=True)
