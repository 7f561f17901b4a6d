"""A tensor of Python's state whose sizes a program changes in place says the new ones from then
on, in the program and after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runtime import dropin, jit

ASKED: dict[str, Callable[[Any], object]] = {
    "dim": lambda v: v.dim(),
    "shape": lambda v: tuple(v.shape),
    "size": lambda v: tuple(v.size()),
    "stride": lambda v: v.stride(),
    "storage_offset": lambda v: v.storage_offset(),
    "ndim": lambda v: v.ndim,
    "len": len,
    "numel": lambda v: v.numel(),
    "is_contiguous": lambda v: v.is_contiguous(),
    "_version": lambda v: v._version,
}
CHANGES: dict[str, Callable[[Any], object]] = {
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "t_": lambda v: v.t_(),
    "transpose_ of the result": lambda v: v.unsqueeze_(0).transpose_(0, 2),
    "unsqueeze_ and squeeze_": lambda v: (v.unsqueeze_(1), v.squeeze_(1)),
    "as_strided_": lambda v: v.as_strided_((2,), (1,), 1),
}
PLACES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "plain": nullcontext,
    "under the drop-in": dropin.installed,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_program_is_told_the_new_sizes(change: str, place: str) -> None:
    def answers(compiled: Callable[[Any], Any]) -> list[object]:
        held = SimpleNamespace(v=torch.ones(2, 3))

        def program(x: Any) -> Any:
            CHANGES[change](held.v)
            return x * 1, [ask(held.v) for ask in ASKED.values()]

        step = compiled(program)
        first = step(torch.ones(1))[1]
        if change == "t_":  # which the other changes cannot do a second time
            return [first, step(torch.ones(1))[1], tuple(held.v.shape)]
        return [first, tuple(held.v.shape)]

    with PLACES[place]():
        assert answers(jit) == answers(lambda f: f)


def test_a_branch_on_the_new_sizes_takes_the_side_of_eager_mode() -> None:
    held = SimpleNamespace(v=torch.arange(3.0))

    @jit
    def doubled_if_a_row(x: Any) -> Any:
        held.v.unsqueeze_(0)
        return x * 2 if held.v.dim() == 2 else x

    assert doubled_if_a_row(torch.ones(1)).tolist() == [2.0]
    assert held.v.tolist() == [[0.0, 1.0, 2.0]]


def test_a_capture_that_is_refused_leaves_the_sizes() -> None:
    held = SimpleNamespace(v=torch.ones(2, 3))

    @jit
    def asks_for_elements(x: Any) -> Any:
        held.v.t_()
        return x if x.tolist()[0] > 0 else held.v

    with pytest.raises(RuntimeError, match="asks for the elements"):
        asks_for_elements(torch.ones(1, requires_grad=True))
    assert held.v.shape == (2, 3) and held.v._version == 0
