"""Ops of a library that differ in what their records say of their cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.library import Library

from runtime.extend import pointwise, random, register
from runtime.rules import RECORDS

NAMESPACE = "recomputation_tests"


runs: list[str] = []


def doubled(name: str, x: torch.Tensor) -> torch.Tensor:
    runs.append(name)
    return x * 2


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """Ops that double their argument and write down that they ran: `plain` has no record, the
    others one by their name."""
    made = Library(NAMESPACE, "FRAGMENT")
    for name in ("plain", "unsaid", "low", "high", "family", "draw"):
        made.define(f"{name}(Tensor x) -> Tensor")
        made.impl(name, partial(doubled, name), "CompositeExplicitAutograd")
    before = set(RECORDS)
    rule: dict[str, Any] = {"vjp": {"x": lambda g: g * 2}, "batch": lambda f, n, b, a, k: f(a[0])}
    register(f"{NAMESPACE}::unsaid", **rule)
    register(f"{NAMESPACE}::low", cost="low", **rule)
    register(f"{NAMESPACE}::high", cost="high", **rule)
    pointwise(f"{NAMESPACE}::family", x=lambda: 2)
    random(f"{NAMESPACE}::draw", cost="low")
    yield getattr(torch.ops, NAMESPACE)
    for func in set(RECORDS) - before:
        del RECORDS[func]
    made._destroy()
