"""Refuse a function of which no program serves the next call, since each changes what it finds.

    def f(x):
        history.append(len(history))
        return x * len(history)         # each call reads what the one before has left

Each call of ``f`` needs a program of its own. After ``limit`` of them in turn that is an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...trace.provenance import begins_at, happened_at
from ..python_state.program_code import Code
from ..python_state.summary import line_naming
from .arguments import Kind
from .compiled_program import CompiledProgram

LIMIT = 8  # programs in turn, each for a state that no later call had; then a call is refused
_MOST_PLACES = 4  # places that an error names


class StatesInTurn:
    """Count, by kind of call, the last programs in turn of which none serves the next call.

    ``limit``: how many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._programs: dict[Kind, list[CompiledProgram]] = {}

    def add(self, key: Kind, program: CompiledProgram) -> None:
        """Note a program that has just been captured for a call of this kind."""
        if program.moves_on:
            self._programs.setdefault(key, []).append(program)
        else:
            # calls have come to a state that stays, so the count begins again
            self._programs.pop(key, None)

    def check(self, key: Kind, name: str, code: Iterable[Code]) -> None:
        """Raise ``RuntimeError`` if there are ``limit`` programs in turn already.

        ``name``: of the function. ``code``: what its captures have run.
        """
        programs = self._programs.get(key, [])
        if len(programs) < self.limit:
            return
        # name the places that the last program reads and that have changed
        last = programs[-1]
        moved = last.guard.moved()
        where = list(dict.fromkeys(what for what, _, _ in moved)) or [last.effects.what]
        named = where[:_MOST_PLACES]
        if len(where) > _MOST_PLACES:
            named.append(f"{len(where) - _MOST_PLACES} more")
        # the best line is one that names the place, else the one of the assignment
        line = line_naming(where[0], code)
        at = begins_at(last.effects.line)
        if line is not None:
            at = happened_at(line)
        raise RuntimeError(
            f"{name} has been captured {self.limit} times in turn, since each call changes what "
            f"the next one may read: {', '.join(named)}. Hold it in a tensor, "
            "change it outside of the function, name the object in ignore=[…], or let jit capture "
            f"more programs by limit=.{at}"
        )
