"""Jacobians: by chunks of rows or columns, by arguments counted from the end, of several inputs and
outputs. Torch is the oracle."""

from typing import Any

import pytest
import torch

import runtime.func
from runtime.aot import make_fx
from runtime.autograd import Function
from runtime.func import grad, grad_and_value, hessian, jacfwd, jacrev, vjp, vmap

X, Y = torch.tensor([0.5, 1.5, 2.5]), torch.tensor([2.0, -1.0])


def several(x: Any, y: Any) -> Any:
    return x.sum() * y.sin(), {"product": x[:, None] * y, "none": x[:0]}


@pytest.mark.parametrize("argnums", [0, 1, -1, -2, (0, 1), (-1, 0), (-2,)])
@pytest.mark.parametrize("chunk", [None, 1, 2, 100])
def test_jacobians_in_chunks(argnums: Any, chunk: int | None) -> None:
    positive = tuple(a % 2 for a in argnums) if isinstance(argnums, tuple) else argnums % 2
    expected = torch.func.jacrev(several, argnums=positive)(X, Y)
    torch.testing.assert_close(jacrev(several, argnums, chunk_size=chunk)(X, Y), expected)
    torch.testing.assert_close(jacfwd(several, argnums, chunk_size=chunk)(X, Y), expected)


@pytest.mark.parametrize("argnums", [-1, -2, (-1,), (0, -1)])
def test_arguments_counted_from_the_end(argnums: Any) -> None:
    f = lambda x, y: (x.sum() * y.sin()).sum()  # noqa: E731
    positive = tuple(a % 2 for a in argnums) if isinstance(argnums, tuple) else argnums % 2
    for ours, theirs in (
        (grad, torch.func.grad),
        (grad_and_value, torch.func.grad_and_value),
        (hessian, torch.func.hessian),
    ):
        torch.testing.assert_close(ours(f, argnums)(X, Y), theirs(f, positive)(X, Y))


@pytest.mark.parametrize("transform", [grad, grad_and_value, jacrev, jacfwd, hessian])
def test_arguments_that_are_not_there(transform: Any) -> None:
    f = lambda x, y: (x.sum() * y).sum()  # noqa: E731
    for argnums, message in [
        (2, "Got argnum=2, but only 2 positional inputs"),
        (-3, "Got argnum=-3, but only 2 positional inputs"),
        ((0, 2), "Got argnum=2, but only 2 positional inputs"),
        ((0, -2), r"argnums elements must be unique, got \(0, 0\)"),
        ((), "argnums must be non-empty"),
        ("x", "argnums must be int or Tuple"),
        ((0, "x"), "argnum must be int"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            transform(f, argnums)(X, Y)


def test_rows_one_by_one_need_no_vmap() -> None:
    """A Function whose backward asks for values, which a batch cannot answer."""
    seen = []

    class Asks(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(int(g.nonzero()[0, 0]))
            return 2 * g

    torch.testing.assert_close(jacrev(Asks.apply, chunk_size=1)(X), 2 * torch.eye(3))
    assert seen == [0, 1, 2]
    with pytest.raises(RuntimeError, match="vmap"):
        jacrev(Asks.apply, chunk_size=2)(X)
    # nor does one row
    torch.testing.assert_close(jacrev(lambda x: Asks.apply(x)[1:2])(X), 2 * torch.eye(3)[1:2])


def test_chunks_in_transforms() -> None:
    by_one = jacrev(torch.sin, chunk_size=1)
    torch.testing.assert_close(vmap(by_one)(X[:, None]), X.cos()[:, None, None])
    torch.testing.assert_close(jacrev(by_one, chunk_size=1)(X), torch.func.hessian(torch.sin)(X))
    torch.testing.assert_close(jacrev(lambda x: x[:0], chunk_size=1)(X), torch.zeros(0, 3))
    torch.testing.assert_close(
        jacrev(lambda x: (x * 2, x.sum()), has_aux=True, chunk_size=1)(X),
        (2 * torch.eye(3), X.sum()),
    )


@pytest.mark.parametrize("chunk", [0, -1, 1.5])
def test_chunks_are_positive(chunk: Any) -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        jacrev(torch.sin, chunk_size=chunk)(X)
    with pytest.raises(ValueError, match="chunk_size"):
        jacfwd(torch.sin, chunk_size=chunk)(X)


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_complex_jacobians_are_refused(transform: Any) -> None:
    with pytest.raises(RuntimeError, match="Expected all inputs to be real"):
        transform(torch.abs)(X + 0j)
    with pytest.raises(RuntimeError, match="Expected all outputs to be real"):
        transform(lambda x: x + 1j)(X)


def test_a_pullback_takes_the_structure_shapes_and_kind_of_its_outputs() -> None:
    _, pull = vjp(several, X, Y)
    right = (torch.ones(2), {"product": torch.ones(3, 2), "none": torch.ones(0)})
    torch.testing.assert_close(pull(right), torch.func.vjp(several, X, Y)[1](right))
    for wrong, error, message in [
        ((torch.ones(2),), RuntimeError, "pytree structure of cotangents"),
        ((torch.ones(3), right[1]), RuntimeError, "Mismatch in shape"),
        ((torch.ones(2) + 0j, right[1]), RuntimeError, "Mismatch in dtype"),
        ((2.0, right[1]), TypeError, "gradients can be either Tensors or None, but got float"),
    ]:
        with pytest.raises(error, match=message):
            pull(wrong)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_an_output_of_one_element_has_one_row(shape: Any, chunk: int | None) -> None:
    def f(x: Any, y: Any) -> Any:
        return (x.sum() * y.sin()).sum().reshape(shape)

    for argnums in (0, (0, 1)):
        expected = torch.func.jacrev(f, argnums)(X, Y)
        torch.testing.assert_close(jacrev(f, argnums, chunk_size=chunk)(X, Y), expected)
        torch.testing.assert_close(vmap(jacrev(f, argnums), in_dims=(0, None))(X[:, None], Y),
            torch.func.vmap(
            torch.func.jacrev(f, argnums), in_dims=(0, None))(X[:, None], Y))  # fmt: skip
    torch.testing.assert_close(
        jacrev(jacrev(f))(X, Y), torch.func.jacrev(torch.func.jacrev(f))(X, Y)
    )


@pytest.mark.parametrize("transform", ["grad", "grad_and_value", "jacrev", "jacfwd", "hessian"])
def test_the_first_argument_is_differentiated_by_if_none_is_named(transform: str) -> None:
    def f(x: Any, y: Any) -> Any:
        return (x.prod() * y.sin()).sum()

    torch.testing.assert_close(
        getattr(runtime.func, transform)(f)(X, Y), getattr(torch.func, transform)(f)(X, Y)
    )


class Batches(Function):
    """Twice its argument. ``seen``: how many elements its batches had."""

    seen: list[int]

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        Batches.seen.append(info.batch_size)
        return x * 2, in_dims[0]


class Doubled(Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Batches.apply(g)

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return Batches.apply(t)


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
@pytest.mark.parametrize(("chunk", "seen"), [(None, [3]), (2, [2, 1]), (3, [3])])
def test_a_chunk_is_a_batch_of_as_many_rows_or_columns(
    transform: Any, chunk: int | None, seen: list[int]
) -> None:
    Batches.seen = []
    torch.testing.assert_close(transform(Doubled.apply, chunk_size=chunk)(X), 2 * torch.eye(3))
    assert Batches.seen == seen


def test_one_row_of_several_outputs_is_looped_over() -> None:
    def f(x: Any) -> Any:
        return x.sum(), x[:0]

    torch.testing.assert_close(jacrev(f, chunk_size=1)(X), (torch.ones(3), torch.zeros(0, 3)))


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_a_graph_of_a_jacobian_of_several_arguments_is_for_any_size_dtype_and_device(
    transform: Any,
) -> None:
    def f(x: Any, y: Any) -> Any:
        return x.sum() * y.sin(), x.cos() * y.sum()

    x, y = X.double(), Y.double()
    graph = make_fx(transform(f, (0, 1)), tracing_mode="symbolic")(x, y)
    larger = (
        torch.linspace(-1, 1, 5, dtype=torch.float64),
        torch.linspace(0, 1, 4, dtype=torch.float64),
    )
    torch.testing.assert_close(graph(*larger), torch.func.jacrev(f, (0, 1))(*larger))
    nodes = make_fx(transform(f, (0, 1)), tracing_mode="symbolic")(
        x.to("meta"), y.to("meta")
    ).graph.nodes
    values = [n.meta["val"] for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert {v.device.type for v in values} == {"meta"}
