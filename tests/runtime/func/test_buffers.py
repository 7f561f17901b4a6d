"""A plain tensor made inside a transformed function may be filled with its values.
torch.func is the oracle."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
import runtime.dropin
from runtime.aot import make_fx
from runtime.errors import InplaceError
from runtime.func import grad, jvp, linearize, vjp, vmap

aten = torch.ops.aten
X = torch.linspace(0.3, 1.2, 4, dtype=torch.float64)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def element_by_element(x: Any) -> Any:
    b = zeros(4)
    for i in range(4):
        b[i] = x[i] ** 2
    return b


def whole(x: Any) -> Any:
    b = zeros(4)
    b.copy_(x.sin())
    return b.mul_(x)


def parts(x: Any) -> Any:
    b = zeros(2, 3)
    b[0, 1] = x[0]
    b[1] = x[1:]
    b += 1
    return b * b


def after_a_use(x: Any) -> Any:
    b = zeros(4) + 1
    r = b * 2
    b[1:3] += x[:2]
    return (b * r).cumsum(0)


def through_a_view(x: Any) -> Any:
    b = zeros(4)
    view = b[1:]
    view.copy_(x[1:])
    return b.exp() * view.sum()


def result_saved(x: Any) -> Any:
    b = zeros(4)
    b[1:] = x[1:]
    return b.sigmoid_() * x


def first_written_through_a_transpose(x: Any) -> Any:
    b = zeros(1, 4).t()
    b.div_(x[:, None] + 2)
    return b * x


def into_integers(x: Any) -> Any:
    b = torch.zeros(4, dtype=torch.int64)
    b[1:].copy_(3 * x[1:])
    b[0] = 2 * x[3]
    return b * x


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    f.__name__: f
    for f in (
        *(element_by_element, whole, parts, after_a_use, through_a_view),
        *(result_saved, first_written_through_a_transpose, into_integers),
    )
}


def scalar(f: Any) -> Any:
    return lambda x: f(x).sin().sum()


PIPELINES: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda lib, f: lib.grad(scalar(f))(X),
    "grad . grad": lambda lib, f: lib.grad(lambda x: lib.grad(scalar(f))(x).sin().sum())(X),
    "vjp": lambda lib, f: (lambda out, pull: (out, pull(out)))(*lib.vjp(f, X)),
    "jvp": lambda lib, f: lib.jvp(f, (X,), (X + 1,)),
    "jvp . grad": lambda lib, f: lib.jvp(lib.grad(scalar(f)), (X,), (X,)),
    "grad . jvp": lambda lib, f: lib.grad(lambda x: lib.jvp(scalar(f), (x,), (x,))[1])(X),
    "hessian": lambda lib, f: lib.hessian(scalar(f))(X),
    "jacrev": lambda lib, f: lib.jacrev(f)(X),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_buffer_carries_the_history_of_what_is_written(program: str, pipeline: str) -> None:
    f = PROGRAMS[program]
    torch.testing.assert_close(
        PIPELINES[pipeline](runtime.func, f), PIPELINES[pipeline](torch.func, f)
    )
    torch.testing.assert_close(linearize(f, X)[1](X), torch.func.jvp(f, (X,), (X,))[1])


@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "parts"])
def test_buffers_of_the_session_as_factories_make_them_under_the_drop_in(program: str) -> None:
    f = PROGRAMS[program]
    expected = {name: run(torch.func, f) for name, run in PIPELINES.items()}
    with runtime.dropin.installed():
        found = {name: run(torch.func, f) for name, run in PIPELINES.items()}
    for name, want in expected.items():
        torch.testing.assert_close(torch.utils._pytree.tree_map(runtime.unwrap, found[name]), want)


def test_a_first_write_by_several_indices_finds_a_view_that_torch_holds_between() -> None:
    """Of a tensor of the session; of a plain one torch does not."""
    with pytest.raises(InplaceError, match="cannot take on its history"):
        grad(lambda x: runtime.wrap(zeros(2, 2)).__setitem__((0, 1), x[0]))(X)


def test_in_the_eager_session_a_plain_buffer_becomes_a_runtime_tensor() -> None:
    w = runtime.wrap(X.clone(), True)
    b = zeros(4)
    b[:2] = w[2:] * 3
    assert isinstance(b, runtime.Tensor)
    b.sum().backward()
    assert w.grad is not None
    torch.testing.assert_close(
        runtime.unwrap(w.grad), torch.tensor([0.0, 0, 3, 3], dtype=torch.float64)
    )


def aliased_by_a_view(x: Any) -> Any:
    b = zeros(4)
    row = b[:2]
    b.copy_(x)
    return row.sum()


def aliased_by_detach(x: Any) -> Any:
    b = zeros(4)
    other = b.detach()
    b[0] = x[0]
    return other.sum()


def view_of_a_view(x: Any) -> Any:
    b = zeros(2, 2)
    b[0][1] = x[0]
    return b.sum()


def strides_that_no_tangent_has(x: Any) -> Any:
    b = torch.empty_strided((2, 2), (1, 2), dtype=torch.float64)
    b.copy_(x.view(2, 2))
    return b.sum()


def parameter(x: Any) -> Any:
    b = torch.nn.Parameter(zeros(4), requires_grad=False)
    b.copy_(x)
    return b.sum()


@pytest.mark.parametrize(
    "f",
    [aliased_by_a_view, aliased_by_detach, view_of_a_view, strides_that_no_tangent_has, parameter],
)
def test_a_buffer_that_others_may_see_is_refused(f: Any) -> None:
    runs: list[Callable[[], Any]] = [
        lambda: grad(f)(X),
        lambda: jvp(f, (X,), (X,)),
        lambda: f(runtime.wrap(X, True)),
    ]
    for run in runs:
        with pytest.raises(InplaceError, match="cannot take on its history"):
            run()


def test_a_captured_tensor_is_plain_again_when_the_transform_returns() -> None:
    captured = zeros(4)

    def f(x: Any) -> Any:
        captured.add_(x * x)
        if x.shape[0] == 3:
            raise ValueError("in f")
        return (captured * x).sum()

    torch.testing.assert_close(grad(f)(X), 3 * X**2)
    assert type(captured) is torch.Tensor and not hasattr(captured, "_level")
    torch.testing.assert_close(captured, X**2)
    captured.zero_()
    torch.testing.assert_close(grad(lambda x: grad(f)(x).sum())(X), 6 * X)
    assert type(captured) is torch.Tensor
    captured = zeros(3)
    with pytest.raises(ValueError, match="in f"):
        grad(f)(X[:3])
    assert type(captured) is torch.Tensor
    torch.testing.assert_close(captured + 1, X[:3] ** 2 + 1)


def test_a_pullback_knows_a_buffer_that_was_returned() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        b = zeros(4)
        b[1:] = x[1:] * x[0]
        kept.append(b)
        return b, b[1:]

    (out, part), pull = vjp(f, X)
    assert type(out) is type(kept[0]) is torch.Tensor
    torch.testing.assert_close(part, X[1:] * X[0])
    torch.testing.assert_close(
        pull((out, part))[0], torch.func.vjp(lambda x: f(x)[0], X)[1](2 * out.detach())[0]
    )


def test_what_was_saved_before_the_write_is_known_to_be_stale() -> None:
    def f(x: Any) -> Any:
        b = zeros(4) + 1
        y = x * b
        b[0] = x[0]
        return (y * b).sum()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(f)(X)


def test_a_batch_has_no_place_in_a_buffer_for_one() -> None:
    with pytest.raises(RuntimeError, match="inplace arithmetic"):
        vmap(grad(scalar(whole)))(torch.stack([X, X]))


def test_a_tensor_of_the_session_older_than_the_transform_is_captured_and_not_written() -> None:
    captured = runtime.wrap(zeros(4))
    runs: list[Callable[[Any], Any]] = [lambda f: grad(f)(X), lambda f: jvp(f, (X,), (X,))]
    for run in runs:
        with pytest.raises(
            RuntimeError,
            match=(
                r"During a grad .* attempted to call in-place operation .* "
                r"mutate a captured Tensor"
            ),
        ):
            run(lambda x: captured.add_(x).sum())
        run(lambda x: (captured * 2).add_(x).sum())  # made inside
    assert captured.tolist() == [0.0] * 4


def added(x: Any) -> Any:
    return aten.add_.Tensor(zeros(4), 2 * x)


def added_to_a_view(x: Any) -> Any:
    return aten.mul_.Tensor((zeros(6) + 1)[:4], x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(a: Any) -> Any:
        return a * a

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0] * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return 2 * tangents[0] * ctx.saved_tensors[0]


# what is done with the result of a write that ATen was asked for by name
RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "itself": lambda r, x: r,
    "operator": lambda r, x: 3 * r,
    "with a value": lambda r, x: r * x,
    "index": lambda r, x: r[1:],
    "written to again": lambda r, x: r.mul_(x),
    "in a list": lambda r, x: torch.stack([r, x]),
    "overload": lambda r, x: aten.mul.Tensor(r, r),
    "transform": lambda r, x: vjp(lambda a: a * a, r)[1](r)[0],
    "captured": lambda r, x: vjp(lambda a: a * r, x)[1](r)[0],
    "Function": lambda r, x: Square.apply(r),  # type: ignore[no-untyped-call]
    "runtime tensor": lambda r, x: runtime.wrap(r) * x,
    "a requires_grad": lambda r, x: r * x if r.requires_grad or r.sum() > 0 else x,
}


@pytest.mark.parametrize("then", RESULTS.values(), ids=RESULTS.keys())
@pytest.mark.parametrize("f", [added, added_to_a_view])
def test_the_result_of_a_write_has_the_history_of_the_buffer(
    f: Callable[[Any], Any], then: Callable[[Any, Any], Any]
) -> None:
    def number(x: Any) -> Any:
        return (then(f(x), x) ** 2).sum()

    def expected(x: Any) -> Any:  # the same without a buffer
        return (then(2 * x if f is added else x * 1, x) ** 2).sum()

    x = runtime.tensor(X.tolist(), dtype=X.dtype, requires_grad=True)
    expected(x).backward()
    torch.testing.assert_close(grad(number)(X), runtime.unwrap(x.grad))
    tangent = jvp(number, (X,), (X,))[1]
    torch.testing.assert_close(tangent, runtime.unwrap(x.grad) @ X)
    y = runtime.tensor(X.tolist(), dtype=X.dtype, requires_grad=True)
    number(y).backward()
    torch.testing.assert_close(y.grad, x.grad)


@pytest.mark.parametrize("f", [element_by_element, whole])
def test_a_graph_that_writes_to_a_buffer_has_the_derivatives_of_its_function(
    f: Callable[[Any], Any],
) -> None:
    graph = make_fx(f)(X)
    torch.testing.assert_close(vjp(graph, X)[1](X)[0], torch.func.vjp(f, X)[1](X)[0])
    torch.testing.assert_close(jvp(graph, (X,), (X,))[1], torch.func.jvp(f, (X,), (X,))[1])
