"""How a joint graph says that its calls are differentiated.

Inside: ``runtime.aot.capture.joint_level`` and ``pullback``. These are notes at the nodes of a
graph that only a second derivative reads, in a capture of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime.aot import cond
from runtime.aot.capture.joint import joint_graph
from runtime.aot.capture.origins import ORIGIN
from runtime.aot.capture.pullback import DERIVATIVE, OWN, PACKED, UNSEEN, WRITTEN
from tests.runtime.aot.capture.inside.boundary_text import boundary_of


def without_grad(f: Callable[..., Any], *args: Any) -> Any:
    with torch.no_grad():
        return f(*args)


class Old(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0].exp()


class Doubles(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def packed(x: Any) -> Any:
    with runtime.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        y = x.exp() * 2  # saves the result of exp alone
    return y * x


def row_doubled(x: Any) -> Any:
    z = x * 1
    Doubles.apply(z[0])
    return z.sin()


def turned(x: Any) -> Any:
    z = x * 1
    without_grad(z.t_)
    return z.sin()


def written_through_detach(x: Any) -> Any:
    z = x * 1
    z.detach().mul_(2)
    return z.sin()


def row_written_without_grad(x: Any) -> Any:
    z = x * 1
    without_grad(z[0].mul_, 2)
    return z.sin()


def read_without_grad_after_a_write(x: Any) -> Any:
    z = x * 1
    v = z[0]
    z.mul_(2)
    return without_grad(v.exp) * z


# "op" of the op, "own" a Function's, "-" none, "?" nothing; "!" unseen
LABELS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ops": (lambda x: (x * 2).sin(), "mul=op sin=op"),
    "constants": (
        lambda x: torch.ones(2).sin().add(1).sum() * x,
        "ones=- sin=- add=- sum_1=- mul=op",
    ),
    "a constant base": (lambda x: (2 ** torch.ones(3)) * x, "ones=- pow_1=- mul=op"),
    "a Function in the old style": (lambda x: Old.apply(x) * x, "exp=own mul=op"),
    "a Function that writes": (lambda x: Doubles.apply(x * 1).sin(), "mul=op mul_1=own sin=op"),
    "a Function that writes to a row": (
        row_doubled,
        "mul=op select=op mul_1=- select_scatter=own sin=op",
    ),
    "a branch": (
        lambda x: cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        "sum_1=op gt=? cond=? getitem=op",
    ),
    "saved tensors that are packed": (packed, f"exp=op _to_copy=-!{PACKED} mul=op mul_1=op"),
    "a change of geometry": (turned, f"mul=op t=op!{WRITTEN} sin=op"),
    "a write through detach()": (
        written_through_detach,
        f"mul=op detach=- mul_1=? detach_2=?!{WRITTEN} sin=op",
    ),
    "a write to a row under no_grad": (
        row_written_without_grad,
        f"mul=op select=op mul_1=-!{WRITTEN} select_scatter=-!{WRITTEN} sin=op",
    ),
    "a read under no_grad": (
        read_without_grad_after_a_write,
        "mul=op mul_1=? select_1=? exp=- mul_2=op",
    ),
    "another write under no_grad": (
        lambda x: x * without_grad(torch.zeros(3).add_, 1),
        "zeros=- add=- mul=op",
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_each_call_says_how_it_is_differentiated(name: str) -> None:
    f, expected = LABELS[name]
    short = {None: "?", "none": "-", OWN: "own", "of the op": "op"}
    nodes = joint_graph(f, [torch.ones(2, 3)], [True]).module.graph.nodes
    calls = [n for n in nodes if n.op == "call_function" and ORIGIN not in n.meta]
    found = [
        f"{n.name}={short[n.meta.get(DERIVATIVE)]}"
        + (f"!{n.meta[UNSEEN]}" if UNSEEN in n.meta else "")
        for n in calls
    ]
    assert " ".join(found) == expected


STEPS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a view": (lambda x: without_grad(lambda: x[0]), "d -> i0.select~-unrecorded | "),
    "detach()": (lambda x: without_grad(x.detach), "d -> i0.detach-unrecorded | "),
    "a view of detach()": (
        lambda x: without_grad(lambda: x.detach()[0]),
        "d -> i0.detach.select~-unrecorded | ",
    ),
    "a view of a view without grad": (
        lambda x: without_grad(lambda: x[0][1:]),
        "d -> i0.select~.slice~-unrecorded | ",
    ),
    "a change of geometry": (lambda x: without_grad(x.t_), "d[t]~ -> i0 | "),
    "a write": (lambda x: without_grad(x.mul_, 2), "dw*1 -> i0 | "),
    "a view of a view": (lambda x: without_grad(lambda: x[0])[1:], "d -> i0.select~.slice | "),
    "parts": (
        lambda x: without_grad(lambda: x.unbind()),
        "d -> i0.unbind#0~-unrecorded i0.unbind#1~-unrecorded | ",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_views_without_grad_are_no_part_of_a_history(name: str) -> None:
    f, expected = STEPS[name]
    assert boundary_of(f, [True]) == expected


def test_a_mode_of_the_program_sees_its_calls_with_and_without_a_history() -> None:
    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func._schema.name.split("::")[1])
            return func(*args, **kwargs or {})

    def f(x: Any, y: Any) -> Any:
        with Seeing():  # type: ignore[no-untyped-call]
            return y.sin() * x

    joint_graph(f, [torch.ones(2), torch.ones(2)], [True, False])
    assert seen == ["sin", "mul"]


@pytest.mark.parametrize(
    "act, why",
    [
        (lambda x: setattr(x, "data", x * 2), "assigns to .data of a tensor"),
        (lambda x: setattr(x * 2, "data", x), "assigns to .data of a tensor"),
        (lambda x: (x * 2).retain_grad(), r"Tensor\.retain_grad\(\) inside of a function"),
    ],
)
def test_what_a_graph_cannot_do_to_a_value_is_refused(act: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        boundary_of(act, [True])


def test_a_mode_around_a_capture_sees_what_it_computes() -> None:
    seen: list[str] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func._schema.name.split("::")[1])
            return func(*args, **kwargs or {})

    with Seeing():  # type: ignore[no-untyped-call]
        joint_graph(lambda x, y: (y.sin(), x.cos()), [torch.ones(2), torch.ones(2)], [True, False])
    assert [name for name in seen if name in ("sin", "cos")][:2] == ["sin", "cos"]


def test_a_view_of_what_becomes_a_leaf_later_is_refused_unless_it_has_no_gradient() -> None:
    def f(x: Any, use: Callable[[Any], Any]) -> Any:
        z = x.detach() * 2
        v = z[0]
        z.requires_grad_()
        return use(v), z

    with pytest.raises(RuntimeError, match="Take the view after that"):
        boundary_of(lambda x: f(x, lambda v: v * 2), [True])
    assert boundary_of(lambda x: f(x, lambda v: v.shape[0]), [True]) == "d -> 3 r0+leaf | -"
