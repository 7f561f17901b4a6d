"""The replay runs what ``plans.txt`` says. A change there is one of time or memory:
``python -m tests.runtime.aot.compilers.inside.plans``.

Inside: the code of ``runtime.aot.compilers.replay``. Its text has the order of calls and what is
freed when, which no result of a program tells."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import fx

from runtime import aot, jit

from .plans import PROGRAMS, SECTIONS, section, stored

STORED = stored()
OF_LAYER_NORM = ("norms of any size", "gradient of norms of any size")


@cache
def layer_norm_has_symbols() -> bool:
    """Return whether torch has symbols for the sizes of a layer norm that a program has fixed.
    Torch 2.15 has numbers, and a plan for numbers does more."""
    found: list[Any] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        found.extend(n.meta["val"] for n in module.graph.nodes if n.name == "getitem")
        return aot.nop(module, inputs)

    f, shapes = PROGRAMS["norms"]
    jit(f, dynamic=True, compiler=keep)(*map(torch.ones, shapes))
    return not all(isinstance(size, int) for size in found[0].shape)


def test_there_is_a_plan_of_each_program() -> None:
    assert list(STORED) == list(SECTIONS)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_replay_runs_what_is_planned(title: str) -> None:
    if title in OF_LAYER_NORM and not layer_norm_has_symbols():
        pytest.skip("this torch knows the sizes of a layer norm as numbers: another plan is right")
    assert section(title) == STORED[title]
