"""Targets are found by name, built in or by entry point."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest

import gen.targets
from gen.targets import load


class ThirdParty:
    name = "third"
    lacks = frozenset({"aot.export"})

    def forward(self, f: Any) -> Any:
        return f


def registered(*names: Any) -> Any:
    points = [EntryPoint(name, f"{__name__}:ThirdParty", gen.targets.GROUP) for name in names]
    return lambda group, name=None: [point for point in points if name in (None, point.name)]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: Any) -> Any:
    load.cache_clear()
    yield
    load.cache_clear()


def test_torch_is_built_in_and_made_once() -> None:
    assert load("torch").name == "torch"
    assert load("torch") is load("torch")


def test_an_entry_point_is_a_target(monkeypatch: Any) -> None:
    monkeypatch.setattr(gen.targets, "entry_points", registered("third"))
    monkeypatch.setattr(EntryPoint, "load", lambda self: ThirdParty)
    assert load("third").lacks == {"aot.export"}
    assert "third" in gen.targets.names()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"no target 'tourch'; known: .*torch.*matrix\.targets"):
        load("tourch")


def test_a_name_registered_twice_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(gen.targets, "entry_points", registered("third", "third"))
    with pytest.raises(LookupError, match="registered 2 times"):
        load("third")
