"""A call advances the versions of its arguments as eager mode does, also where only a view of one
gets other sizes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit, wrap

PROGRAMS: dict[str, Callable[[Any], object]] = {
    "write": lambda a: a.mul_(2),
    "write to a view": lambda a: a[1:].mul_(2),
    "write to nothing": lambda a: a[:0].mul_(2),
    "sizes of a view": lambda a: a[1:].t_(),
    "sizes of a detached view": lambda a: a.detach().unsqueeze_(0),
    "sizes of two views": lambda a: (a[0].unsqueeze_(0), a.t().squeeze_()),
    "sizes of a view, and a write": lambda a: (a[1:].t_(), a.add_(1)),
    "sizes of the argument and a view": lambda a: (a.unsqueeze_(0), a[0].t_(), a.squeeze_(0)),
    "sizes of the argument, and a write": lambda a: (a.t_(), a.add_(1), a.t_()),
    "none": lambda a: a.t(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_versions_advance_as_in_eager_mode(name: str) -> None:
    def program(a: Tensor) -> Tensor:
        PROGRAMS[name](a)
        return a * 2

    f = jit(program)
    eager, jitted = torch.ones(2, 3), torch.ones(2, 3)
    for _ in range(3):
        program(eager)
        f(jitted)
        assert jitted._version == eager._version
        assert jitted.shape == eager.shape


SHARED: dict[str, Callable[[Any, Any], object]] = {
    "sizes of one, and a write to the other": lambda a, b: (a.t_(), b.zero_()),
    "sizes of the one that is written": lambda a, b: (b.unsqueeze_(0), b.zero_()),
    "sizes of both, and a write": lambda a, b: (a.t_(), b.unsqueeze_(0), b.zero_(), a.t_()),
    "sizes of both, and two writes": lambda a, b: (a.t_(), a.mul_(2), b.t_(), b.mul_(3)),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_arguments_that_share_memory_count_each_change_once(name: str, requires_grad: bool) -> None:
    def program(a: Any, b: Any) -> Any:
        SHARED[name](a, b)
        return a + 1

    def versions(f: Callable[[Any, Any], object]) -> list[object]:
        base = wrap(torch.arange(12.0).reshape(3, 4), requires_grad=requires_grad) * 1
        a, b = base[:2], base[1:]
        f(a, b)
        return [base._version, a._version, b._version, a.shape, b.shape]

    f = jit(program)
    for _ in range(3):
        assert versions(f) == versions(program)


WRITES: dict[str, Callable[[Any, Any], object]] = {
    "a sum": lambda a, b: a.add_(b),
    "a product": lambda a, b: a.mul_(b),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_row_beside_the_one_that_is_written_is_saved_for_the_gradient(name: str) -> None:
    def program(a: Any, b: Any) -> Any:
        WRITES[name](a, b)
        return a * b

    def gradient(f: Callable[[Any, Any], Any]) -> Any:
        w = wrap(torch.arange(8.0).reshape(2, 4), requires_grad=True)
        rows = w * 1
        f(rows[0], rows[1]).sum().backward()
        return w.grad.tolist()

    f = jit(program)
    for _ in range(3):
        assert gradient(f) == gradient(program)


def test_a_write_of_the_caller_to_what_is_saved_is_still_an_error() -> None:
    f = jit(lambda a, b: (a.add_(b), a * b)[1])
    w = wrap(torch.arange(8.0).reshape(2, 4), requires_grad=True)
    rows = w * 1
    result = f(rows[0], rows[1])
    rows.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def _written(times: int) -> Tensor:
    x = torch.ones(3)
    for _ in range(times):
        x.fill_(1)
    return x


def test_an_argument_has_the_version_of_before_the_call() -> None:
    def program(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        before = x._version
        x.add_(1)
        return x * 1, (before, x._version, x[1:]._version, x.detach()._version, (x * 2)._version)

    compiled = jit(program)
    for times in (0, 1, 0, 2, 2, 1, 0):
        found, right = compiled(_written(times)), program(_written(times))
        assert found[1] == right[1]
        assert torch.equal(found[0], right[0])


def test_arguments_that_share_memory_share_a_version() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[int, ...]:
        before = x._version, y._version
        x.add_(1)
        return *before, x._version, y._version

    def given(kind: str) -> tuple[Tensor, Tensor]:
        x = _written(2)
        others = {"apart": _written(1), "itself": x, "a view": x[1:], "detached": x.detach()}
        return x, others[kind]

    compiled = jit(program)
    for kind in ("apart", "a view", "itself", "detached", "apart"):
        assert compiled(*given(kind)) == program(*given(kind)), kind
