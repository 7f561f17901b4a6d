"""What a program does to its arguments, as a text; see `boundary_text`.

Inside: ``runtime.aot.capture.boundary`` and ``calls.shared_arguments``. Arguments look the same
after a call whichever of several writes and views the record has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot.calls.arguments import enter
from runtime.aot.calls.shared_arguments import refuse_untangled, with_autograd_base, with_bases
from runtime.aot.capture.aliasing import overlapping, sharing
from runtime.aot.capture.joint import joint_graph
from tests.runtime.aot.capture.inside.boundary_text import boundary_of, text


def then(*made: Any) -> Any:
    """The last of ``made``, which were made in this order."""
    return made[-1]


def without_grad(f: Callable[..., Any], *args: Any) -> Any:
    with torch.no_grad():
        return f(*args)


class WritesInBackward(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.y = y
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        ctx.y.add_(1)
        return g * 2, None


# each with the boundary where the second argument does not require grad, and where it does
DONE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "nothing": (lambda x, y: x * y, "d _ -> r0 | 0 reach=(1,)", "d d -> r0 | 0 reach=(1, 1)"),
    "a write": (
        lambda x, y: then(y.add_(1), x * 1),
        "d _w*1 -> r0 | 0 reach=(1,)",
        "d dwt0*1 -> r0 | 1 reach=(2, 1)",
    ),
    "two writes": (
        lambda x, y: then(y.add_(1), y.mul_(x)),
        "d _wt0*2 -> i1 |  reach=(1,)",
        "d dwt0*2 -> i1 |  reach=(1, 1)",
    ),
    "a write to a view": (
        lambda x, y: then(y[0].mul_(x[0]), x),
        "d _wt0*1 -> i0 |  reach=(1,)",
        "d dwt0*1 -> i0 |  reach=(1, 1)",
    ),
    "a write under no_grad": (
        lambda x, y: then(without_grad(y.add_, 1), x * y),
        "d _w*1 -> r0 | 0 reach=(1,)",
        "d dw*1 -> r0 | 0 reach=(1, 1)",
    ),
    "a write to detach()": (
        lambda x, y: then(y.detach().add_(x.detach()), x * y),
        "d _w*1 -> r0 | 0 reach=(1,)",
        "d dw*1 -> r0 | 0 reach=(1, 1)",
    ),
    "a write to .data": (
        lambda x, y: then(y.data.add_(1), x * y),
        "d _w -> r0 | 0 reach=(1,)",
        "d dw -> r0 | 0 reach=(1, 1)",
    ),
    "a change of geometry": (
        lambda x, y: then(y.t_(), y * 1),
        "d _[t] -> r0 | -",
        "d d[t] -> r0 | 0 reach=(0, 1)",
    ),
    "two changes": (
        lambda x, y: then(y.unsqueeze_(0), y.transpose_(0, 1), y),
        "d _[unsqueeze,transpose] -> i1 | ",
        "d d[unsqueeze,transpose] -> i1 | ",
    ),
    "a change under no_grad": (
        lambda x, y: then(without_grad(y.t_), x),
        "d _[t] -> i0 | ",
        "d d[t]~ -> i0 | ",
    ),
    "a change and a write": (
        lambda x, y: then(y.t_(), y.add_(1), x),
        "d _w*1[t] -> i0 | ",
        "d dwt0*1[t] -> i0 |  reach=(0, 1)",
    ),
    "a write under no_grad after a change under it": (
        lambda x, y: then(without_grad(lambda: y.t_().add_(1)), x),
        "d _w*1[t] -> i0 | ",
        "d dw*1[t]~ -> i0 | ",
    ),
    "requires_grad_()": (
        lambda x, y: then(y.requires_grad_(), x * y),
        "d db -> r0 | 0 reach=(1, 1)",
        "d d -> r0 | 0 reach=(1, 1)",
    ),
    "a write before requires_grad_()": (
        lambda x, y: then(y.add_(1), y.requires_grad_(), x * y) if not y.requires_grad else x * y,
        "d dw*1b -> r0 | 0 reach=(1, 1)",
        "d d -> r0 | 0 reach=(1, 1)",
    ),
    "hooks": (
        lambda x, y: then(
            x.register_hook(lambda g: g * 2), x.register_hook(lambda g: g * 3), x * y
        ),
        "dh2 _ -> r0 | 0 reach=(1,)",
        "dh2 d -> r0 | 0 reach=(1, 1)",
    ),
    "other memory": (
        lambda x, y: then(without_grad(y.set_, torch.ones(2, 3)), x),
        "d _*1=r0 -> i0 | -",
        "d d*1=r0 -> i0 | -",
    ),
    "the memory of another one": (
        lambda x, y: then(without_grad(y.set_, x.detach()), x * 2),
        "d _*1=i0.detach-unrecorded -> r0 | 0 reach=(1,)",
        "d d*1=i0.detach-unrecorded -> r0 | 0 reach=(1, 0)",
    ),
    "its own memory": (
        lambda x, y: then(without_grad(y.set_, y.detach()), x),
        "d _*1=i1-unrecorded -> i0 | ",
        "d d*1=i1-unrecorded -> i0 | ",
    ),
    "a write by the backward pass": (
        lambda x, y: WritesInBackward.apply(x, y),
        "d _ -> r0 | 0 backward_written=(1,) reach=(1,)",
        "d d -> r0 | 0 backward_written=(1,) reach=(1, 1)",
    ),
    "a hook inside": (
        lambda x, y: (lambda z: then(z.register_hook(lambda g: g * 2), z.sin()))(x * 2),
        "d _ -> r0 | 0 reach=(1,) once=it registers a hook on a tensor",
        "d d -> r0 | 0 reach=(1, 0) once=it registers a hook on a tensor",
    ),
    "a write through overlapping elements": (
        lambda x, y: then(y.unfold(1, 2, 1).add_(1), x),
        (
            "d _w*1 -> i0 |  once=it writes through a view that shows an element "
            "several times, as unfold does"
        ),
        (
            "d dwt0*1 -> i0 |  reach=(0, 1) once=it writes through a view that shows an element "
            "several times, as unfold does"
        ),
    ),
}


@pytest.mark.parametrize("name", DONE)
def test_what_a_program_does_to_an_argument(name: str) -> None:
    f, without, with_grad = DONE[name]
    assert (boundary_of(f), boundary_of(f, (True, True))) == (without, with_grad)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "detach_()": (lambda x, y: then(x.detach_(), y), "detaches an argument in place"),
    "a hook that holds a value": (
        lambda x, y: (lambda z: then(x.register_hook(lambda g: g * z), x * z))(y * 2),
        "registers a hook on an argument",
    ),
    "a hook of grad_fn": (
        lambda x, y: then(x.grad_fn.register_hook(lambda *g: None), x * y),
        "registers a hook on an argument",
    ),
    "set_() after a write": (
        lambda x, y: without_grad(lambda: then(y.add_(1), y.set_(torch.ones(2, 3)), x)),
        "a write, or a change",
    ),
    "a write after set_()": (
        lambda x, y: without_grad(lambda: then(y.set_(torch.ones(2, 3)), y.add_(1), x)),
        "a write, or a change",
    ),
    "set_() after a change": (
        lambda x, y: without_grad(lambda: then(y.t_(), y.set_(torch.ones(3, 2)), x)),
        "a write, or a change",
    ),
    "set_() to other sizes": (
        lambda x, y: without_grad(lambda: then(y.set_(torch.ones(4)), x)),
        "other sizes",
    ),
    "a write to the memory before set_()": (
        lambda x, y: without_grad(
            lambda: (lambda v: then(y.set_(torch.ones(2, 3)), v.add_(1), x))(y[0])
        ),
        "frozen storage",
    ),
    "requires_grad_() after set_()": (
        lambda x, y: then(without_grad(y.set_, torch.ones(2, 3)), y.requires_grad_(), x * y),
        "another history",
    ),
    "detach_() after set_()": (
        lambda x, y: then(without_grad(y.set_, torch.ones(2, 3)), y.detach_(), x),
        "another history",
    ),
    "detach_() of what requires grad after set_()": (
        lambda x, y: then(without_grad(x.set_, torch.ones(2, 3)), x.detach_(), y),
        "another history",
    ),
    "set_() to a result": (
        lambda x, y: (lambda z: then(without_grad(y.set_, z.detach()), z))(x.detach() * 2),
        "the memory of a result by set_",
    ),
    "set_() in a ring": (
        lambda x, y: without_grad(
            lambda: (lambda z: then(y.set_(x.detach()), x.set_(z), 1))(y.detach())
        ),
        "changes its own",
    ),
    "a write by the backward to a result": (
        lambda x, y: (lambda z: (WritesInBackward.apply(x, z), z))(y * 1),
        "backward pass writes to a result",
    ),
    "a view before requires_grad_()": (
        lambda x, y: (lambda z: (lambda v: then(z.requires_grad_(), v * 2))(z[0]))(x.detach() * 2),
        "Take the view after that",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_call_cannot_do_to_an_argument_is_refused(name: str) -> None:
    f, why = REFUSED[name]
    with pytest.raises((RuntimeError, AssertionError), match=why):
        boundary_of(f)


def test_a_value_of_another_class_is_not_written_to_an_argument() -> None:
    given = [torch.ones(2), TwoTensor(torch.ones(2), torch.ones(2))]
    with pytest.raises(
        RuntimeError, match=r"writes a TwoTensor.* to a tensor that is a plain tensor"
    ):
        boundary_of(lambda x, y: x.copy_(y), (False, False), given)
    assert boundary_of(lambda x, y: then(y.add_(x), x), (False, False), given).startswith(
        "_ _w*1 -> i0 | "
    )


@pytest.mark.parametrize("given", [2, 2.5, True, "a", None, (1,)])
def test_what_is_no_tensor_is_as_it_is(given: Any) -> None:
    seen: list[Any] = []

    def f(x: Any, k: Any) -> Any:
        seen.append(k)
        return x

    assert boundary_of(f, [True, False], [torch.ones(1), given]) == "d _ -> i0 | "
    assert seen == [given] and type(seen[0]) is type(given)


def shared(f: Callable[..., Any], tensors: Sequence[Any]) -> str:
    call = enter(tensors, True, False)
    assert call is not None
    found = sharing(call.plain)
    every = [*found, *overlapping(call.plain, found)]
    refuse_untangled(every, call, len(tensors))
    groups = [with_autograd_base(group, call) for group in every]
    based, n = with_bases(call, groups), len(tensors)
    assert based is not None
    return text(
        joint_graph(
            f, based.plain[:n], based.wanted[:n], groups=groups, bases=based.plain[n:]
        ).boundary
    )


def plain() -> Any:
    return torch.arange(6.0)


def recorded() -> Any:
    return runtime.wrap(torch.arange(6.0), requires_grad=True) * 1


def first_written(a: Any, *rest: Any) -> Any:
    a.mul_(2)
    return rest[-1] * 1


def last_written(a: Any, *rest: Any) -> Any:
    rest[-1].mul_(2)
    return a, rest[-1]


def last_reshaped(a: Any, *rest: Any) -> Any:
    rest[-1].unsqueeze_(0)
    return a * 1


OVERLAPS = " once=it writes through a view that shows an element several times, as unfold does"
APART = (
    " once=it writes to memory that an argument which requires grad shares with one that has "
    "no part in its history"
)
SHARED: dict[str, tuple[Callable[[], Sequence[Any]], tuple[str, str, str]]] = {
    "parts that overlap": (
        lambda: (lambda t: [t[:4], t[2:]])(plain()),
        ("_o _o _w*1 -> r0 | -", "_o _o _w*1 -> i0 i1 | ", "_ _[unsqueeze] _ -> r0 | -"),
    ),
    "parts of one with a history": (
        lambda: (lambda t: [t[:4], t[2:]])(recorded()),
        (
            "_o _o dwt0*1 -> r0 | 1 reach=(3,)",
            "_o _o dwt0*1 -> i0 i1 |  reach=(1,)",
            "_ _[unsqueeze] d -> r0 | 0 reach=(1,)",
        ),
    ),
    "one twice": (
        lambda: (lambda t: [t, t])(plain()),
        ("_w*1 _ -> r0 | -", "_w*1 _ -> i0 i0 |  repeated=((1, 0),)", "_[unsqueeze] _ -> r0 | -"),
    ),
    "one with a history twice": (
        lambda: (lambda t: [t, t])(recorded()),
        (
            "dwt0*1 d -> r0 | 1 reach=(3, 0)",
            "dwt0*1 d -> i0 i0 |  repeated=((1, 0),) reach=(1, 0)",
            "d[unsqueeze] d -> r0 | 0 reach=(1, 0)",
        ),
    ),
    "one twice, and a part of it": (
        lambda: (lambda t: [t, t, t[1:]])(recorded()),
        (
            "_o _ _o dwt0*1 -> r0 | 1 reach=(3,)",
            "_o _ _o dwt0*1 -> i0 i2 |  reach=(1,)",
            "_ _ _[unsqueeze] d -> r0 | 0 reach=(1,)",
        ),
    ),
    "one and its detach()": (
        lambda: (lambda t: [t, t.detach()])(recorded()),
        (
            "dwt0*1 _w _o -> r0 | - reach=(1,)" + APART,
            "dw _w*1 _o -> i0 i1 | " + APART,
            "d _[unsqueeze] _o -> r0 | 0 reach=(1,)" + APART,
        ),
    ),
    "one and parts of its detach()": (
        lambda: (lambda t: [t, t.detach()[1:], t.detach()[:2]])(recorded()),
        (
            "dwt0*1 _w _w _o -> r0 | - reach=(1,)" + APART,
            "dw _w _w*1 _o -> i0 i2 | " + APART,
            "d _ _[unsqueeze] _o -> r0 | 0 reach=(1,)" + APART,
        ),
    ),
    "one that shows elements twice, and another tensor": (
        lambda: [plain().unfold(0, 2, 1), torch.ones(2)],
        ("_o _ _w*1 -> r0 | -" + OVERLAPS, "_ _w*1 _ -> i0 i1 | ", "_ _[unsqueeze] _ -> r0 | -"),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_a_program_does_to_arguments_that_share_memory(name: str) -> None:
    make, expected = SHARED[name]
    assert (
        tuple(shared(f, make()) for f in (first_written, last_written, last_reshaped)) == expected
    )


SHARED_REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Any]], str]] = {
    "requires_grad_()": (
        lambda a, b: then(a.requires_grad_(), a * 1),
        lambda: (lambda t: [t[:4], t[2:]])(plain()),
        r"requires_grad_\(\) on argument 0, which shares memory",
    ),
    "a write with a history": (
        lambda a, b, c: then(b.mul_(a.sum()), c),
        lambda: (lambda t, d: [t, d[1:], d[:2]])(*(lambda t: (t, t.detach()))(recorded()[:5])),
        "writes to argument 1 what requires grad",
    ),
    "a hook": (
        lambda a, b: then(a.register_hook(lambda g: g), b.mul_(2)),
        lambda: (lambda t: [t[:4], t[2:]])(recorded()),
        "registers a hook on an argument",
    ),
}


@pytest.mark.parametrize("name", SHARED_REFUSED)
def test_what_a_call_cannot_do_to_arguments_that_share_memory_is_refused(name: str) -> None:
    f, make, why = SHARED_REFUSED[name]
    with pytest.raises(RuntimeError, match=why):
        shared(f, make())


def test_a_capture_does_not_count_as_a_write_to_what_the_program_closes_over() -> None:
    w, v = torch.ones(2), runtime.wrap(torch.ones(2))
    before = w._version, v._version
    assert (
        boundary_of(lambda x: then(w.add_(1), w.mul_(x), v.add_(1), x), [False], [torch.ones(2)])
        == "_ _w*2 _w*1 -> i0 | "
    )
    assert (w._version, v._version) == before and w.tolist() == v.tolist() == [1.0, 1.0]
