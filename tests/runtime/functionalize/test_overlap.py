"""Writes through views that show an element several times, and to results of ``unsafe_split``, do
what they do in eager mode."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from runtime.aot import aot_function, nop
from runtime.errors import InplaceError
from runtime.func import functionalize, grad, vmap

Program = Callable[[torch.Tensor], Any]


def unfolded(x: torch.Tensor) -> Any:
    y = x * 1
    y.unfold(0, 2, 1).mul_(2)
    return y


def strided(x: torch.Tensor) -> Any:
    y = x * 1
    y.as_strided((2, 2), (1, 1)).add_(1)
    return y


def row_of_an_expanded_tensor(x: torch.Tensor) -> Any:
    y = x * 1
    z = y.expand(2, 4)
    z[0].add_(1)
    return y, z.clone()


def pieces(x: torch.Tensor) -> Any:
    y = x * 1
    a, b = y.unsafe_chunk(2)
    a.mul_(3)
    y.add_(1)
    b.add_(1)
    c, d = y.unsafe_split(2)
    c.mul_(2)
    a.add_(1)
    d[0] = 5
    e, _ = d.unsafe_split_with_sizes([1, 1])
    e.sub_(7)
    return y.clone(), a * 1, b * 1, c * 1, d * 1


def argument(x: torch.Tensor) -> Any:
    x.unfold(0, 2, 1).mul_(2)
    x.unsafe_split(2)[1].zero_()
    return x * 2


PROGRAMS = (unfolded, strided, row_of_an_expanded_tensor, pieces, argument)
RUNS: dict[str, Callable[[Program], Program]] = {
    "functionalize": functionalize,
    "without views": partial(functionalize, remove="mutations_and_views"),
    "compiled": lambda f: aot_function(f, nop),
    "compiled for any size": lambda f: aot_function(f, nop, dynamic=True),
}


def out_is_one_of_two_rows_that_are_one(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    torch.add(x, 1, out=y.expand(2, 4)[0])
    return y


def statistics_are_one_of_two_rows_that_are_one(x: torch.Tensor) -> torch.Tensor:
    y, variance = x.clone(), torch.ones(4)
    torch.nn.functional.batch_norm(
        torch.stack([x, x * 3]), y.expand(2, 4)[1], variance, training=True
    )
    return y


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    "program",
    [out_is_one_of_two_rows_that_are_one, statistics_are_one_of_two_rows_that_are_one],
    ids=lambda f: f.__name__,
)
def test_a_write_by_another_way_than_in_place_is_that_of_the_kernel(
    program: Program, run: str
) -> None:
    x = torch.arange(4.0)
    torch.testing.assert_close(RUNS[run](program)(x.clone()), program(x), rtol=0, atol=0)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_the_numbers_are_those_of_the_kernels(program: Program, run: str) -> None:
    x, y = torch.arange(4.0), torch.arange(4.0)
    expected, found = program(x), RUNS[run](program)(y)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(x, y) and x._version == y._version


@pytest.mark.parametrize("program", PROGRAMS[:3], ids=lambda f: f.__name__)
def test_gradients_and_batches_of_it_are_those_of_the_program(program: Program) -> None:
    def loss(f: Program) -> Program:
        def summed(x: torch.Tensor) -> Any:
            out = f(x)
            return sum(r.sin().sum() for r in (out if isinstance(out, tuple) else (out,)))

        return summed

    x = torch.arange(8.0).view(2, 4)
    leaf = x[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(program)(leaf), leaf)
    torch.testing.assert_close(grad(loss(functionalize(program)))(x[0]), expected)
    each = torch.stack([loss(program)(row) for row in x])
    torch.testing.assert_close(vmap(loss(functionalize(program)))(x), each)


def test_a_write_to_a_piece_of_unsafe_split_is_not_in_the_history_of_the_whole() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.unsafe_split(2)[0].mul_(3)
        return (y * torch.arange(1.0, 5.0)).sum()

    assert grad(functionalize(f))(torch.ones(4)).tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_written_result_of_unsafe_split_that_is_returned_with_its_memory_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        (part, _) = x.unsafe_split(2)
        part.mul_(2)
        return part

    with pytest.raises(RuntimeError, match="with a result of unsafe_split"):
        aot_function(f, nop)(torch.ones(4))


def test_a_whole_beside_a_piece_of_it_after_a_write_to_another_piece_is_refused() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x * 1
        first, second = whole.unsafe_split(2)
        first.mul_(2)
        return whole, second

    def one(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return both(x)[0], x

    with pytest.raises(RuntimeError, match="with a result of unsafe_split"):
        aot_function(both, nop)(torch.ones(4))
    assert aot_function(one, nop)(torch.ones(4))[0].tolist() == [2.0, 2.0, 1.0, 1.0]


def test_an_op_that_fills_another_argument_leaves_an_expanded_one_alone() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.expand(2, 3)
        torch.nn.functional.rrelu(y, training=True)
        return y * 1

    x = torch.tensor([1.0, -1.0, -2.0])
    assert torch.equal(functionalize(f)(x), x.expand(2, 3))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[..., ::2].as_strided((3,), (1,)).add_(1),
        lambda x: x[0].as_strided((2, 2), (6, 1)).add_(1),
        lambda x: x[1:].as_strided((2,), (1,), 0).add_(1),
        lambda x: (x * 1)[..., ::2].as_strided((3,), (1,)).add_(1),
    ],
    ids=["between the elements", "after them", "before them", "of an intermediate"],
)
@pytest.mark.parametrize(
    "wrapped", [functionalize, lambda f: aot_function(f, nop)], ids=["functionalize", "compiled"]
)
def test_a_write_through_as_strided_to_memory_beside_the_view_that_it_is_taken_of_is_refused(
    program: Any, wrapped: Any
) -> None:
    x = torch.arange(12.0).reshape(2, 6)
    with pytest.raises(InplaceError, match="elements beside it"):
        wrapped(program)(x)
    assert torch.equal(x, torch.arange(12.0).reshape(2, 6))


def test_a_write_through_as_strided_within_a_view_reaches_its_base() -> None:
    def f(x: Any) -> Any:
        x[1:].as_strided((1, 2), (6, 1)).add_(1)
        x.view(-1).as_strided((2,), (11,)).add_(1)  # the first and the last element

    x, y = (torch.arange(12.0).reshape(2, 6) for _ in range(2))
    f(x)
    aot_function(f, nop)(y)
    assert torch.equal(x, y)
    functionalize(f)(y)
    f(x)
    assert torch.equal(x, y)


# each writes to elements of ``y`` that a view shows several times, as numbers of another kind
TURNED: dict[str, Program] = {
    "real parts": lambda y: y.unfold(0, 2, 1).real.mul_(2),
    "imaginary parts": lambda y: y.unfold(0, 2, 1).imag.mul_(2),
    "imaginary parts of the conjugated": lambda y: y.unfold(0, 2, 1).conj().imag.mul_(3),
    "conjugated": lambda y: y.conj().unfold(0, 2, 1).mul_(1 + 2j),
    "negated": lambda y: torch._neg_view(y).unfold(0, 2, 1).add_(1),
    "all parts": lambda y: torch.view_as_real(y).unfold(0, 2, 1).add_(1),
    "part of them": lambda y: y[1:].unfold(0, 2, 1).real.add_(1),
    "as integers of the same size": lambda y: y.view(torch.int64).unfold(0, 2, 1).add_(1),
}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", TURNED)
def test_a_write_to_other_numbers_that_show_an_element_several_times_is_that_of_the_kernel(
    name: str, start: int
) -> None:
    def f(x: torch.Tensor) -> Any:
        TURNED[name](x)
        y = x * 1
        TURNED[name](y)
        return y

    x, y = (torch.complex(torch.arange(1.0, 6.0), torch.arange(2.0, 7.0)) for _ in range(2))
    expected, found = f(x[start:]), aot_function(f, nop)(y[start:])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(x, y)


def test_a_write_of_numbers_of_another_size_that_show_an_element_several_times_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.view(torch.int16).unfold(0, 2, 1).add_(1)
        return y

    with pytest.raises(
        InplaceError,
        match=(
            r"a write to torch.int16 in memory of torch.float32 that shows an element "
            r"several times.*test_ov"
        ),
    ):
        aot_function(f, nop)(torch.ones(4))
