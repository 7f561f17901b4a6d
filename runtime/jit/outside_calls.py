"""Functions that are left out of a captured program: ``jit.outside``.

    @jit.outside
    def log(loss, step):
        history.append(loss.item())
        print(step, loss)

    @jit
    def step(x, y):
        ...
        optimizer.step()
        log(loss, trainer.steps)        # each call does that, with the elements of its own loss

A capture does not run ``log``. It notes the call: tensors and numbers that the program computes are
results of the graph. A call of ``step`` runs the graph, does the program's own changes, and calls
``log`` then. In eager mode ``log`` runs at its place. So that this is the same, the program may
change nothing after the first such call, and the functions may change nothing that the program may
read. Both are errors that name what it is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from types import MethodType
from typing import Any

import torch

from ..aot.capture import opened
from ..aot.python_state.nodes import Change
from ..aot.python_state.program_state import RUN, ProgramState
from ..aot.python_state.reads import same
from ..aot.python_state.values import SIMPLE
from ..functionalize.functional_value import FunctionalValue
from ..seam.ambient import Ambient
from ..seam.level_mode import EnteringMode, entering_mode
from ..seam.levels import Level, values_of
from ..seam.scope import SCOPE
from ..seam.user_code import unwatched, watched
from ..session.captures import CAPTURE
from ..torch_private.pytrees import pytree
from ..trace.provenance import here, text_of
from ..trace.symbols import SYMBOLIC
from .turns import Turns

_NAMED = 4  # changed places that an error names


@dataclass(frozen=True)
class _Argument:
    """One argument of a call. ``leaves``: what it consists of; None where a tensor or number that
    the program computes belongs. ``computed``: where that is. ``spec``: how it is put together."""

    leaves: tuple[Any, ...]
    computed: tuple[int, ...]
    spec: pytree.TreeSpec

    def made(self, values: Iterator[object]) -> Any:
        """Return the argument. ``values``: its tensors and numbers, and those of further ones."""
        leaves = list(self.leaves)
        for index in self.computed:
            leaves[index] = next(values)
        return opened.unflatten(leaves, self.spec)


def _taken_apart(value: object) -> tuple[_Argument, list[object]]:
    """Return an argument without its tensors and symbols, and copies of these. What has none is one
    leaf, so that a list is the caller's own list."""
    leaves, spec = opened.flatten(value)
    computed = [
        index for index, leaf in enumerate(leaves) if isinstance(leaf, (torch.Tensor, *SYMBOLIC))
    ]
    if not computed:
        one_leaf = pytree.tree_flatten(None)[1]  # pytree takes None for a leaf
        return _Argument((value,), (), one_leaf), []
    values = [leaves[index] for index in computed]
    for index in computed:
        leaves[index] = None
    return _Argument(tuple(leaves), tuple(computed), spec), list(map(_copied, values))


def _copied(value: object) -> object:
    """Return a copy without a history, which no later write changes. Numbers are as they are."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class OutsideCall:
    """A call of a function that is left out. ``names``: of its keywords. ``line``: where the
    program makes it, as the end of an error message."""

    function: Outside
    arguments: tuple[_Argument, ...]
    names: tuple[str, ...]
    line: str

    def made(self, values: Iterator[object]) -> list[Any]:
        """Return the arguments. ``values``: the tensors and numbers, and those of further calls."""
        return [argument.made(values) for argument in self.arguments]

    def run(self, values: Iterator[object]) -> None:
        """Make the call."""
        arguments = self.made(values)
        count = len(arguments) - len(self.names)
        named = dict(zip(self.names, arguments[count:], strict=True))
        self.function.run(arguments[:count], named, self.line)


class Outside:
    """What ``jit.outside`` makes of a function ``f``. It has no ``__wrapped__``: the state that
    ``f`` reads is no state of the program."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._f = function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Call the function in eager mode, or note the call in a program that is captured.
        ``RuntimeError`` in a transform, branch or loop inside of a program."""
        call, values = self._noted(args, kwargs)
        # Eager mode. A run of `check=` only notes the call: the program runs next, and makes it.
        if entering_mode() is None:
            if _PROGRAM.noted is not None:
                _PROGRAM.noted.calls.append((self.name, call.made(iter(values))))
            else:
                call.run(iter(values))
            return
        program = _PROGRAM.captured
        if program is None or not program.takes(values):
            raise RuntimeError(
                f"{self.name} is left out of programs by jit.outside, and is called in a "
                "transform, a branch, a loop or a compiled function inside of a program. Call it "
                f"in the function that jit captures, and not in there.{call.line}"
            )
        program.add(call, values)

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __repr__(self) -> str:
        return f"<{self.name}, outside of programs>"

    def _noted(self, args: Any, kwargs: Any) -> tuple[OutsideCall, list[Any]]:
        """Return the call, and the tensors and numbers of its arguments in their order."""
        parts = list(map(_taken_apart, (*args, *kwargs.values())))
        arguments = tuple(argument for argument, _ in parts)
        call = OutsideCall(self, arguments, tuple(kwargs), here())
        return call, [value for _, values in parts for value in values]

    def run(self, args: Sequence[object], kwargs: dict[str, Any], line: str) -> None:
        """Run the function. ``RuntimeError`` if it returns something."""
        result = self._f(*args, **kwargs)
        if result is not None:
            raise RuntimeError(
                f"{self.name} is left out of programs by jit.outside, and returns a "
                f"{type(result).__name__}. Such a function returns None, as a program has no "
                f"result of it.{line}"
            )


def outside(function: Callable[..., None] | None = None) -> Outside:
    """Leave a function out of programs: a decorator for what logs, counts or prints.

    ``function``: a function or method that returns None. Its tensors are copies without a history,
    in a jitted program and in eager mode; other arguments are as they are. Each call of a jitted
    function calls it after its graph, in the program's order. What ``function`` draws is drawn
    after what the program draws.

    ``TypeError`` without a function: Python cannot skip the block of a ``with`` statement.
    ``RuntimeError`` where a jitted program would not do the same as eager mode: if ``function``
    returns something, if the program changes something after the call, if ``function`` changes what
    the program may read, and in transforms and branches inside of the program.

    >>> losses = []
    >>> @outside
    ... def log(loss):
    ...     losses.append(loss.item())
    >>> @jit
    ... def step(x):
    ...     loss = x.square().sum()
    ...     log(loss)
    ...     return loss
    >>> step(torch.ones(2)), step(torch.ones(3)), losses
    (tensor(2.), tensor(3.), [2.0, 3.0])
    """
    if not callable(function):
        raise TypeError(
            "jit.outside is a decorator of a function: @jit.outside above it. A block cannot be "
            "left out, as Python runs it whenever the program is captured."
        )
    return Outside(function)


@dataclass(eq=False)
class WithCalls:
    """What a program with calls outside returns. ``values``: the tensors and numbers of these."""

    result: Any
    values: list[Any]
    calls: _Calls

    def noted(self) -> list[tuple[str, list[Any]]]:
        """Return the name of the function and the arguments of each call."""
        values = iter(self.values)
        return [(call.function.name, call.made(values)) for call in self.calls.calls]

    def finish(self, turns: Turns) -> Any:
        """Make the calls, and return the result of the program. ``turns``: of the function that is
        called."""
        self.calls.run(self.values, turns)
        return self.result


class _Calls:
    """The calls outside of one program. ``state``: what the program finds in Python's state."""

    def __init__(self, calls: Sequence[OutsideCall], state: ProgramState) -> None:
        self.calls = calls
        self.state = state

    def run(self, values: Sequence[object], turns: Turns) -> None:
        """Make the calls. ``RuntimeError`` if one of them changes what the program may read. What
        is another after a call of another thread is not asked: that call may have changed it."""
        found = iter(values)
        others = turns.of_others
        # not compared with the capture: the program's own changes are differences, too
        before = self._differences()
        for call in self.calls:
            call.run(found)
        after = self._differences()
        # another thread ran meanwhile, and the difference may be its own
        if others[1] or turns.of_others != others:
            return
        if not same(before, after):
            where = [
                place
                for place in {**after, **before}
                if not same(before.get(place), after.get(place))
            ]
            names = ", ".join(call.function.name for call in self.calls)
            raise RuntimeError(
                f"{names}, left out of programs by jit.outside, changes {', '.join(where[:_NAMED])}"
                ", which the program may read. A graph would not see that. Change it in the "
                f"program, or name it in ignore=(…).{self.calls[0].line}"
            )

    def _differences(self) -> dict[str, Any]:
        """Return what may not be as the program has found it, by name. Its own changes are done by
        now. Places whose values are arguments of the graph are not compared by a guard."""
        guard = self.state.guard
        assert guard is not None, "the capture of a program that runs has ended"
        found = {place.what: place.current() for place in guard.arguments()}
        if not guard.holds():
            found |= {what: now for what, _, now in guard.differences()}
        return found


class _CapturedProgram:
    """The calls outside that a run under capture has noted."""

    def __init__(self, state: ProgramState, arguments: Sequence[object]) -> None:
        self.state = state
        self.calls: list[OutsideCall] = []
        self.values: list[Any] = []
        self._arguments = arguments
        mode = entering_mode()
        assert mode is not None, "a program that is captured has such a mode"
        self._mode: EnteringMode = mode
        self._levels = len(SCOPE.levels)
        self._number = Level().number  # levels of transforms inside have greater ones
        self._before: _Moment | None = None

    def takes(self, values: Sequence[object]) -> bool:
        """Return whether no transform, branch or loop inside of the program makes the call, and
        none has made ``values``."""
        if entering_mode() is not self._mode or len(SCOPE.levels) != self._levels:
            return False
        levels = [value._level.number for tensor in values for value in values_of(tensor)]
        return all(number <= self._number for number in levels)

    def add(self, call: OutsideCall, values: Sequence[object]) -> None:
        """Note a call. The first one marks what the program may have changed until then."""
        self.calls.append(call)
        self.values += values
        if self._before is None:
            self._before = self._moment()

    def finish(self) -> _Calls:
        """Return the calls. ``RuntimeError`` if the program has changed something after the first
        one."""
        assert self._before is not None, "a program with calls has marked the first one"
        changed = self._before.changed_until(self._moment())
        if changed:
            raise RuntimeError(
                f"the program changes {', '.join(changed[:_NAMED])} after it has called "
                f"{self.calls[0].function.name}, which is left out by jit.outside and would see "
                f"that. Call it at the end of the program.{self.calls[0].line}"
            )
        return _Calls(self.calls, self.state)

    def _moment(self) -> _Moment:
        """Return what the program has changed until now, of all tensors that it can write to: those
        that it is given, and those from outside that it has used."""
        gradients: Any = CAPTURE.gradients
        values = [*self._arguments, *map(self._mode.value, self._mode.found)]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        changed = [] if gradients is None else gradients.changed
        return _Moment(self.state, tensors, changed)


def place_of(change: Change) -> tuple[int, Any]:
    """Return a key of the place of a change."""
    return id(change.node.owner), _key_of(change.label)


def _key_of(label: object) -> object:
    """Return what stands for a label, which may be a tensor, or a symbol without a hash."""
    if isinstance(label, SIMPLE):
        return label
    if isinstance(label, tuple):  # a shape, of which each run makes one of its own
        return tuple(map(_key_of, label))
    if isinstance(label, weakref.ref):  # of a weak dictionary, for which each run makes one anew
        return weakref.ref, id(label())
    return id(label)


class _Moment:
    """What a program has changed until now: in Python's state, of tensors from outside, and of
    gradients."""

    def __init__(
        self, state: ProgramState, tensors: Sequence[object], gradients: Sequence[Any]
    ) -> None:
        self.places = {place_of(change): change for change in state.changes()}
        values = [value for tensor in tensors for value in values_of(tensor)]
        memories = [value._store.memory for value in values if isinstance(value, FunctionalValue)]
        # each with its memory, which keeps the identity from being another one's
        self.written = {id(memory): (memory, memory.generation) for memory in memories}
        self.gradients = {id(leaf): grad for leaf, grad in gradients}
        self.facts = {id(read.owner): read.current() for read in state.graph.tensors.values()}

    def changed_until(self, later: _Moment) -> list[str]:
        """Return what the program has changed between this moment and a later one, in words."""
        found = [
            change.what
            for key, change in later.places.items()
            if key not in self.places or not same(self.places[key].now, change.now)
        ]
        found += [change.what for key, change in self.places.items() if key not in later.places]
        for key, (memory, generation) in later.written.items():
            # one that the program has come to since then begins at generation 0
            if generation != self.written.get(key, (memory, 0))[1]:
                line = memory.written_at
                found.append("a tensor" if line is None else f"a tensor (at {text_of(line)})")
        # `self` is no gradient, and None is one
        if any(self.gradients.get(key, self) is not grad for key, grad in later.gradients.items()):
            found.append(".grad of a tensor")
        if any(later.facts.get(key) != known for key, known in self.facts.items()):
            found.append("what a tensor says of itself")
        return found


class _Program(Ambient):
    """``captured``: the innermost program that this thread captures for jit. ``noted``: where the
    calls go that an eager run of this thread does not make."""

    captured: _CapturedProgram | None = None
    noted: Noted | None = None


_PROGRAM = _Program()


class Noted:
    """While entered, calls outside are noted, and not made: the run is only compared with another
    one. ``calls``: the name of the function and the arguments of each."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []

    def __enter__(self) -> Noted:
        self._around, _PROGRAM.noted = _PROGRAM.noted, self
        return self

    def __exit__(self, *exc: object) -> None:
        _PROGRAM.noted = self._around


class OutsideCalls:
    """Finds the calls outside in the programs of one function ``f``. ``program``: ``f`` as it is
    captured, which returns :class:`WithCalls` if there are any."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.f = function
        self._state: ProgramState | None = None

        # without its attributes: those of a module are its parts
        @wraps(function, updated=())
        def program(*args: object, **kwargs: object) -> Any:
            state = self._state
            if state is None or RUN.state is not state or _PROGRAM.captured is not None:
                return function(*args, **kwargs)  # in a transform, or in another program
            return unwatched(self._captured, state, args, kwargs)

        self.program = program

    def starting(self, then: Callable[[ProgramState], None]) -> Callable[[ProgramState], None]:
        """Return ``then``, which is told before a capture what the program finds."""

        def start(state: ProgramState) -> None:
            self._state = state
            then(state)

        return start

    def _captured(self, state: ProgramState, args: Any, kwargs: Any) -> Any:
        """Run ``f`` under capture, and return its result with the calls that it has made."""
        program = _CapturedProgram(state, opened.flatten((args, kwargs))[0])
        _PROGRAM.captured = program
        try:
            result = watched(self.f, *args, **kwargs)
        finally:
            _PROGRAM.captured = None
        if not program.calls:
            return result
        return WithCalls(result, program.values, program.finish())
