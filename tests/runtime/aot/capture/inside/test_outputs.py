"""How each result of a program is made: computed, an argument, or views of one; see
`boundary_text` for the text.

Inside: ``runtime.aot.capture.outputs``. A result that the graph computes and one that is a view of
an argument look alike, so no result shows what the graph was spared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot.capture.outputs import leaf_of, released, repeated
from tests.runtime.aot.capture.inside.boundary_text import boundary_of


def unrecorded(f: Callable[[], Any]) -> Any:
    with torch.no_grad():
        return f()


class WritesAndMarks(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


class Views(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x[0]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return torch.stack([g, g * 0])


def leaf(x: Any) -> Any:
    return (x.detach() * 2).requires_grad_()


def views_and_detached(x: Any, y: Any) -> Any:
    z = x * 2
    return z, z[0], z.t(), z.detach(), z.detach()[0]


def detached_alone(x: Any, y: Any) -> Any:
    z = y * 2
    return z.detach()[0], z.detach().mul_(x)


def detached_and_written(x: Any, y: Any) -> Any:
    z = y.detach()
    z.mul_(x)
    return z, z[0], y


def view_of_what_is_detached_and_written(x: Any, y: Any) -> Any:
    z = y.detach()
    z.mul_(x)
    return z[0]


def view_without_grad_of_a_result(x: Any, y: Any) -> Any:
    z = x * 2
    return z, unrecorded(lambda: z[0]), unrecorded(lambda: z[0])[1:]


def view_of_a_leaf(x: Any, y: Any) -> Any:
    return leaf(y)[0]


def views_of_a_leaf(x: Any, y: Any) -> Any:
    z = leaf(y)
    return z[0], z.t(), z * 2


def twice(x: Any, y: Any) -> Any:
    z = x * 2
    return z, y, z, x, x, 1, 1


RESULTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "computed": (lambda x, y: x * y, "d _ -> r0 | 0 reach=(1,)"),
    "two": (lambda x, y: (x * 2, y * 3), "d _ -> r0 r1 | 0 - reach=(1,)"),
    "an argument": (lambda x, y: x, "d _ -> i0 | "),
    "arguments and a result": (lambda x, y: (y, x * 2, x), "d _ -> i1 r0 i0 | 0 reach=(1,)"),
    "an op that returns its argument": (
        lambda x, y: (x.contiguous(), y.contiguous()),
        "d _ -> i0 i1 | ",
    ),
    "no tensors": (lambda x, y: (1, "a", None, x * 1), "d _ -> 1 'a' None r0 | 0 reach=(1,)"),
    "nested": (lambda x, y: {"a": x * 1, "b": [y, (2,)]}, "d _ -> r0 i1 2 | 0 reach=(1,)"),
    "the same twice": (twice, "d _ -> r0 i1 r0 i0 i0 1 1 | 0 repeated=((2, 0), (4, 3)) reach=(1,)"),
    "views of an argument": (lambda x, y: (x[0], x.t()), "d _ -> i0.select i0.t | "),
    "a view of an argument without history": (
        lambda x, y: y[0].t(),
        "d _ -> i1.select.t-unrecorded | ",
    ),
    "a view of a view of an argument": (
        lambda x, y: (x[0], x[0][1:]),
        "d _ -> i0.select i0.select.slice | ",
    ),
    "items of a view op": (
        lambda x, y: (x.chunk(3, 1)[2], torch.unbind(x)[1]),
        "d _ -> i0.split#2 i0.unbind#1 | ",
    ),
    "a detached argument": (
        lambda x, y: (x.detach(), y.detach()),
        "d _ -> i0.detach-unrecorded i1.detach-unrecorded | ",
    ),
    "a view without grad": (
        lambda x, y: unrecorded(lambda: (x[0], (x * 1)[0])),
        "d _ -> i0.select~-unrecorded r0 | -",
    ),
    "a detached result": (lambda x, y: (x * 2).detach(), "d _ -> r0 | -"),
    "a view of a result": (lambda x, y: (x * 2).t(), "d _ -> r0.t | 0 reach=(1,)"),
    "a view of a result without history": (lambda x, y: (y * 2).t(), "d _ -> r0 | -"),
    "views of a result": (
        lambda x, y: (x * 2).chunk(2, 1),
        "d _ -> r0.split#0 r0.split#1 | 0 reach=(1,)",
    ),
    "a result and its views": (
        views_and_detached,
        "d _ -> r0 r0.select r0.t r0.detach-unrecorded r0.detach.select-unrecorded | 0 reach=(1,)",
    ),
    "views without grad of a result": (
        view_without_grad_of_a_result,
        "d _ -> r0 r0.select~-unrecorded r0.select~.slice | 0 reach=(1,)",
    ),
    "a written detached result": (
        detached_alone,
        "d _ -> r0.select-unrecorded r1 | - 0 reach=(1,) placed=1:r0.detach-unrecorded",
    ),
    "a written detached argument": (
        detached_and_written,
        "d _w*1 -> r0 r0.select i1 | 0 reach=(1,) placed=0:i1.detach-unrecorded",
    ),
    "a view of one": (
        view_of_what_is_detached_and_written,
        "d _w*1 -> r0.select | 0 reach=(1,) placed=0:i1.detach-unrecorded",
    ),
    "a leaf": (lambda x, y: leaf(x), "d _ -> r0+leaf | -"),
    "a view of a leaf": (view_of_a_leaf, "d _ -> r0.select | - begun=(0,)"),
    "views of a leaf and what depends on it": (
        views_of_a_leaf,
        "d _ -> r0.select r0.t r1 | - 0 begun=(0,) reach=(0,)",
    ),
    "what a Function has written to": (
        lambda x, y: WritesAndMarks.apply(x * 1),
        "d _ -> r0 | 0 reach=(1,)",
    ),
    "an argument that a Function has written to": (
        lambda x, y: WritesAndMarks.apply(y),
        "d _w*2 -> i1 | ",
    ),
    "a view by a Function": (
        lambda x, y: Views.apply(x),
        "d _ -> r0 | 0 reach=(1,) placed=0:i0.select-unrecorded",
    ),
    "real parts": (
        lambda x, y: torch.view_as_real(torch.complex(x, y)),
        "d _ -> r0.view_as_real | 0 reach=(1,)",
    ),
    "what is not differentiable": (lambda x, y: (x.argmax(), x > 0), "d _ -> r0 r1 | - -"),
    "a constant": (lambda x, y: torch.ones(2), "d _ -> r0 | -"),
}

OTHER_MEMORY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "of a new tensor": (
        lambda x, y: (unrecorded(lambda: y.set_(torch.zeros(2, 3))), x * 2)[1],
        "d _*1=r0 -> r1 | - 0 reach=(1,)",
    ),
    "of a view of an argument": (
        lambda x, y: (unrecorded(lambda: y.set_(x.detach().view(-1).view(2, 3))), x * 2)[1],
        "d _*1=i0.detach.view~.view~-unrecorded -> r0 | 0 reach=(1,)",
    ),
    "of its own elements": (
        lambda x, y: (unrecorded(lambda: y.set_(y.detach())), x)[1],
        "d _*1=i1-unrecorded -> i0 | ",
    ),
    "of an intermediate and back": (
        lambda x, y: (
            lambda old: (unrecorded(lambda: (y.set_(x.detach() * 2), y.set_(old))), x)[1]
        )(y.detach()),
        "d _*2=i1-unrecorded -> i0 | ",
    ),
}


@pytest.mark.parametrize("name", OTHER_MEMORY)
def test_the_memory_that_an_argument_is_given_is_made_as_a_result(name: str) -> None:
    f, expected = OTHER_MEMORY[name]
    assert boundary_of(f) == expected


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_computed_or_made_of_arguments_and_of_computed_ones(name: str) -> None:
    f, expected = RESULTS[name]
    assert boundary_of(f) == expected


@pytest.mark.parametrize("name", RESULTS)
def test_an_exported_graph_computes_all_of_them(name: str) -> None:
    f, _ = RESULTS[name]
    arrow = boundary_of(f, whole=True).split(" -> ")[1].split(" | ")[0].split()
    assert [o.removesuffix("+leaf") for o in arrow] == [f"r{i}" for i in range(len(arrow))]


SIZED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a view of an argument": (lambda x: x.view(x.shape[1], -1), "d -> i0.view+sized | -"),
    "a view of a result": (
        lambda x: (x * 1).view(x.shape[1], -1),
        "d -> r0.view+sized | 0 - reach=(1,)",
    ),
    "one without sizes": (lambda x: x.t(), "d -> i0.t | "),
    "a size": (lambda x: (x.shape[0], x * x.shape[1]), "d -> r0 r1 | - 0 reach=(1,)"),
}


@pytest.mark.parametrize("name", SIZED)
def test_the_graph_gives_the_numbers_of_views_that_depend_on_sizes(name: str) -> None:
    f, expected = SIZED[name]
    assert boundary_of(f, [True], [torch.ones(3, 4)], dynamic=True) == expected


WITHOUT_GRAD: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "computed": (lambda x, y: (x * 2, x[0], y), "_ _ -> r0 i0.select-unrecorded i1 | -"),
    "a write": (lambda x, y: (x.add_(1), y), "_w*1 _ -> i0 i1 | "),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WITHOUT_GRAD)
def test_results_without_grad_have_no_history(name: str, mode: Any) -> None:
    f, expected = WITHOUT_GRAD[name]
    with mode():
        assert boundary_of(f, [False, False]) == expected


def test_results_that_are_no_inference_tensors_are_named() -> None:
    def f(x: Any, y: Any) -> Any:
        with torch.inference_mode(False):
            z = y * 3
        return x * 2, z, x[0]

    with torch.inference_mode():
        assert (
            boundary_of(f, [False, False])
            == "_ _ -> r0 r1 i0.select-unrecorded | - - other_mode=(1,)"
        )


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def old_view(x: Any, y: Any) -> Any:
    v = y[0]
    y.t_()
    return v


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "an object that holds a result": (
        lambda x, y: Holder(x * 2),
        "returns a Holder that holds tensors",
    ),
    "an object that holds a list of them": (
        lambda x, y: Holder([[x * 2]]),
        "returns a Holder that holds tensors",
    ),
    "a view that is older than a change of geometry": (
        old_view,
        "older than a change of the argument's sizes",
    ),
    "a leaf beside what depends on it": (
        lambda x, y: (lambda z: (z, z * 2))(leaf(x)),
        "returns it or a view of it beside",
    ),
    "a piece of a result that is written": (
        lambda x, y: (lambda z: (z[0].add_(1), z[1]))(torch.unsafe_chunk(x * 1, 2)),
        "shares with a result of unsafe_split",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_results_that_no_graph_gives_are_refused(name: str) -> None:
    f, why = REFUSED[name]
    with pytest.raises(RuntimeError, match=why):
        boundary_of(f)


def test_an_object_without_tensors_is_a_constant() -> None:
    holder = Holder(1)
    assert boundary_of(lambda x, y: holder).startswith("d _ -> <")


def test_a_tensor_that_stands_several_times_is_named_with_the_first() -> None:
    a, b = torch.ones(1), torch.ones(1)
    assert (
        repeated([1, a, b, 1, a, a, b]) == ((4, 1), (5, 1), (6, 2)) and repeated([a, b, 1, 1]) == ()
    )


def test_a_released_tensor_is_named_with_the_one_that_it_replaces() -> None:
    class Value:
        def __init__(self, released_from: Any = None) -> None:
            self.released_from = released_from

    a = Value()
    outs: list[Any] = [None, a, Value(a), Value(Value()), Value()]
    assert released(outs) == ((2, 1),) and released([None, None]) == ()


@pytest.mark.parametrize("number, first", [(0, 0), (1, 1), (2, 3), (-1, 3), (-3, 0)])
def test_the_first_leaf_of_an_item(number: int, first: int) -> None:
    _, spec = torch.utils._pytree.tree_flatten((1, [2, 3], 4))
    assert leaf_of(spec, number) == first


def test_the_only_leaf_of_what_is_no_tuple() -> None:
    assert leaf_of(torch.utils._pytree.tree_flatten(1)[1], 0) == 0
