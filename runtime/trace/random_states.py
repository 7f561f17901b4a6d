"""Notices that a program sets the state of a random generator while it is traced.

    def f(x):
        torch.manual_seed(3)        # a graph would not do this, a call of the compiled program does
        return x + torch.rand(2)

Between two draws the state of a generator stays as it is, unless the program sets it. A call can
set a seed before the draws of the graph, and afterwards give back the state from before the call or
set a seed. What a program does in between is refused.

A generator that the program makes has the same seed in each call:

    def f(x):
        return x + torch.rand(2, generator=(g := torch.Generator().manual_seed(3)))
        # g is freed when f returns

While it is traced, the generators from outside have seeds that nobody knows. So what the
program sets is seen, and so is a state that it takes from one of them, which would be that of
the trace for ever.
"""

from __future__ import annotations

import gc
import secrets
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from ..seam.ambient import Ambient
from ..torch_private.mode_stacks import without_modes
from .provenance import PACKAGE, here

_SET = (
    "the program sets the state of a random generator (manual_seed, set_rng_state, fork_rng, "
    "set_state) between two draws, or to a state that is not that of a seed below 2**40, "
    "and a graph makes draws alone. Do that before the call. If it does not, another thread draws "
    "from the generator during the first call. Give that thread a generator of its own."
)
_TAKEN = (
    "the program sets the state of a random generator to one that it takes from "
    "another state (clone_state, get_state, manual_seed(torch.initial_seed() + 1)), "
    "and a graph would keep that of its trace. Do that before the call."
)
_READ = (
    "the program uses the {} of a random generator, and a graph would keep that of its trace. "
    "Do that outside of it."
)
_UNFOUND = (
    "the program draws from a generator that was just seeded, and that is in no variable of a "
    "function that runs. So it is not known whether each call makes it. Keep it in a variable."
)
_UNSEEDED = (
    "the program makes a generator, and its state is that of no seed below 2**40. "
    "A graph would go on drawing from it, where each call makes another one. "
    "Give it a seed by manual_seed, or make it before the call."
)
_KEPT = (
    "the program draws from a generator that was just seeded, that is none of those "
    "which it finds outside by a name, and that is still there when it has returned. "
    "A graph would go on drawing from it, where each call may make or seed it. Make it before "
    "the call, and let the program find it as an argument, a variable or an attribute."
)
_UNWATCHED = (
    "the program draws from a generator that it does not find outside by a name. It may make it, "
    "and each call would make another one. That is seen by a weak reference to the generator, and "
    "the installed torch has none. Make it before the call, and let the program find it as an "
    "argument, a variable or an attribute, or make it of a subclass of torch.Generator."
)
# torch.seed() and initial_seed() of a trace give larger ones, which are others in the next call
_BOUND = 1 << 40
_DEFAULT_SEED = torch.Generator().initial_seed()


@dataclass(frozen=True)
class Seeding:
    """The effect of a call on the state of ``generator``."""

    generator: Any
    # The seed that the call sets before the draws of the graph.
    first: int | None
    # Whether the call restores the earlier state afterwards.
    restores: bool
    # The seed that the call sets afterwards.
    last: int | None
    # The user's line of the first draw after `first`, as the end of an error message.
    where: str = field(default="", compare=False)


@contextmanager
def seeded(seedings: Sequence[Seeding]) -> Iterator[None]:
    """Run the draws of a graph as the program does."""
    before = [seeding.generator.get_state() if seeding.restores else None for seeding in seedings]
    for seeding in seedings:
        if seeding.first is not None:
            seeding.generator.manual_seed(seeding.first)
    try:
        yield
    finally:
        for seeding, state in zip(seedings, before, strict=True):
            if state is not None:
                seeding.generator.set_state(state)
            elif seeding.last is not None:
                seeding.generator.manual_seed(seeding.last)


def _seed_of(generator: torch.Generator) -> int | None:
    """Return the seed that ``generator`` has just got; None if it is in another state, or if draws
    may happen elsewhere than on the CPU. ``torch.manual_seed`` seeds the default generators of all
    devices."""
    seed: int = generator.initial_seed()
    elsewhere = generator.device.type != "cpu" or (
        _is_default(generator) and torch.accelerator.is_available()
    )
    if elsewhere or (seed >= _BOUND and seed != _DEFAULT_SEED):
        return None
    if not _is_fresh(generator):
        return None
    return seed


def _is_default(generator: Any) -> bool:
    default: Any = torch.default_generator
    return bool(generator._cdata == default._cdata)


def _is_fresh(generator: torch.Generator) -> bool:
    """Return whether ``generator`` is in the state of its seed."""
    return torch.equal(
        torch.Generator(generator.device).manual_seed(generator.initial_seed()).get_state(),
        generator.get_state(),
    )


def _seed_in(state: torch.Tensor) -> int | None:
    """Return the seed of the generator that has been in ``state``. None for a tensor that is no
    state."""
    generator = torch.Generator()
    try:
        generator.set_state(state)
    except (RuntimeError, TypeError):
        return None
    return generator.initial_seed()


class _OwnGenerator(torch.Generator):
    """A generator of this package. Torch's own ones take no weak references in torch 2.12, those of
    a class of Python do."""


# by address; of functions of this package
_OWN: weakref.WeakValueDictionary[int, torch.Generator] = weakref.WeakValueDictionary()


def own_generator(seed: int) -> torch.Generator:
    """Return a new generator for a function of this package that draws from it. A trace finds it,
    as it finds those in variables of users. ``seed``: of 40 bits at most, as a graph can set."""
    generator = _OwnGenerator()
    generator.manual_seed(seed)
    _OWN[generator._cdata] = generator  # type: ignore[attr-defined]
    return generator


def _variable_for(generator: Any) -> object:
    """Return the object that running functions have for ``generator``: a variable, or an element or
    attribute of one. None if there is none. Of this package's functions only those of
    :func:`own_generator` count.

    ``generator`` is the object that a call of ATen gets, which is another one.
    """
    frame: FrameType | None = sys._getframe(1)
    address = generator._cdata
    if address in _OWN:
        return _OWN[address]
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
            continue
        # of the globals those that the code names, since a module may have thousands
        names = map(frame.f_globals.get, frame.f_code.co_names)
        for value in (*frame.f_locals.values(), *names):
            for part in (value, *_parts_of(value)):
                if not isinstance(part, torch.Generator) or part is generator:
                    continue
                if part._cdata == address:  # type: ignore[attr-defined]
                    return part
        frame = frame.f_back
    return None


def _parts_of(value: Any) -> Iterable[object]:
    """Return the elements of a container, or the attributes of any other object."""
    if type(value) is dict:
        return value.values()
    if type(value) in (list, tuple):
        elements: Iterable[Any] = value
        return elements
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return attributes.values()


def _reference_to(generator: object) -> weakref.ref[object]:
    """Return a weak reference to the program's object for a generator. Torch 2.12 has none to its
    own."""
    try:
        return weakref.ref(generator)
    except TypeError:
        raise RuntimeError(f"{_UNWATCHED}{here()}") from None


@dataclass(frozen=True)
class _Met:
    """A generator that a trace first sees at a draw."""

    # The program's object for it.
    own: weakref.ref[Any]
    # See :func:`_seed_of`.
    seed: int | None
    # Whether it was in the state of its seed. Then the program may have created or seeded it.
    fresh: bool
    # The line of the draw.
    where: str


class _Around(Ambient):
    """The states of the innermost trace of this thread that watches generators."""

    states: RandomStates | None = None


_AROUND = _Around()


def refuse_states(values: Iterable[object], where: str = "") -> None:
    """Raise if the program that is traced keeps the state or the seed of a random generator: one of
    ``values`` is that of the trace. ``where``: the user's line, if none runs now."""
    states = _AROUND.states
    if states is None:
        return
    for value in values:
        if isinstance(value, torch.Tensor):
            states.refuse_state(value, where)
        elif type(value) is int:
            states.refuse_seed(value, where)


class UndoneDraws:
    """The generators that a backward pass draws from after its program has returned: hooks may. At
    the end they have the states of before."""

    def __init__(self) -> None:
        # by address, since a call of ATen gets another object for a generator
        self.before: dict[int, tuple[Any, torch.Tensor]] = {}

    @contextmanager
    def drawing(self, generators: Sequence[Any]) -> Iterator[None]:
        """Run a call that may draw from ``generators``."""
        for generator in generators:
            self.before.setdefault(generator._cdata, (generator, generator.get_state()))
        yield

    def __enter__(self) -> UndoneDraws:
        return self

    def __exit__(self, *_: object) -> None:
        for generator, state in self.before.values():
            generator.set_state(state)


class RandomStates:
    """The states of the default generator of the CPU, and of ``generators``, after the last
    draw of a trace.

    ``seedings``: what a call does with their states apart from the draws. It is set when the
    program has returned.
    """

    seedings: tuple[Seeding, ...] = ()

    def __init__(self, generators: Sequence[Any]) -> None:
        self.around = _AROUND.states
        watched: list[torch.Generator] = []  # those of a trace around this one
        if self.around is not None:
            watched = [generator for generator, _ in self.around.states.values()]
        by_address = {generator._cdata: generator for generator in (*watched, *generators)}
        generators = [generator for generator in by_address.values() if not _is_default(generator)]
        # not the default generator: whoever traces gives that its state back
        self.before = [(generator, generator.get_state()) for generator in generators]
        # by address of a generator: the seed that it has while the program is traced
        self.secrets: dict[int, int] = {}
        # by address, since a call of ATen gets another object for a generator
        self.states: dict[int, tuple[Any, torch.Tensor]] = {}
        for generator in (torch.default_generator, *generators):
            # a seed that the program does not set by chance
            generator.manual_seed(_BOUND | secrets.randbits(62))
            self.states[generator._cdata] = generator, generator.get_state()
            self.secrets[generator._cdata] = generator.initial_seed()
        self.entered = {cdata: state for cdata, (_, state) in self.states.items()}
        self.drawn: set[int] = set()
        # by address of a generator: the seed that it had at the first draw
        self.first: dict[int, int] = {}
        self.where: dict[int, str] = {}  # the user's line of that draw
        self.met: dict[int, _Met] = {}  # by address

    @contextmanager
    def drawing(self, generators: Sequence[Any]) -> Iterator[None]:
        """Run a call that may draw from ``generators``. Raise if the program has set the state of
        one since the last draw."""
        for generator in generators:
            self._check(generator)
        before = [generator.get_state() for generator in generators]
        yield
        for generator, state in zip(generators, before, strict=True):
            self._note(generator, state)

    def _check(self, generator: Any) -> None:
        """Raise if the program has set the state of ``generator`` since the last draw."""
        if generator._cdata not in self.states:
            self.before.append((generator, generator.get_state()))
            self._meet(generator)
        elif not self._is_as_after_last_draw(generator):
            # a graph can set a seed before all of its draws, but not between two of them
            seed = None
            if generator._cdata not in self.drawn:
                with without_modes():
                    seed = _seed_of(generator)
            if self._follows_from_trace(generator.initial_seed(), generator._cdata):
                raise RuntimeError(f"{_TAKEN} It was before this draw.{here()}")
            if seed is None:
                raise RuntimeError(f"{_SET} It was before this draw.{here()}")
            self.first[generator._cdata], self.where[generator._cdata] = seed, here()

    def refuse_state(self, tensor: object, where: str = "") -> None:
        """Raise if ``tensor``, which the graph has from outside, is the state of a
        generator of the trace."""
        if type(tensor) is torch.Tensor and tensor.dtype is torch.uint8 and tensor.dim() == 1:
            with without_modes():
                seed = _seed_in(tensor)
            if seed is not None and self._follows_from_trace(seed):
                raise RuntimeError(f"{_READ.format('state')}{here() or where}")

    def refuse_seed(self, number: int, where: str = "") -> None:
        """Raise if ``number``, which the graph would keep, is the seed of a generator of the trace:
        ``x * torch.initial_seed()``."""
        if number >= _BOUND and self._follows_from_trace(number):
            raise RuntimeError(f"{_READ.format('seed')}{here() or where}")

    def _follows_from_trace(self, seed: int, cdata: int | None = None) -> bool:
        """Return whether ``seed``, of the generator at this address, follows from that of a
        generator of the trace: it is that of another one, a few more, or its last bits."""
        # a generator that still has its own seed has taken it from nobody
        others = (
            secret for address, secret in self.secrets.items() if (address, secret) != (cdata, seed)
        )
        return any((seed - secret) % (1 << 31) < 1 << 10 for secret in others)

    def _meet(self, generator: Any) -> None:
        """Note a ``generator`` that is first seen at a draw."""
        with without_modes():
            if self._follows_from_trace(generator.initial_seed()):
                raise RuntimeError(f"{_TAKEN}{here()}")
            seed, fresh = _seed_of(generator), _is_fresh(generator)
        own = _variable_for(generator)
        if own is not None:
            self.met[generator._cdata] = _Met(_reference_to(own), seed, fresh, here())
        # else it was in use before, so that the program has neither made nor seeded it
        elif fresh:
            raise RuntimeError(f"{_UNFOUND}{here()}")

    def _find_inner_generators(self) -> None:
        """Note the seeds of generators that the program has created. It has returned. One that is
        freed now had its seed in this call, and has it in each."""
        if any(met.fresh and met.own() is not None for met in self.met.values()):
            gc.collect()  # such a generator may be part of a cycle
        for cdata, met in self.met.items():
            if met.own() is not None:
                if met.fresh:
                    raise RuntimeError(f"{_KEPT}{met.where}")
            elif met.seed is None:
                raise RuntimeError(f"{_UNSEEDED}{met.where}")
            else:
                self.first[cdata] = met.seed

    def _is_as_after_last_draw(self, generator: Any) -> bool:
        with without_modes():
            return torch.equal(self.states[generator._cdata][1], generator.get_state())

    def _note(self, generator: Any, before: torch.Tensor) -> None:
        """Note the state of ``generator`` after a call that may draw from it. ``before``: its state
        before the call."""
        with without_modes():
            # Only abstract values were drawn, or the branch that was taken draws nothing. A call of
            # the graph may draw. So the state goes on here too, and differs from what the program
            # may set afterwards.
            if torch.equal(before, generator.get_state()):
                torch.rand((), generator=generator)
            self.states[generator._cdata] = generator, generator.get_state()
            self.drawn.add(generator._cdata)

    def __enter__(self) -> None:
        _AROUND.states = self

    def __exit__(self, kind: object, *_: object) -> None:
        """Check all generators when the program has returned, and give the closed-over ones the
        states that they had before the trace."""
        _AROUND.states = self.around
        try:
            if kind is None:
                self._find_inner_generators()
                self.seedings = tuple(filter(None, map(self._seeding, self.states)))
        finally:
            for generator, state in self.before:
                generator.set_state(state)

    def _seeding(self, cdata: int) -> Seeding | None:
        """Return what a call does with the state of the generator at this address, if it does
        anything but draw."""
        generator, _ = self.states[cdata]
        first, where = self.first.get(cdata), self.where.get(cdata, "")
        if self._is_as_after_last_draw(generator):
            if first is None:
                return None
            return Seeding(generator, first, False, None, where)
        with without_modes():
            if cdata in self.entered and torch.equal(self.entered[cdata], generator.get_state()):
                return Seeding(generator, first, True, None, where)
            last = _seed_of(generator)
        if self._follows_from_trace(generator.initial_seed(), cdata):
            raise RuntimeError(_TAKEN)
        if last is None:
            raise RuntimeError(_SET)
        return Seeding(generator, first, False, last, where)
