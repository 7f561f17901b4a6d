"""Notices that a program sets the state of a random generator while it is traced.

    def f(x):
        torch.manual_seed(3)        # a graph would not do this
        return x + torch.rand(2)

Between two draws the state of a generator stays as it is, unless the program sets it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .provenance import here

_SET = (
    "the program sets the state of a random generator (manual_seed, set_rng_state, fork_rng, set_state), and a graph makes draws alone. Do "
    "that before the call."
)


class RandomStates:
    """The states of the default generator of the CPU, and of ``generators``, after the last draw of a trace.

    ``really``: whether the trace makes draws, rather than abstract values of their results.
    """

    def __init__(self, generators: Sequence[Any], really: bool) -> None:
        self.really = really
        with _disable_current_modes():
            self.before = [(g, g.get_state()) for g in generators]
            self.states: dict[int, tuple[Any, torch.Tensor]] = {}  # by address, since a call of ATen gets another object for a generator
            for g in (torch.default_generator, *generators):
                g.manual_seed(secrets.randbits(63))  # a seed that the program does not set by chance
                self.states[g._cdata] = g, g.get_state()

    def check(self, generator: Any = None) -> None:
        """Raise if the program has set the state of ``generator`` since the last draw."""
        generator = torch.default_generator if generator is None else generator
        if generator._cdata not in self.states:
            with _disable_current_modes():
                self.before.append((generator, generator.get_state()))
        elif not self._unset(generator):
            raise RuntimeError(f"{_SET} It was before this draw.{here()}")

    def _unset(self, generator: Any) -> bool:
        with _disable_current_modes():
            return torch.equal(self.states[generator._cdata][1], generator.get_state())

    def note(self, generator: Any = None) -> None:
        """A draw from ``generator`` has been made."""
        generator = torch.default_generator if generator is None else generator
        with _disable_current_modes():
            if not self.really:
                torch.rand((), generator=generator)
            self.states[generator._cdata] = generator, generator.get_state()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        """When the program has returned: check all generators, and give the closed-over ones the states that they had before the trace."""
        unset = all(self._unset(g) for g, _ in self.states.values())
        for generator, state in self.before:
            generator.set_state(state)
        if kind is None and not unset:
            raise RuntimeError(_SET)
