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
def test_arguments_that_share_memory_count_each_change_once(
    name: str, requires_grad: bool
) -> None:
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
