"""Python numbers from values, outputs that are not floating-point tensors, and other objects that a
transform returns."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import jit
from runtime.aot import make_fx
from runtime.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

X = torch.tensor([[0.5, 1.5], [2.5, 3.5]])


# torch's own
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x[0, 0].item(),
        lambda x: x * float(x.sum()),
        lambda x: x * int(x[1, 1]),
        lambda x: x * len(x.tolist()) + torch.tensor(x.tolist()),
        lambda x: x * 2 if torch.equal(x, X) else x,
        lambda x: x * 2 if torch.allclose(x, X) else x,
    ],
)
def test_numbers_of_a_value_are_constants(f: Any) -> None:
    torch.testing.assert_close(jvp(f, (X,), (X,)), torch.func.jvp(f, (X,), (X,)))
    torch.testing.assert_close(jacfwd(f)(X), torch.func.jacfwd(f)(X))
    torch.testing.assert_close(jacrev(f)(X), torch.func.jacrev(f)(X))
    torch.testing.assert_close(
        hessian(lambda x: f(x).pow(2).sum())(X), torch.func.hessian(lambda x: f(x).pow(2).sum())(X)
    )


@pytest.mark.parametrize(
    "f", [lambda x: x.argmax(), lambda x: (x.sum(), x > 0), lambda x: x.max(0)]
)
def test_a_pullback_needs_outputs_that_have_gradients(f: Any) -> None:
    transforms: list[Any] = [
        lambda: vjp(f, X),
        lambda: jacrev(f)(X),
        lambda: vmap(jacrev(f))(X[None]),
    ]
    for transform in transforms:
        with pytest.raises(
            RuntimeError,
            match=(
                "All outputs of f must be floating-point or complex Tensors, "
                "got Tensor with dtype torch"
            ),
        ):
            transform()


@pytest.mark.parametrize("transform", [grad, jacrev, jacfwd])
@pytest.mark.parametrize("chunked", [False, True])
def test_aux_is_a_tree_of_tensors(transform: Any, chunked: bool) -> None:
    options = {"chunk_size": 3} if chunked and transform is not grad else {}
    derivative, aux = transform(
        lambda x: (x.sum(), {"n": X, "t": [x * 2, ()]}), has_aux=True, **options
    )(X)
    torch.testing.assert_close(derivative, torch.ones_like(X))
    assert aux["t"][1] == () and torch.equal(aux["n"], X)
    torch.testing.assert_close(aux["t"][0], X * 2)
    for leaf in (3, None, "word"):
        with pytest.raises(RuntimeError, match="Expected tensors, got unsupported type"):
            transform(lambda x: (x.sum(), {"t": [x, leaf]}), has_aux=True, **options)(X)  # noqa: B023


def test_no_cotangent_is_a_cotangent_of_zeros() -> None:
    f = lambda x: (x.sin(), x.sum())  # noqa: E731
    torch.testing.assert_close(
        vjp(f, X)[1]((X, None)), torch.func.vjp(f, X)[1]((X, torch.tensor(0.0)))
    )
    torch.testing.assert_close(vjp(f, X)[1]((None, None)), (torch.zeros_like(X),))


def test_a_value_is_not_copied_with_its_transform() -> None:
    transforms: list[Any] = [vmap(copy.deepcopy), jacrev(copy.deepcopy), jacfwd(copy.deepcopy)]
    for transform in transforms:
        with pytest.raises(
            RuntimeError, match=r"copy\.deepcopy\(\) of a tensor inside .* Use clone\(\)"
        ):
            transform(X)


FOREACH: dict[str, Any] = {
    "add": lambda a, b: torch._foreach_add(a, 2.0),
    "add alpha": lambda a, b: torch._foreach_add(a, b, alpha=3.0),
    "mul": lambda a, b: torch._foreach_mul(a, b),
    "mul by several": lambda a, b: torch._foreach_mul(a, [2.0, 3.0]),
    "exp": lambda a, b: torch._foreach_exp(a),
    "pow": lambda a, b: torch._foreach_pow(2.0, a),
    "norm": lambda a, b: torch._foreach_norm(a, 3),
    "maximum": lambda a, b: torch._foreach_maximum(a, 1.5),
    "minimum": lambda a, b: torch._foreach_minimum(a, b),
    "clamp_min": lambda a, b: torch._foreach_clamp_min(a, b),
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.3),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, b, a, 2.0),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, b, a, [2.0, 3.0]),
}


@pytest.mark.parametrize("name", FOREACH)
def test_ops_on_lists_have_the_derivatives_of_the_single_ops(name: str) -> None:
    f = FOREACH[name]
    inputs = [X, X + 1.0], [X * 3.0, X - 7.0]
    torch.testing.assert_close(jacrev(f, (0, 1))(*inputs), torch.func.jacrev(f, (0, 1))(*inputs))
    torch.testing.assert_close(jacfwd(f, (0, 1))(*inputs), torch.func.jacrev(f, (0, 1))(*inputs))
    rows = [f(*([t[i] for t in a] for a in inputs)) for i in range(2)]
    torch.testing.assert_close(vmap(f)(*inputs), [torch.stack(r) for r in zip(*rows, strict=True)])


@pytest.mark.parametrize("f", [torch.unique, lambda x: torch.unique_consecutive(x, dim=0)])
def test_shapes_that_depend_on_data_are_refused_by_name(f: Any) -> None:
    with pytest.raises(
        RuntimeError,
        match=(
            r"aten\.unique_\w+\.default returns a result whose shape depends on "
            r"the data|aten\._unique2"
        ),
    ):
        vmap(f)(X)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: torch.conv1d(x, torch.ones(2, 3, 2)), (1, 3, 8)),
        (lambda w: torch.conv1d(torch.ones(3, 1, 8), w), (2, 1, 3)),
        (lambda w: torch.conv_transpose1d(torch.ones(3, 2, 8), w), (2, 1, 3)),
        (lambda x: torch.pixel_shuffle(x, 3), (1, 9, 6, 6)),
        (lambda x: torch.pixel_unshuffle(x, 3), (1, 2, 6, 6)),
    ],
)
def test_an_empty_batch_has_the_shapes_of_any_other(f: Any, shape: Any) -> None:
    one = torch.ones(1, *shape)
    for transformed in (f, grad(lambda x: f(x).sin().sum())):
        assert vmap(transformed)(one[:0]).shape == (0, *vmap(transformed)(one).shape[1:])


@pytest.mark.parametrize("wrap", [lambda f: f, jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "f",
    [
        grad(lambda x: (x.cos() + x * 3).sum()),
        vmap(lambda x: x.cos()),
        vmap(lambda x: x.cos(), 1, 1),
        lambda x: x.cos() * torch._efficientzerotensor(2, 3),
        lambda x: jvp(torch.sin, (x,), (x,)),
    ],
)
def test_zeros_without_memory_are_zeros(f: Any, wrap: Any) -> None:
    """A value of a level does not tell the dispatcher that its tensor has no memory, and a
    kernel would read it."""
    zeros = torch._efficientzerotensor(2, 3)
    torch.testing.assert_close(wrap(f)(zeros), f(torch.zeros(2, 3)))


MEMORYLESS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: vmap(f)(X),
    "functionalize": lambda f: functionalize(f)(X),
    "make_fx": lambda f: make_fx(f)(X),
    "make_fx of grad": lambda f: make_fx(grad(lambda x: f(x).sum()))(X),
    "grad of grad": lambda f: grad(lambda x: grad(lambda y: f(y).sum())(x).sum())(X),
}


@pytest.mark.parametrize("transform", MEMORYLESS)
def test_memory_is_not_shared_with_other_processes_where_a_value_has_none(transform: str) -> None:
    with pytest.raises(
        RuntimeError, match=r"share_memory_\(\) of a tensor inside .* has no memory of its own"
    ):
        MEMORYLESS[transform](lambda x: (x * 1).share_memory_())


def test_memory_of_a_value_that_has_some_is_shared_with_other_processes() -> None:
    seen: list[bool] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.share_memory_()
        seen.append(y.is_shared())
        return (y * x).sum()

    torch.testing.assert_close(grad(f)(X), 4 * X)
    torch.testing.assert_close(jvp(f, (X,), (X,))[1], 4 * (X * X).sum())
    assert seen == [True, True]
