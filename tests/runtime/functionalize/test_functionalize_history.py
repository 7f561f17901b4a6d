"""A write in a functionalized program changes the history of the tensor through which it is
made, as in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from runtime import dropin, unwrap
from runtime.func import functionalize, grad, jvp, vmap

aten = torch.ops.aten


def _in_no_grad(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return torch.no_grad()(write)


def _then(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def written(b: Any) -> Any:
        write(b)
        return b

    return written


# Each beside the same by ``detach()``, which torch's outer transforms respect as its inner ones do;
# ``.data`` and ``detach_`` they do not.
CONSTANT_WRITES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    name: (_then(write), _then(same))
    for name, write, same in (
        (".data", lambda b: b.data.add_(1), lambda b: b.detach().add_(1)),
        ("a view of .data", lambda b: b.data[:1].mul_(3), lambda b: b.detach()[:1].mul_(3)),
        (
            "an element of .data",
            lambda b: b.data.__setitem__(0, 5.0),
            lambda b: b.detach().__setitem__(0, 5.0),
        ),
        ("detach() of a view", lambda b: b[1:].detach().mul_(2), lambda b: b[1:].detach().mul_(2)),
        ("a view of detach()", lambda b: b.detach()[1:].exp_(), lambda b: b.detach()[1:].exp_()),
        ("no_grad", _in_no_grad(lambda b: b.add_(1)), _in_no_grad(lambda b: b.add_(1))),
        ("a factor in no_grad", _in_no_grad(lambda b: b.mul_(3)), _in_no_grad(lambda b: b.mul_(3))),
        (
            "an element in no_grad",
            _in_no_grad(lambda b: b.__setitem__(0, 5.0)),
            _in_no_grad(lambda b: b.__setitem__(0, 5.0)),
        ),
        (
            "several",
            lambda b: (b.detach().add_(1), b.mul_(2), b.data.mul_(3)),
            lambda b: (b.detach().add_(1), b.mul_(2), b.detach().mul_(3)),
        ),
    )
} | {"detach_": (lambda b: b.detach_(), lambda b: b.detach())}
DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "grad of grad": lambda f, x: torch.func.grad(lambda y: torch.func.grad(f)(y).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x + 1,)),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, -x])),
    "grad of jvp": lambda f, x: torch.func.grad(lambda y: torch.func.jvp(f, (y,), (y,))[1])(x),
}


@pytest.mark.parametrize("write", CONSTANT_WRITES)
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_a_write_that_is_not_differentiated_leaves_the_history_of_what_is_written(
    write: str, derivative: Any, remove: str
) -> None:
    """The same function without functionalize, on torch, is the oracle; with it, torch loses the
    history without a word."""

    def program(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            b = write(x * 2)
            return (b * b * x).sum()

        return f

    x = torch.tensor([1.0, 2.0, 3.0])
    ours, by_detach = map(program, CONSTANT_WRITES[write])
    expected = derivative(by_detach, x)
    with dropin.installed():
        found = derivative(functionalize(ours, remove=remove), x)
    torch.testing.assert_close(pytree.tree_map(unwrap, found), expected)


def test_detach_in_place_reaches_every_element_of_a_batch() -> None:
    def f(x: Any) -> Any:
        def element(y: Any) -> Any:
            b = y * 2
            assert b.detach_() is b
            return (b * y).sum()

        return vmap(element)(x).sum()

    x = torch.ones(2, 3)
    torch.testing.assert_close(grad(f)(x), 2 * x)
    torch.testing.assert_close(jvp(f, (x,), (x,))[1], torch.tensor(12.0))


def _written_under_a_detached_name(x: Any) -> Any:
    b = torch.zeros(3)
    alias = b.detach()
    alias.mul_(2).add_(x)
    # the former has a history, the latter only the numbers
    return (alias * alias).sum() + (b * b).sum()


def _a_view_under_no_grad_after_a_write(x: Any) -> Any:
    b = x * 2
    with torch.no_grad():
        first = b[:1]
    b.data[0] = 5.0
    return (first * x).sum()


def _read_first_under_no_grad(x: Any) -> Any:
    b = torch.ones(3, 2)
    b.transpose_(0, 1)
    b[0] = x * x
    with torch.no_grad():
        b.sum()
    return (b * b).sum()


def _views_of_what_is_detached_in_place(x: Any) -> Any:
    b = x * x
    first = b[:2]
    b.detach_()
    return (first * 3).sum() + (b * x).sum()


def _two_detached_names(x: Any) -> Any:
    b = x * 2
    one, other = b.detach(), b.detach()
    one.mul_(x)
    return (one * one).sum() + (other * x).sum() + (b * b).sum()


@pytest.mark.parametrize(
    "f",
    [
        _written_under_a_detached_name,
        _a_view_under_no_grad_after_a_write,
        _read_first_under_no_grad,
        _views_of_what_is_detached_in_place,
        _two_detached_names,
    ],
)
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_each_name_of_a_memory_has_the_history_that_it_has_in_eager(f: Any, remove: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    value = f(x)
    (expected,) = torch.autograd.grad(value, x)
    x = x.detach()
    with dropin.installed():
        functional = functionalize(f, remove=remove)
        torch.testing.assert_close(unwrap(functional(x)), value.detach())
        torch.testing.assert_close(unwrap(grad(functional)(x)), expected)
        torch.testing.assert_close(unwrap(vmap(grad(functional))(torch.stack([x, x]))[1]), expected)


def test_a_write_to_a_leaf_that_is_not_recorded_is_carried_out() -> None:
    """As in eager: under ``no_grad``, or through ``detach()``; through ``.data``
    without a new version."""

    def under_no_grad(x: Any) -> None:
        with torch.no_grad():
            x.mul_(2)

    for write, version in (
        (under_no_grad, 1),
        (lambda x: x.detach().mul_(2), 1),
        (lambda x: x.data.mul_(2), 0),
    ):
        with dropin.installed():
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            functionalize(write)(x)
            assert (x.tolist(), x.requires_grad, x.is_leaf, x._version) == (
                [2.0, 4.0],
                True,
                True,
                version,
            )
            with pytest.raises(
                RuntimeError,
                match="a leaf Variable that requires grad is being used in an in-place operation",
            ):
                functionalize(lambda y: y.mul_(2))(x)


def test_a_recorded_write_through_a_view_made_under_no_grad_is_refused_as_in_eager() -> None:
    def f(x: Any) -> Any:
        b = x * 2
        with torch.no_grad():
            view = b[:1]
        view.mul_(3)
        return b.sum()

    with pytest.raises(
        RuntimeError,
        match=(
            "A view was created in no_grad mode and is being modified inplace "
            "with grad mode enabled"
        ),
    ):
        grad(functionalize(f))(torch.ones(2))


def test_a_batch_may_be_copied_into_a_tensor_without_one_where_writes_are_functional() -> None:
    def f(x: Any) -> Any:
        buffer = torch.zeros(2, 3)
        buffer.select(1, 0).copy_(x.sum())
        buffer[0] = x
        return buffer

    x = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(vmap(functionalize(f))(x), torch.stack([f(each) for each in x]))
