"""``set_`` of an argument: the caller's tensor gets other memory. Expected values are those of
torch's eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import runtime
from runtime import tensor
from runtime.aot import aot_export_module
from tests.runtime.aot.capture.boundary_helpers import compiled


def of_another_argument(a: Any, b: Any) -> Any:
    a.set_(b)
    return a * b


def of_a_view_of_another_argument(a: Any, b: Any) -> Any:
    a.set_(b.flip(0).view(-1))
    return a * 3


def of_a_written_argument(a: Any, b: Any) -> Any:
    b.mul_(2)
    a.set_(b)
    return a * 3


def of_a_new_tensor(a: Any, b: Any) -> Any:
    a.set_(b * 2)
    return a * 3, a


def of_another_and_its_own_again(a: Any, b: Any) -> Any:
    old = a.view(-1)
    a.set_(b)
    a.set_(old)
    return a + b


def of_another_after_a_view(a: Any, b: Any) -> Any:
    old = a.view(-1)
    with torch.no_grad():
        a.set_(b)
    return old, a * 2


def unseen(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` with its writes under no_grad."""

    def program(a: Any, b: Any) -> Any:
        with torch.no_grad():
            out = f(a, b)
        return (out, a * 2) if a.requires_grad else out

    return program


def seen(f: Any, a: Any, b: Any, leaves: tuple[Any, Any], grad: Any) -> list[Any]:
    """Results, arguments, versions, which share memory, and gradients."""
    out = pytree.tree_leaves(f(a, b))
    found = [t.detach().tolist() for t in (*out, a, b)] + [
        a._version,
        b._version,
        a.data_ptr() == b.data_ptr(),
    ]
    found += [t.requires_grad for t in (*out, a, b)]
    sums = [t.sum() for t in out if t.requires_grad]
    if sums:
        grads = grad(sums, leaves, [torch.ones(()) for _ in sums], allow_unused=True)
        found += [None if g is None else g.tolist() for g in grads]
    return found


PROGRAMS = [
    *(
        of_another_argument,
        of_a_view_of_another_argument,
        of_a_written_argument,
        of_a_new_tensor,
        of_another_and_its_own_again,
    ),
    of_another_after_a_view,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_argument_gets_the_memory(f: Any, requires_grad: bool, dynamic: bool) -> None:
    def run(make: Any, program: Any, grad: Any) -> list[Any]:
        leaves = (
            make([3.0, 4.0], requires_grad=requires_grad),
            make([5.0, 6.0], requires_grad=requires_grad),
        )
        a, b = (t * 1 for t in leaves)
        return seen(program, a, b, leaves, grad)

    program = unseen(f) if requires_grad and f is not of_another_after_a_view else f
    expected = run(torch.tensor, program, torch.autograd.grad)
    assert run(tensor, compiled(program, dynamic=dynamic), runtime.autograd.grad) == expected


def test_a_closed_over_buffer_gets_the_memory() -> None:
    buffer = torch.zeros(2)

    def f(x: Any) -> Any:
        buffer.set_(x * 2)
        return buffer + 1

    g = compiled(f)
    for n in (1.0, 2.0):
        assert g(torch.full((2,), n)).tolist() == [2 * n + 1] * 2 and buffer.tolist() == [2 * n] * 2


def test_a_write_to_the_memory_that_an_argument_had_is_refused() -> None:
    def f(a: Any, b: Any) -> Any:
        old = a.view(-1)
        a.set_(b)
        old.mul_(2)
        return a + b

    with pytest.raises(RuntimeError, match="cannot mutate tensors with frozen storage"):
        compiled(f)(torch.ones(2), torch.ones(2))


def test_other_mutations_of_such_an_argument_are_refused() -> None:
    def written_before(a: Any, b: Any) -> Any:
        a.mul_(2)
        a.set_(b)

    def written_after(a: Any, b: Any) -> Any:
        a.set_(b)
        a.mul_(2)

    def of_another_size(a: Any, b: Any) -> Any:
        a.set_(b[:1])

    for f in (written_before, written_after, of_another_size):
        a, b = torch.ones(2), torch.ones(2)
        with pytest.raises(
            AssertionError, match="the input has other mutations that we cannot carry out"
        ):
            compiled(f)(a, b)
        assert a.tolist() == b.tolist() == [1.0, 1.0]


def test_two_arguments_do_not_exchange_their_memory() -> None:
    def f(a: Any, b: Any) -> Any:
        old = a.view(-1)
        a.set_(b)
        b.set_(old)

    with pytest.raises(AssertionError, match="the memory of another one that changes its own"):
        compiled(f)(torch.ones(2), torch.zeros(2))


def test_the_memory_of_a_result_is_refused() -> None:
    def f(a: Any, b: Any) -> Any:
        c = b * 2
        a.set_(c)
        return c

    with pytest.raises(AssertionError, match="Return the argument instead"):
        compiled(f)(torch.ones(2), torch.zeros(2))


def test_a_leaf_of_torchs_own_keeps_its_memory() -> None:
    def f(a: Any, b: Any) -> Any:
        with torch.no_grad():
            a.set_(b)
        return a * 2

    with pytest.raises(
        RuntimeError,
        match="a leaf of torch's own autograd, whose memory this package does not replace.*"
        r"It happened at .*test_other_memory\.py:\d+: a\.set_\(b\)",
    ):
        compiled(f)(torch.ones(2, requires_grad=True), torch.zeros(2))


def test_a_local_tensor_may_get_other_memory() -> None:
    def f(x: Any) -> Any:
        t = torch.zeros(2)
        old = t.view(-1)
        t.set_(x)
        old.add_(1)
        t.mul_(3)
        return t + old

    x, y = torch.ones(2), torch.ones(2)
    assert compiled(f)(x).equal(f(y)) and x.equal(y)


def test_an_exported_graph_does_not_replace_memory() -> None:
    class Sets(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            a.set_(b)
            return (a + b,)

    with pytest.raises(RuntimeError, match="set_"):
        aot_export_module(Sets(), (torch.ones(2), torch.ones(2)), trace_joint=False)
