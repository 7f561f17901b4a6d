"""The programs of a jitted function: one for the first sizes, one for any sizes from the second on,
and why each was captured."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..aot.calls.arguments import Call, Kind, kind_of
from ..aot.calls.compiled_program import CompiledProgram
from ..aot.calls.identities import Outside
from ..aot.calls.known_programs import Programs
from ..aot.calls.recipe import Recipe
from ..aot.python_state.reads import Facts
from ..aot.python_state.summary import StateSummary
from ..aot.python_state.values import MISSING
from ..seam.locks import lock_of
from ..torch_private.pytrees import pytree
from ..trace.error_lines import raised_by_package
from .asked_attributes import refuse_subclasses


class Break(Exception):
    """A call cannot be captured."""


class Raised(Exception):
    """The program raises an error of its own while it is captured, which is the cause of this
    one."""


@dataclass
class Captured:
    """One program. ``dynamic``: whether it is for any sizes. ``before``: the gradients and values
    of Python's state that it takes. ``arguments``: of the call that it was captured for.
    ``why``: what that call has that no call before it had."""

    program: CompiledProgram
    dynamic: bool
    before: tuple[str, ...]
    arguments: tuple[str, ...]
    why: str
    around: Kind = field(repr=False)

    @property
    def state(self) -> StateSummary:
        """What the program compares, takes and changes in Python's state."""
        return self.program.summary


class Captures:
    """Finds the programs of one function, and captures them. ``sizes``: the first sizes of each
    kind of call are constants, and another program is for any others. ``breaks``: what cannot be
    captured raises :class:`Break`, and is not tried again."""

    def __init__(self, recipe: Recipe, sizes: bool, breaks: bool) -> None:
        self.fixed = Programs(recipe)
        self.any = Programs(dataclasses.replace(recipe, dynamic=True)) if sizes else None
        self.recent = self.fixed.recent
        if self.any is not None:
            self.any.recent = self.recent
        self.breaks = breaks
        # as many as there are programs: what is told holds no others
        self.captured: deque[Captured] = deque(maxlen=Programs.LIMIT)
        self.refused: deque[str] = deque(maxlen=Programs.LIMIT)
        # the kinds of calls, without sizes, that have a program: the first one's kind with sizes
        self._seen: dict[Kind, Kind] = {}
        self._bound: set[Kind] = set()  # those whose programs have no graph for any sizes
        # texts: an exception would hold the arguments of its call
        self._broken: dict[Kind, str] = {}
        self._lock = lock_of(self, "_lock", threading.RLock)

    def find(
        self, around: Kind, spec: pytree.TreeSpec | None, given: Sequence[object], entered: Call
    ) -> tuple[CompiledProgram, Call]:
        """Find a program, as :meth:`Programs.find`."""
        with self._lock:
            known = self.fixed.known(around, given, entered)
            if known is not None or self.any is None:
                return known or self._captured(self.fixed, around, spec, given, entered)
            of_any_size = dataclasses.replace(
                entered,
                kinds=[
                    _without_sizes(value, kind)
                    for value, kind in zip(entered.plain, entered.kinds, strict=True)
                ],
            )
            # without the values of numbers that change, or a counter would make each call the first
            opened, numbers = self.any.kinds_of(around, of_any_size)
            kind = (*around, *opened)
            kinds = list(entered.kinds)
            for index in numbers:
                kinds[index] = opened[index]
            with_sizes = (*around, *kinds)
            first = self._seen.get(kind)
            # The first call of its kind, one of a kind that has no graph for any sizes, or one with
            # the sizes of the first: no size has changed, and something else has.
            if first is None or kind in self._bound or first == with_sizes:
                found = self._captured(self.fixed, around, spec, given, entered)
                self._seen.setdefault(kind, with_sizes)
                return found
            try:
                return self._captured(self.any, around, spec, given, of_any_size)
            except Exception:  # a program of these sizes alone says what is wrong, if anything is
                if self.any.recipe.lost:
                    raise
                self.refused.pop()  # nothing is refused, if the program of these sizes is captured
                self._bound.add(kind)
                return self._captured(self.fixed, around, spec, given, entered)

    def _captured(
        self,
        programs: Programs,
        around: Kind,
        spec: pytree.TreeSpec | None,
        given: Sequence[object],
        entered: Call,
    ) -> tuple[CompiledProgram, Call]:
        """Find or capture a program among ``programs``, and note a new one with its reason."""
        leading = programs.recipe.before.leading
        before = tuple(map(described, entered.plain[1:leading]))
        arguments = tuple(map(described, entered.plain[leading:]))
        # before the capture, which may leave changes that are not its reasons
        why = self._why(around, before, arguments)
        kind = (*around, *entered.kinds)
        if kind in self._broken:
            raise Break(self._broken[kind])
        programs.recipe.lost.clear()
        try:
            refuse_subclasses(given)
            program, call = programs.find(around, spec, given, entered)
        except Exception as error:
            self.refused.append(f"({', '.join(arguments)}): {error}")
            if programs.recipe.lost:
                raise
            if _is_of_program(error, programs.recipe):
                raise Raised from error
            if not self.breaks:
                raise
            self._broken[kind] = str(error)
            raise Break(str(error)) from error
        except KeyboardInterrupt:
            raise
        # such as SystemExit, or what has the capture begin once more
        except BaseException as error:
            if _is_of_program(error, programs.recipe) and not programs.recipe.lost:
                raise Raised from error
            raise
        if all(known.program is not program for known in self.captured):
            dynamic = programs.recipe.dynamic
            self.captured.append(Captured(program, dynamic, before, arguments, why, around))
        return program, call

    def _why(self, around: Kind, before: tuple[str, ...], arguments: tuple[str, ...]) -> str:
        """Return what a call has that the call of the last program had not, in words."""
        if not self.captured:
            return "the first call"
        last = self.captured[-1]
        moved = last.program.guard.moved()
        changed = [
            f"{what} is {described(now)}, was {described(was)}" for what, was, now in moved[:_TOLD]
        ]
        changed += [f"{len(moved) - _TOLD} more"] * (len(moved) > _TOLD)
        if len(arguments) != len(last.arguments):
            changed.append(f"{len(arguments)} arguments, were {len(last.arguments)}")
        else:
            pairs = enumerate(zip(arguments, last.arguments, strict=True))
            changed += [
                f"argument {index} is {now}, was {was}" for index, (now, was) in pairs if now != was
            ]
        if before != last.before:
            changed.append(
                f"it takes {len(before)} gradients and values of Python's state, "
                f"were {_shortly(last.before, before)}"
            )
        elif around != last.around:
            changed.append(
                "other modes: of grad, of autocast, of a module, "
                "or another structure of the arguments"
            )
        return "; ".join(changed) or "none of the programs before takes the call"


def _is_of_program(error: BaseException, recipe: Recipe) -> bool:
    """Return whether the program raises ``error`` in eager mode, too."""
    known = any(error is raised for raised in recipe.raised)
    recipe.raised.clear()  # an error holds the values of its call
    return known or not raised_by_package(error)


_TOLD = 4  # changes of Python's state that a reason lists


def _shortly(was: tuple[str, ...], now: tuple[str, ...]) -> str:
    """Return how many values there were, or which one was another one."""
    if len(was) != len(now):
        return str(len(was))
    pairs = enumerate(zip(was, now, strict=True))
    index = next(index for index, (before, after) in pairs if before != after)
    return f"other ones: {index} is {now[index]}, was {was[index]}"


def described(value: object) -> str:
    """Return an object in a few words: ``float32[2, 3]`` for a tensor."""
    if value is MISSING:
        return "not there"
    if isinstance(value, Outside):
        return f"{described(value.tensor)}, which the program comes to by itself"
    if isinstance(value, Facts):
        return str(value)
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return repr(value)
    return type(value).__name__


def _without_sizes(value: object, kind: Kind) -> Kind:
    """Return the ``kind`` of an argument, for any sizes if it is a tensor. Its first part says
    whether a gradient of it is wanted."""
    return kind_of(value, bool(kind[0]), True) if isinstance(value, torch.Tensor) else kind
