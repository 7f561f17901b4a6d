"""Notices that a program sets the state of a random generator while it is traced.

    def f(x):
        torch.manual_seed(3)        # a graph would not do this, a call of the compiled program does
        return x + torch.rand(2)

Between two draws the state of a generator stays as it is, unless the program sets it. A call can set a seed before the draws of the graph,
and afterwards give back the state from before the call or set a seed. What a program does in between is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .provenance import here

_SET = (
    "the program sets the state of a random generator (manual_seed, set_rng_state, fork_rng, set_state) between two draws, or to a state "
    "that is not that of a seed below 2**40, and a graph makes draws alone. Do that before the call."
)
_BOUND = 1 << 40  # torch.seed() and initial_seed() of a trace give larger ones, which are others in the next call


@dataclass(frozen=True)
class Seeding:
    """What a call does with the state of ``generator``. ``first``: the seed that it sets before the draws of the graph. ``restores``:
    whether it gives back the state from before the call afterwards. ``last``: the seed that it sets afterwards."""

    generator: Any
    first: int | None
    restores: bool
    last: int | None


@contextmanager
def seeded(seedings: Sequence[Seeding]) -> Iterator[None]:
    """Run the draws of a graph as the program does."""
    before = [s.generator.get_state() if s.restores else None for s in seedings]
    for s in seedings:
        if s.first is not None:
            s.generator.manual_seed(s.first)
    try:
        yield
    finally:
        for s, state in zip(seedings, before, strict=True):
            if state is not None:
                s.generator.set_state(state)
            elif s.last is not None:
                s.generator.manual_seed(s.last)


def _seed_of(generator: Any) -> int | None:
    """The seed that ``generator`` was just given; None if it is in another state, or if draws may be made elsewhere than on the CPU."""
    seed: int = generator.initial_seed()
    if seed >= _BOUND or generator.device.type != "cpu" or torch.accelerator.is_available():
        return None
    return seed if torch.equal(torch.Generator().manual_seed(seed).get_state(), generator.get_state()) else None


class RandomStates:
    """The states of the default generator of the CPU, and of ``generators``, after the last draw of a trace.

    ``really``: whether the trace makes draws, rather than abstract values of their results. ``seedings``: what a call does with their
    states beside the draws. Known when the program has returned.
    """

    seedings: tuple[Seeding, ...] = ()

    def __init__(self, generators: Sequence[Any], really: bool) -> None:
        self.really = really
        self.before = [(g, g.get_state()) for g in generators]
        self.states: dict[int, tuple[Any, torch.Tensor]] = {}  # by address, since a call of ATen gets another object for a generator
        for g in (torch.default_generator, *generators):
            g.manual_seed(_BOUND | secrets.randbits(62))  # a seed that the program does not set by chance
            self.states[g._cdata] = g, g.get_state()
        self.entered = {cdata: state for cdata, (_, state) in self.states.items()}
        self.drawn: set[int] = set()
        self.first: dict[int, int] = {}  # by address of a generator: the seed that it had at the first draw

    def check(self, generator: Any = None) -> None:
        """Raise if the program has set the state of ``generator`` since the last draw."""
        generator = torch.default_generator if generator is None else generator
        if generator._cdata not in self.states:
            self.before.append((generator, generator.get_state()))
        elif not self._unset(generator):
            with _disable_current_modes():
                seed = None if generator._cdata in self.drawn else _seed_of(generator)
            if seed is None:
                raise RuntimeError(f"{_SET} It was before this draw.{here()}")
            self.first[generator._cdata] = seed

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
            self.drawn.add(generator._cdata)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        """When the program has returned: check all generators, and give the closed-over ones the states that they had before the trace."""
        try:
            if kind is None:
                self.seedings = tuple(filter(None, map(self._seeding, self.states)))
        finally:
            for generator, state in self.before:
                generator.set_state(state)

    def _seeding(self, cdata: int) -> Seeding | None:
        """What a call does with the state of the generator at this address, if it does anything beside draws."""
        generator, _ = self.states[cdata]
        first = self.first.get(cdata)
        if self._unset(generator):
            return None if first is None else Seeding(generator, first, False, None)
        with _disable_current_modes():
            if cdata in self.entered and torch.equal(self.entered[cdata], generator.get_state()):
                return Seeding(generator, first, True, None)
            last = _seed_of(generator)
        if last is None:
            raise RuntimeError(_SET)
        return Seeding(generator, first, False, last)
