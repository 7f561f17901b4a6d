"""Find the program for a call of one compiled function, or capture one.

program, call = Programs(recipe).find(around, spec, leaves, entered)
program(call)
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from typing import Protocol

import torch

from ...errors import users_frame
from ...seam.locks import lock_of
from ...torch_private.pytrees import pytree
from .arguments import Call, Kind
from .compiled_program import CompiledProgram
from .guards import Take
from .numbers import Numbers, Pinned, pinned_numbers
from .program_capture import capture
from .recipe import Recipe
from .states_in_turn import StatesInTurn

_inference = torch.is_inference_mode_enabled  # a global name, as two look-ups cost more than one
_WAYS = 4  # how many generated guards a call tries before it looks its program up
# how many programs there are for numbers under conditions, such as the sides of a branch, before
# numbers are constants
_SIDES = 4
# how many of them may be for one value of a number: `if step == warmup` asks for one. A program
# that asks in each call takes the number as a constant instead
_PINS = 2
# how many programs for states of one kind of call stay: each holds the objects of its state alive
_MOST_PROGRAMS = 16


class Finder(Protocol):
    """Find the program for a call, as :class:`Programs` does.

    ``recent``: by the state around a call, the last programs with their guards. A call tries these
    first, without the lock.
    """

    recent: dict[Kind, tuple[tuple[Take, CompiledProgram], ...]]

    def find(
        self, around: Kind, spec: pytree.TreeSpec | None, leaves: Sequence[object], entered: Call
    ) -> tuple[CompiledProgram, Call]:
        """Return the program for a call, captured if there is none, and what it takes."""


class Programs:
    """Hold the programs of one compiled function, at most ``LIMIT`` of them.

    The kind of call that was not looked up for longest makes room.
    """

    # kinds of call; a function with more is called in a new way each time, so none would be reused
    LIMIT = 64

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.recent: dict[Kind, tuple[tuple[Take, CompiledProgram], ...]] = {}
        self._by_key: OrderedDict[Kind, list[CompiledProgram]] = OrderedDict()
        # a thread that needs a program waits for another one that captures it
        self._lock = lock_of(self, "_lock", threading.RLock)
        self._numbers = Numbers()
        self._warned = False
        self._in_turn = StatesInTurn(recipe.limit)
        self._pins: Counter[Kind] = Counter()  # how many programs are for one value of a number

    def find(
        self, around: Kind, spec: pytree.TreeSpec | None, leaves: Sequence[object], entered: Call
    ) -> tuple[CompiledProgram, Call]:
        """Return the program for a call, captured if there is none, and what it takes."""
        tracked = not _inference()
        with self._lock:
            program_and_call = None
            # a capture may need the value of a number, and then the call has another kind
            while program_and_call is None:
                kinds, unknown = self.kinds_of(around, entered)
                program_and_call = self._look_up(around, kinds, entered, tracked)
                if program_and_call is not None:
                    # only now: many programs are called once
                    self._remember(around, leaves, kinds, program_and_call[0], tracked)
                else:
                    program_and_call = self._capture(around, kinds, spec, entered, tracked, unknown)
        return program_and_call

    def known(
        self, around: Kind, leaves: Sequence[object], entered: Call
    ) -> tuple[CompiledProgram, Call] | None:
        """Return the program that :meth:`find` returns, or None if there is no program yet."""
        tracked = not _inference()
        with self._lock:
            kinds, _ = self.kinds_of(around, entered)
            program_and_call = self._look_up(around, kinds, entered, tracked)
            if program_and_call is not None:
                self._remember(around, leaves, kinds, program_and_call[0], tracked)
            return program_and_call

    def kinds_of(self, around: Kind, entered: Call) -> tuple[list[Kind], frozenset[int]]:
        """Return the kinds of the arguments, and which of these are numbers of any value."""
        return self._numbers.opened(around, entered.kinds, self.recipe.before.leading)

    def _remember(
        self,
        around: Kind,
        leaves: Sequence[object],
        kinds: Sequence[Kind],
        program: CompiledProgram,
        tracked: bool,
    ) -> None:
        """Put the program with its generated guard before the others that a call tries."""
        way = program.guard.way(leaves, kinds, tracked) if program.effects.repeats else None
        if way is not None:
            others = [other for other in self.recent.get(around, ()) if other[0] is not way]
            self.recent[around] = ((way, program), *others[: _WAYS - 1])

    def _look_up(
        self, around: Kind, kinds: Sequence[Kind], entered: Call, tracked: bool
    ) -> tuple[CompiledProgram, Call] | None:
        """Return the program for a call of these kinds and what it takes, or None."""
        key = (*around, *kinds)
        for program in self._by_key.get(key, ()):
            call = program.guard.takes(entered, tracked)
            if call is not None:
                self._by_key.move_to_end(key)
                return program, call
        return None

    def _capture(
        self,
        around: Kind,
        kinds: Sequence[Kind],
        spec: pytree.TreeSpec | None,
        entered: Call,
        tracked: bool,
        unknown: frozenset[int],
    ) -> tuple[CompiledProgram, Call] | None:
        """Capture a program for any values of the numbers ``unknown``.

        None if there is no such program. From now on fewer of these numbers are inputs.
        """
        key = (*around, *kinds)
        # what the caller puts first changes from call to call, and is no part of the kind
        of_user = (*around[1:], *kinds[self.recipe.before.leading :])
        self._in_turn.check(of_user, self.recipe.name, self.recipe.entered.values())
        try:
            # a further program for a side of a branch is one too many: numbers become constants
            if unknown and len(self._by_key.get(key, ())) == _SIDES:
                raise Pinned(unknown)
            may_pin = self._pins[key] < _PINS
            program = capture(self.recipe, spec, entered, tracked, unknown=unknown, may_pin=may_pin)
        except Exception as error:
            if not unknown or self.recipe.lost:
                raise
            if not self._fix_numbers(around, entered.kinds, error, unknown):
                raise
            return None
        self._in_turn.add(of_user, program)
        if pinned_numbers(program.joint, unknown):
            self._pins[key] += 1
        # a program with effects that cannot be repeated serves this call alone
        if program.effects.repeats:
            programs = self._by_key.setdefault(key, [])
            programs.append(program)
            del programs[: -max(_MOST_PROGRAMS, self.recipe.limit)]
            self._by_key.move_to_end(key)
        # the program may have changed what it has read, when it was captured just now
        call = program.guard.completed(entered, tracked)
        assert call is not None, "a program takes the call that it was made for"
        self._make_room()
        return program, call

    def _fix_numbers(
        self, around: Kind, kinds: Sequence[Kind], error: Exception, unknown: frozenset[int]
    ) -> bool:
        """Let numbers be constants from now on, after the ``error`` of a capture for any values of
        the numbers ``unknown``. Return whether another capture may do without the error.

        If the error has another reason, that capture raises it, with no unknown number in its
        message.
        """
        positions: Collection[int] = unknown
        if isinstance(error, Pinned):
            positions = error.positions
        before = self.recipe.before
        self._numbers.fix(around, kinds, positions, before.leading)
        before.pinned(positions)
        # the caller takes the numbers that it puts first as constants itself
        return any(position >= before.leading for position in positions)

    def _make_room(self) -> None:
        """Drop the oldest kind of call if there are too many programs, and warn the first time."""
        if sum(map(len, self._by_key.values())) <= self.LIMIT:
            return
        if not self._warned:
            self._warned = True
            warnings.warn(
                (
                    f"{self.recipe.name} has been compiled for more than {self.LIMIT} kinds of "
                    "arguments, so programs are dropped and compiled again. Every shape is a kind, "
                    "and so is every value of an argument that is neither a tensor nor a number, "
                    "or of a number that the program compares or uses as a size. "
                    "Compile with dynamic=True, or pass numbers as tensors."
                ),
                UserWarning,
                stacklevel=users_frame()[1],
            )
        # drop the programs, and their guards too, which would run them still
        key, dropped = self._by_key.popitem(last=False)
        self._pins.pop(key, None)
        for around, ways in list(self.recent.items()):
            self.recent[around] = tuple(way for way in ways if way[1] not in dropped)
            if not self.recent[around]:
                del self.recent[around]
