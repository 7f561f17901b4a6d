"""No tangent is dropped. Each has its own memory, and the dtype of its primal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime.autograd import forward_ad as fw
from runtime.errors import MissingRule
from runtime.func import jacfwd, jvp, linearize, vmap

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
T = torch.tensor([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]])


def at_level_zero(f: Callable[..., Any], x: torch.Tensor, t: torch.Tensor) -> Any:
    with fw.dual_level():
        return fw.unpack_dual(f(fw.make_dual(x, t))).tangent


ALL = {
    "jvp": lambda f, x, t: jvp(f, (x,), (t,))[1],
    "linearize": lambda f, x, t: linearize(f, x)[1](t),
    "jvp in vmap": lambda f, x, t: vmap(lambda s: jvp(f, (x,), (s,))[1])(t[None])[0],
    "jvp in jvp": lambda f, x, t: jvp(lambda s: jvp(f, (x,), (s,))[1], (t,), (t,))[0],
}
in_all = pytest.mark.parametrize("tangent", list(ALL.values()), ids=list(ALL))


# --- arguments without a formula


@pytest.mark.parametrize(
    "transform", [ALL["jvp"], ALL["linearize"], at_level_zero, lambda f, x, t: jacfwd(f)(x)]
)
def test_tangents_of_running_statistics_are_refused(transform: Any) -> None:
    x, ones = torch.randn(3, 2), torch.ones(2)
    for name, f in {
        "running_mean": lambda m: F.batch_norm(x, m, ones),
        "running_var": lambda v: F.batch_norm(x, ones, v),
    }.items():
        with pytest.raises(MissingRule, match=name):
            transform(f, torch.ones(2), ones)


def test_in_training_nothing_depends_on_the_running_statistics() -> None:
    x, ones = torch.randn(3, 2, dtype=torch.double), torch.ones(2, dtype=torch.double)
    _, tangent = jvp(
        lambda x, m: F.batch_norm(x, m, ones.clone(), training=True), (x, ones.clone()), (x, ones)
    )
    _, alone = jvp(lambda x: F.batch_norm(x, None, None, training=True), (x,), (x,))
    torch.testing.assert_close(tangent, alone)


def test_gradients_of_running_statistics_are_refused_when_asked_for() -> None:
    mean = runtime.tensor([1.0, 2.0], requires_grad=True)
    out = F.batch_norm(torch.randn(3, 2), mean, torch.ones(2))
    with pytest.raises(MissingRule, match="running_mean"):
        out.sum().backward()
    with pytest.raises(MissingRule, match="running_mean"):
        runtime.func.grad(lambda m: F.batch_norm(torch.randn(3, 2), m, torch.ones(2)).sum())(
            torch.ones(2)
        )


@in_all
def test_tangents_of_the_weights_of_a_loss_are_refused(tangent: Any) -> None:
    target = torch.tensor([0, 2])
    with pytest.raises(MissingRule, match="weight"):
        tangent(lambda w: F.nll_loss(X, target, w), torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("transform", [ALL["jvp"], at_level_zero])
def test_tangents_of_keyword_arguments_are_refused(transform: Any) -> None:
    with pytest.raises(MissingRule, match="keyword argument"):
        transform(
            lambda atol: torch.linalg.pinv(X, atol=atol), torch.tensor(1e-6), torch.tensor(1.0)
        )


@pytest.mark.parametrize("transform", [ALL["jvp"], at_level_zero])
def test_a_result_may_not_be_put_into_a_tensor_that_has_a_tangent(transform: Any) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match="out"):
        transform(lambda x: torch.mul(torch.ones(2, 3), 2, out=x * 1), X, T)


# --- memory


PASSING_ON = {
    "identity": lambda x: x,
    "view": lambda x: x.view(6),
    "part": lambda x: x[1:],
    "transpose": lambda x: x.t(),
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(x.dtype),
    "plus zero": lambda x: x + 0,
    "alias": torch.ops.aten.alias.default,
    "dropout that is off": lambda x: F.dropout(x, 0.5, training=False),
    "twice": lambda x: x.view(3, 2).t(),
}


@in_all
@pytest.mark.parametrize("f", list(PASSING_ON.values()), ids=list(PASSING_ON))
def test_writing_to_a_result_leaves_the_given_tangent_alone(f: Any, tangent: Any) -> None:
    given = T.clone()
    result = tangent(f, X, given)
    assert torch.equal(result, f(T)), "nor is it dropped"
    result.mul_(0)
    assert torch.equal(given, T)


def test_writing_to_an_input_leaves_the_given_tangent_alone() -> None:
    x, given = X.clone(), T.clone()
    _, tangent = jvp(lambda x: x.mul_(2) * 1, (x,), (given,))
    assert torch.equal(x, 2 * X) and torch.equal(tangent, 2 * T) and torch.equal(given, T)


@in_all
def test_every_element_of_a_tangent_has_memory_of_its_own(tangent: Any) -> None:
    result = tangent(lambda x: x + torch.ones(2, 3), X[0], T[0])
    result[0] *= 0
    assert torch.equal(result[1], T[0])


def test_a_value_computed_from_another_keeps_its_tangent_when_that_one_is_written_to() -> None:
    def f(x: Any) -> Any:
        y = x + 0
        z = y + 0
        y.mul_(3)
        return y, z

    _, (of_y, of_z) = jvp(f, (X,), (T,))
    assert torch.equal(of_y, 3 * T) and torch.equal(of_z, T)
    of_y.zero_()
    assert torch.equal(of_z, T)


# --- dtype


FLOATS = (torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("given", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "f", [lambda x: x, lambda x: x * x, lambda x: x.double(), lambda x: x.to(torch.complex64)]
)
def test_a_tangent_has_the_dtype_of_its_result(
    f: Any, dtype: torch.dtype, given: torch.dtype
) -> None:
    value, tangent = jvp(f, (X.to(dtype),), (torch.ones(2, 3, dtype=given),))
    assert tangent.dtype is value.dtype is f(X.to(dtype)).dtype


def test_arguments_of_several_dtypes_give_tangents_of_the_results_dtype() -> None:
    for x, y in (
        (X, X.double()),
        (X.half(), X),
        (X, torch.tensor(2.0, dtype=torch.double)),
        (X, X.to(torch.complex128)),
    ):
        value, tangent = jvp(
            lambda x, y: x * y + y * 2 - x, (x, y), (torch.ones_like(x), torch.ones_like(y))
        )
        assert tangent.dtype is value.dtype is torch.result_type(x, y)
        torch.testing.assert_close(tangent, (x + y + 1).to(value.dtype), rtol=1e-2, atol=0)
    value, tangent = jvp(
        lambda x, b: b.copy_(x).mul_(x), (X, torch.zeros(2, 3).double()), (T, torch.zeros(2, 3))
    )
    assert tangent.dtype is value.dtype is torch.float64 and torch.equal(
        tangent, (2 * X * T).double()
    )


def test_a_real_primal_has_no_complex_tangent() -> None:
    with pytest.raises(RuntimeError, match="cannot have a complex tangent"):
        jvp(torch.sin, (X,), (T.to(torch.complex64),))
    _, tangent = jvp(lambda x: x * 1j, (X.to(torch.complex64),), (T,))
    assert torch.equal(tangent, T * 1j)


# --- writes, against what the same program does out of place


def _of_several_views(split: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        y = x * 1
        first, second = split(y)
        first.mul_(second)
        return y

    return f


def _detached_in_place(x: Any) -> Any:
    y = x * 1
    y.detach_()
    return y * x


def _compared(x: Any) -> Any:
    y = x * 1
    y.logical_not_()
    return y + x


def _lists(x: Any) -> Any:
    a, b = x * 1, x * 2
    torch._foreach_mul_([a, b], 2.0)
    torch._foreach_add_([a, b], [b * 1, a * 1])
    return a + 3 * b


def _data(x: Any) -> Any:
    y = x * 1
    y.data.mul_(3)
    return y.data * x + y


WRITES = {
    "a view of unbind": (
        _of_several_views(lambda y: y.unbind(0)),
        lambda x: torch.stack([x[0] * x[1], x[1]]),
    ),
    "a view of split": (
        _of_several_views(lambda y: y.split(1, 0)),
        lambda x: torch.stack([x[0] * x[1], x[1]]),
    ),
    "a view of chunk": (
        _of_several_views(lambda y: y.chunk(2)),
        lambda x: torch.stack([x[0] * x[1], x[1]]),
    ),
    "a view of itself": (
        lambda x: (x * 1).view(6)[1:5].view(2, 2).t().mul_(x[:, :2]),
        lambda x: x.view(6)[1:5].view(2, 2).t() * x[:, :2],
    ),
    "detach_": (_detached_in_place, lambda x: x.detach() * x),
    "logical_not_": (_compared, lambda x: x),
    "lists": (_lists, lambda x: 6 * x + 3 * 6 * x),
    "data": (_data, lambda x: (3 * x.detach()) * x + x + 2 * x.detach()),
}


@pytest.mark.parametrize("transform", [*ALL.values(), at_level_zero], ids=[*ALL, "forward_ad"])
@pytest.mark.parametrize("written, pure", list(WRITES.values()), ids=list(WRITES))
def test_tangents_of_programs_that_write(transform: Any, written: Any, pure: Any) -> None:
    torch.testing.assert_close(transform(written, X, T), transform(pure, X, T))


def test_a_view_is_not_detached_in_place() -> None:
    with pytest.raises(RuntimeError, match=r"Can't detach views in-place"):
        jvp(lambda x: (x * 1)[0].detach_(), (X,), (T,))


def test_tangents_of_two_results_share_no_memory() -> None:
    _, tangents = jvp(lambda x: (y := x * 2, y + 1, 3 + y), (X,), (T,))
    assert len({t.data_ptr() for t in tangents}) == 3
