"""The derivative of a result that nothing uses does not run: zero times an infinite
derivative would be NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, cond, make_fx, map, nop, scan
from runtime.func import grad

POINT = torch.tensor([0.0, 1.0, 4.0])

PROGRAMS: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "cond": (
        lambda x: cond(x.sum() > 0, lambda x: (x * 2, x.log()), lambda x: (x * 3, x.sqrt()), (x,))[
            0
        ],
        [2.0, 2.0, 2.0],
    ),
    "map": (lambda x: map(lambda e: (e * 2, e.log()), x, unroll=False)[0], [2.0, 2.0, 2.0]),
    "scan": (
        lambda x: scan(lambda c, e: (c * 2 + e, e.log()), torch.zeros_like(x[0]), x, unroll=False)[
            0
        ],
        [4.0, 2.0, 1.0],
    ),
}


@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_a_graph_of_a_gradient(name: str, mode: str) -> None:
    f, expected = PROGRAMS[name]
    graph = make_fx(grad(lambda x: f(x).sum()), tracing_mode=mode)(torch.ones(3))
    assert graph(POINT).tolist() == expected


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_a_compiled_function(name: str, dynamic: bool) -> None:
    f, expected = PROGRAMS[name]
    x = runtime.wrap(POINT.clone(), True)
    aot_function(f, nop, dynamic=dynamic)(x).sum().backward()
    assert x.grad.tolist() == expected
