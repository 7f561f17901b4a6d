"""`out=` under functionalize and jit: an empty tensor of the program grows, a factory fills, and
what cannot be followed is refused."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import jit
from runtime.errors import InplaceError
from runtime.func import functionalize, grad

Function = Callable[[torch.Tensor], Any]
FOLLOWED = [functionalize, jit]


def empty_grows(x: torch.Tensor) -> Any:
    out = torch.empty(0, dtype=x.dtype)
    before = out.view(-1)
    torch.add(x, 1, out=out)
    out.mul_(2)
    return out, out._version, before


def two_empty_ones_grow(x: torch.Tensor) -> Any:
    values, places = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.sort(x, out=(values, places))
    return values, places


def composite_resizes(x: torch.Tensor) -> Any:
    return torch.inner(x, x, out=torch.empty(0))


def resized(x: torch.Tensor) -> Any:
    return torch.empty(0).resize_(x.shape).copy_(x)


def resized_as(x: torch.Tensor) -> Any:
    return torch.empty(0).resize_as_(x).copy_(x)


def factories(x: torch.Tensor) -> Any:
    whole = torch.zeros(3, dtype=torch.int64)
    return (
        torch.arange(3.0, out=whole),
        torch.full((2,), 7, out=torch.empty(0)),
        torch.linspace(0, 1, 3, out=torch.zeros(3)),
    )


def written_through_a_view_of_the_kernel(x: torch.Tensor) -> Any:
    out = torch.zeros(x.numel() * 2)
    return torch.kron(x, torch.ones(2), out=out), out


def a_list(x: torch.Tensor) -> Any:
    rows, empty = [torch.zeros(1) for _ in x], [torch.empty(0), torch.empty(0)]
    torch.unbind_copy(x[:, None], out=rows)
    torch.split_with_sizes_copy(x, [1, len(x) - 1], out=empty)
    returned = torch.ops.aten._foreach_mul.Scalar_out(rows, 2.0, out=rows)
    return rows, empty, returned


@pytest.mark.parametrize("transform", FOLLOWED)
@pytest.mark.parametrize(
    "f",
    [
        empty_grows,
        two_empty_ones_grow,
        composite_resizes,
        resized,
        resized_as,
        factories,
        written_through_a_view_of_the_kernel,
        a_list,
    ],
)
def test_out_gives_what_it_gives_in_torch(f: Function, transform: Any) -> None:
    followed = transform(f)
    for n in (3, 4, 5):
        x = torch.arange(n, dtype=torch.float32).flip(0)
        torch.testing.assert_close(followed(x), f(x), rtol=0, atol=0)


@pytest.mark.parametrize("transform", FOLLOWED)
def test_memory_of_the_caller_does_not_grow(transform: Any) -> None:
    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1, out=out) * 2

    with pytest.raises(
        InplaceError, match=r"out= has shape \[0\], the result \[3\]; give it that shape"
    ):
        transform(f)(torch.ones(3), torch.empty(0))


def term_of_a_concatenation(x: torch.Tensor) -> Any:
    return torch.cat([x[:0], x], out=x)


def other_piece_of_the_argument(x: torch.Tensor) -> Any:
    return torch.add(x[1:], 1, out=x[:-1])


def view_of_a_tensor_of_the_program(x: torch.Tensor) -> Any:
    y = x.clone()
    return torch.take(y, torch.tensor([0, 1, 2]), out=y[:2])


def one_element_shown_often(x: torch.Tensor) -> Any:
    return torch.cat([x, x], out=torch.zeros(1).expand(2 * len(x)))


@pytest.mark.parametrize("transform", FOLLOWED)
@pytest.mark.parametrize(
    "f",
    [
        term_of_a_concatenation,
        other_piece_of_the_argument,
        view_of_a_tensor_of_the_program,
        one_element_shown_often,
    ],
)
def test_memory_that_the_kernel_refuses_is_refused(f: Function, transform: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel resizes out= before it looks at its memory
        with pytest.raises(RuntimeError, match="unsupported operation") as eager:
            f(torch.arange(4.0))
        with pytest.raises(RuntimeError, match="unsupported operation") as found:
            transform(f)(torch.arange(4.0))
    assert str(found.value).splitlines()[0] == str(eager.value)  # the line of the program follows


PIECES: dict[str, Function] = {
    "add_": lambda x: x[:-1].add_(x[1:]),
    "copy_": lambda x: x[:2].copy_(x[1:3]),
    "addcmul_": lambda x: x[1:].addcmul_(x[:-1], x[:-1]),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([2, 3]), x[:2]),
}


@pytest.mark.parametrize("transform", FOLLOWED)
@pytest.mark.parametrize("name", PIECES)
def test_a_write_of_another_piece_of_the_same_memory_is_refused_as_by_the_kernel(
    name: str, transform: Any
) -> None:
    with pytest.raises(RuntimeError, match="unsupported operation") as eager:
        PIECES[name](torch.arange(4.0))
    with pytest.raises(RuntimeError, match="unsupported operation") as found:
        transform(PIECES[name])(torch.arange(4.0))
    assert str(found.value).splitlines()[0] == str(eager.value)


@pytest.mark.parametrize("transform", FOLLOWED)
def test_a_write_of_the_tensor_itself_or_of_another_row_happens(transform: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        x.mul_(x)
        x[0].add_(x[1])
        return x[1].copy_(x[0]), x

    for n in (2, 3, 4):
        torch.testing.assert_close(
            transform(f)(torch.full((2, n), 3.0)), f(torch.full((2, n), 3.0)), rtol=0, atol=0
        )


@pytest.mark.parametrize("transform", FOLLOWED)
def test_out_may_be_a_term_or_another_row(transform: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.add(x, 1, out=x), torch.mul(x[0], 2, out=x[1])

    for n in (2, 3, 4):
        torch.testing.assert_close(
            transform(f)(torch.ones(2, n)), f(torch.ones(2, n)), rtol=0, atol=0
        )


@pytest.mark.parametrize("transform", FOLLOWED)
def test_a_list_of_another_length_is_refused(transform: Any) -> None:
    with pytest.raises(InplaceError, match="out= has 2 tensors, the result has 3; give as many"):
        transform(lambda x: torch.unbind_copy(x, out=[torch.zeros(2), torch.zeros(2)]))(
            torch.ones(3, 2)
        )


@pytest.mark.parametrize("transform", FOLLOWED)
def test_an_empty_view_of_elements_does_not_grow(transform: Any) -> None:
    with pytest.raises(InplaceError, match=r"out= has shape \[0\]"):
        transform(lambda x: torch.add(x, 1, out=x.clone()[:0]))(torch.ones(3))


def test_an_op_that_writes_to_more_than_its_out_is_refused() -> None:
    def f(x: torch.Tensor) -> Any:
        mean, var, outs = (
            torch.zeros(3),
            torch.ones(3),
            [torch.empty(2, 3), torch.empty(3), torch.empty(3)],
        )
        out, save_mean, save_invstd = outs
        return torch.ops.aten._native_batch_norm_legit.out(
            x,
            None,
            None,
            mean,
            var,
            True,
            0.1,
            1e-5,
            out=out,
            save_mean=save_mean,
            save_invstd=save_invstd,
        )

    with pytest.raises(InplaceError, match="writes to more than its out= arguments"):
        functionalize(f)(torch.ones(2, 3))


def test_what_has_grown_may_be_multiplied_by_what_has_a_gradient() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0)
        torch.add(torch.ones(3), 1, out=out)
        out.mul_(x)
        return (out * x).sum()

    x = torch.arange(3.0)
    torch.testing.assert_close(grad(functionalize(f))(x), 4 * x)
