"""A custom Function that returns a view of an input: in forward mode its tangent must be that view
of the same input's tangent."""

from __future__ import annotations

from typing import Any

import pytest

import runtime
import runtime.autograd.forward_ad as fw
from runtime.autograd import Function


def viewing(jvp: Any) -> Any:
    """A Function of two tensors that returns the first row of the second."""

    class Row(Function):
        @staticmethod
        def forward(a: Any, b: Any) -> Any:
            return b[0]

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    Row.jvp = staticmethod(jvp)  # type: ignore[method-assign]
    return Row


def tangent(fn: Any, base: bool = False) -> Any:
    """Of ``fn(a, b)``; ``base``: where ``b`` is a view itself."""
    a, b, t, u = (runtime.tensor([[float(i), float(i + 1)], [7.0, 8.0]]) for i in range(4))
    with fw.dual_level():
        first, second = fw.make_dual(a, t), fw.make_dual(b, u)
        out = fn.apply(first, second.t() if base else second)
        return fw.unpack_dual(out).tangent.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("base", [False, True])
def test_a_view_of_the_second_input_has_the_view_of_the_second_tangent(base: bool) -> None:
    assert tangent(viewing(lambda ctx, t, u: u[0]), base) == ([3.0, 7.0] if base else [3.0, 4.0])


@pytest.mark.parametrize(
    ("jvp", "message"),
    [
        (lambda ctx, t, u: u[0] * 1, "jvp is not returning a view"),
        (lambda ctx, t, u: t[0], "jvp is not returning a view of the given grad input"),
    ],
)
def test_any_other_tangent_is_an_error(jvp: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        tangent(viewing(jvp))


def test_what_is_written_to_may_have_no_tangent_before() -> None:
    class Added(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, buffer: Any) -> Any:
            ctx.mark_dirty(buffer)
            return buffer.add_(x)

        @staticmethod
        def jvp(ctx: Any, t: Any, none: Any) -> Any:
            return t * 1

    x, buffer = runtime.tensor([1.0, 2.0]), runtime.tensor([0.0, 0.0])
    with fw.dual_level():
        out = Added.apply(fw.make_dual(x, runtime.tensor([5.0, 6.0])), buffer)
        assert fw.unpack_dual(out).tangent.tolist() == [5.0, 6.0]  # type: ignore[union-attr]
    assert out is buffer and buffer.tolist() == [1.0, 2.0]
