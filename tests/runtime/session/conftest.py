"""What the tests of the session's ways share."""

from __future__ import annotations

from typing import Any

import pytest

import runtime


def names_of_calls(monkeypatch: pytest.MonkeyPatch, kind: Any) -> list[str]:
    """A list that grows by the name of each op that the dispatcher passes to a class."""
    names: list[str] = []
    real: Any = kind.__torch_dispatch__

    def watched(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(func._schema.name.removeprefix("aten::"))
        return real(func, types, args, kwargs)

    monkeypatch.setattr(kind, "__torch_dispatch__", classmethod(watched))
    return names


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ops that arrive at the session op by op."""
    return names_of_calls(monkeypatch, runtime.Tensor)
