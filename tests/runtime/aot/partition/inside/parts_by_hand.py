"""The parts of joint graphs that tests make by hand.

Inside: ``runtime.aot.partition.halves.Parts``. A partition gives two modules; the sets of calls
from which they are made are known to the parts alone."""

from __future__ import annotations

from typing import Any

from runtime.aot.partition.halves import Parts
from tests.runtime.aot.partition.by_hand import Joint


def parts_of(
    joint: Joint,
    results: list[Any],
    gradients: list[Any],
    number: int | None = None,
    inputs: Any = None,
) -> Parts:
    """The parts of a graph of these results and gradients. ``number``: of its results, if another
    one is said."""
    module = joint.module(results, gradients)
    return Parts(module, len(results) if number is None else number, inputs)
