"""Random numbers that a program draws in Python, by ``random`` or by NumPy.

    x * random.random()         # a graph keeps the number

They are numbers of the capture. So a warning tells of them.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from .reads import same


class PythonDraws:
    """The states of Python's random generators before a program runs: of ``random``, of NumPy, and
    of those in ``found``."""

    def __init__(self, found: Iterable[Any]) -> None:
        generators = {id(x): x for x in (random, np.random, *found)}.values()
        self._before = [(x, state) for x in generators if (state := _state_of(x)) is not None]

    def restore(self) -> None:
        """Give back the states to those from which the program has drawn."""
        for x, state in self._changed():
            if isinstance(x, np.random.Generator):
                x.bit_generator.state = state
            elif x is random or isinstance(x, random.Random):
                x.setstate(state)
            else:
                x.set_state(state)

    def tell(self) -> None:
        """Warn of those from which the program has drawn."""
        names = [
            getattr(
                x, "__name__", f"a {type(x).__name__} of {type(x).__module__.partition('.')[0]}"
            )
            for x, _ in self._changed()
        ]
        if names:
            warnings.warn(
                (
                    f"the program draws from {', '.join(names)} when it is captured. "
                    "Its graph keeps these numbers, and a later call draws none. "
                    "Draw outside of it and pass the number, or draw by torch.rand."
                ),
                UserWarning,
                stacklevel=2,
            )

    def _changed(self) -> list[tuple[Any, Any]]:
        return [(x, state) for x, state in self._before if not same(state, _state_of(x))]


def _state_of(x: Any) -> Any:
    """The state of a random generator of Python. None for another object, and for a source
    that has no state."""
    if isinstance(x, np.random.Generator):
        return x.bit_generator.state
    if x is random or (isinstance(x, random.Random) and not isinstance(x, random.SystemRandom)):
        return x.getstate()
    if x is np.random or isinstance(x, np.random.RandomState):
        return x.get_state()
    return None
