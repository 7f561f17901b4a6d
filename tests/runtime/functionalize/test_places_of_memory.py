"""What a write does to other tensors of the same memory, and where ``as_strided`` finds an element
after a write: as in eager mode, or refused by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from runtime import jit
from runtime.aot import aot_function, make_fx, nop
from runtime.func import functionalize, vmap

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
LEVELS: dict[str, Transform] = {
    "functionalize": functionalize,
    "of views": lambda f: functionalize(f, remove="mutations_and_views"),
    "jit": jit,
    "aot_function": lambda f: aot_function(f, nop),
}
each_level = pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
HERE = r"test_places_of_memory\.py"


def numbers(n: int = 6) -> Tensor:
    return torch.arange(float(n))


def written(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y + 0


@pytest.mark.parametrize(
    "given",
    [
        lambda a: (a, a),
        lambda a: (a[:4], a[3:]),
        lambda a: (a.view(2, 3)[:, 1], a.view(2, 3).t()[1]),
        lambda a: (a.view(torch.int32)[:4], a),
    ],
    ids=["the same", "overlapping", "a column and a row of the transpose", "another dtype"],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_functionalize_refuses_a_write_that_another_argument_shows(
    given: Callable[[Tensor], tuple[Tensor, Tensor]], mapped: bool
) -> None:
    a = numbers()
    f = functionalize(written)
    x, y = given(a)
    with pytest.raises(RuntimeError, match=rf"argument 0, which shares.*argument 1.*{HERE}"):
        vmap(f)(x[None], y[None]) if mapped else f(x, y)
    assert_close(a, numbers())


def test_a_geometry_that_another_argument_shows_is_refused_before_it_changes() -> None:
    a = numbers().view(2, 3)
    with pytest.raises(RuntimeError, match="shares memory"):
        functionalize(lambda x, y: (x.t_(), y * 2))(a, a)
    assert a.shape == (2, 3)


@pytest.mark.parametrize(
    "given",
    [
        lambda a: (a[:3], a[3:]),
        lambda a: (a.view(3, 2)[:, 0], a.view(3, 2)[:, 1]),
        lambda a: (a, a.clone()),
        lambda a: (a, a[:0]),
        lambda a: (a[:3], a.view(torch.int32)[3:]),
    ],
    ids=["parts", "columns", "a copy", "nothing", "parts of another dtype"],
)
def test_arguments_with_elements_of_their_own_may_be_written(
    given: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    expected, found = numbers(), numbers()
    result = functionalize(written)(*given(found))
    assert_close(result, written(*given(expected)))
    assert_close(found, expected)


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_traced_arguments_have_elements_of_their_own(tracing_mode: str) -> None:
    graph = make_fx(functionalize(written), tracing_mode=tracing_mode)(numbers(), numbers())
    x, y = numbers(), numbers()
    assert_close(graph(x, y), numbers())
    assert_close(x, numbers() + 1)


def offset_after(x: Tensor) -> Tensor:
    x.mul_(3)
    return x.as_strided((2,), (1,), 1) + 0


def offset_before(x: Tensor) -> Tensor:
    y = x.as_strided((2,), (1,), 1)
    x.mul_(3)
    return y + 0


@each_level
@pytest.mark.parametrize("f", [offset_after, offset_before])
def test_an_offset_counts_from_the_storage_or_is_refused(
    f: Callable[[Tensor], Tensor], level: Transform
) -> None:
    with pytest.raises(RuntimeError, match=rf"storage_offset.*{HERE}"):
        level(f)(numbers()[3:])
    assert_close(level(f)(numbers()), f(numbers()))


def narrowed_after(x: Tensor) -> Tensor:
    x.fill_(9)
    x.as_strided_((2,), (1,))
    return x + 0


def narrowed_before(x: Tensor) -> Tensor:
    y = x.view(-1)
    x.as_strided_((2,), (1,))
    y.add_(1)
    return x + 0


@pytest.mark.parametrize("f", [narrowed_after, narrowed_before])
@pytest.mark.parametrize("given", [numbers, lambda: numbers()[3:]])
def test_functionalize_writes_all_of_an_argument_that_shows_less_at_the_end(
    f: Callable[[Tensor], Tensor], given: Callable[[], Tensor]
) -> None:
    x, expected = given(), given()
    whole, of_expected = x if x._base is None else x._base, expected._base
    assert_close(functionalize(f)(x), f(expected))
    assert_close(x, expected)
    assert_close(whole.untyped_storage().tolist(), expected.untyped_storage().tolist())
    assert of_expected is None or x.storage_offset() == 3


@pytest.mark.parametrize("level", [jit, lambda f: aot_function(f, nop)], ids=["jit", "aot"])
@pytest.mark.parametrize("f", [narrowed_after, narrowed_before])
def test_a_compiled_program_refuses_to_write_an_argument_that_shows_less_at_the_end(
    f: Callable[[Tensor], Tensor], level: Transform
) -> None:
    x = numbers()
    with pytest.raises(RuntimeError, match=rf"as_strided_\(\).*{HERE}"):
        level(f)(x)
    assert_close(x, numbers())


@pytest.mark.parametrize(
    "shown",
    [
        lambda x: x.t(),
        lambda x: x.t() + 1,
        lambda x: x.detach(),
        lambda x: x[:, ::2].clone(),
    ],
    ids=["a view", "computed of a view", "detached", "a clone of a part"],
)
def test_as_strided_by_strides_of_copies_is_refused(shown: Callable[[Tensor], Tensor]) -> None:
    f = functionalize(lambda x: shown(x).as_strided((2,), (1,)), remove="mutations_and_views")
    for x in (numbers().view(2, 3), numbers().view(2, 3).t()):
        with pytest.raises(RuntimeError, match=rf"has copies for views.*{HERE}"):
            f(x)


def test_as_strided_of_an_argument_takes_its_strides_where_views_are_copies() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.t().add_(1)
        part = x.as_strided((2,), (1,))
        part.mul_(3)
        return x * 1, part * 1

    for x in (numbers().view(2, 3), numbers().view(2, 3).t()):
        assert_close(functionalize(f, remove="mutations_and_views")(x.clone()), f(x.clone()))
