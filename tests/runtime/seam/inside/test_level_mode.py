"""Modes that pass a call on without the dispatcher.

Inside: ``EnteringMode`` and ``call_below`` of ``runtime.seam.level_mode``. They are there for
speed: a call that the dispatcher passes on has the same result."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from runtime.extend import Level, LevelMode, Value
from runtime.seam.level_mode import EnteringMode, call_below


class NotedValue(Value):
    """A tensor whose calls are noted."""


class Noting(Level):
    what = "noting"
    values = NotedValue

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self.calls.append(func._schema.name)
        return super().call(func, args, kwargs)


class Passing(EnteringMode):
    """Passes each call on. ``stacks``: the modes that are on around a call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stacks: list[list[Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.stacks.append(_get_current_dispatch_mode_stack())
        try:
            return call_below(func, types, args, kwargs or {})
        finally:
            assert _get_current_dispatch_mode_stack() == self.stacks[-1]


class Tagged(torch.Tensor):
    """A user's class that handles its own calls."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return torch.tensor([42.0])


def test_the_level_of_the_next_mode_handles_the_call() -> None:
    level, passing = Noting(), Passing()
    x = level.wrap(torch.tensor([1.0, 2.0]))
    with LevelMode(level), passing:
        y = x.sin()
        made = torch.zeros(2)
    assert level.calls[:2] == ["aten::sin", "aten::zeros"]
    assert type(y) is NotedValue and type(made) is NotedValue
    assert y._inner.equal(torch.tensor([1.0, 2.0]).sin())


def test_an_inner_level_handles_the_call_first() -> None:
    outer, inner, passing = Noting(), Noting(), Passing()
    x = inner.wrap(outer.wrap(torch.ones(2)))
    with LevelMode(outer), passing:
        y = x.cos()
    assert inner.calls == outer.calls == ["aten::cos"]
    assert y._level is inner and y._inner._level is outer


def test_an_error_leaves_the_modes_as_they_were() -> None:
    level, passing = Noting(), Passing()
    x = level.wrap(torch.ones(2))
    with LevelMode(level), passing:
        before = _get_current_dispatch_mode_stack()
        with pytest.raises(RuntimeError, match="shape"):
            x.view(3)
        assert _get_current_dispatch_mode_stack() == before


def test_without_a_mode_below_the_call_runs() -> None:
    with Passing():
        assert torch.ones(2).neg().tolist() == [-1.0, -1.0]


def test_a_level_that_leaves_classes_alone_leaves_them_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Noting, "leaves_classes", True)
    level = Noting()
    t: Any = torch.ones(2).as_subclass(Tagged)
    with LevelMode(level), Passing():
        answer = t.neg()
    assert level.lowered(answer).tolist() == [42.0] and "aten::neg" not in level.calls


def test_a_tensor_of_such_a_class_that_is_exchanged_for_a_value_is_none_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Noting, "leaves_classes", True)
    level = Noting()
    value = level.wrap(torch.ones(2))

    class Exchanging(Passing):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_dispatch__(func, types, (value,), kwargs)

    t: Any = torch.zeros(2).as_subclass(Tagged)
    with LevelMode(level), Exchanging():
        answer = t.neg()
    assert level.calls == ["aten::neg"] and level.lowered(answer).tolist() == [-1.0, -1.0]
