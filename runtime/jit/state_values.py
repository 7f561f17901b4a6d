"""Values in Python's state that a program takes as arguments and returns as results.

    def step(self, x):
        self.steps += 1             # another number in each call
        self.found = []             # another list
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return x * self.rate        # which a schedule outside changes

The first program keeps the numbers that it finds. One that changes becomes an argument and a result
of the next program, which serves any value. A number that the program changes itself does so when
it is met again, and so does a list or dictionary that it makes anew. A number of an optimizer's
group does so when it has changed once, any other one that is changed outside when it has changed
twice, and so does a tensor without grad. A tensor that the program replaces is an argument at once.

Where the program asks for the type of an object, numbers stay constants but those of optimizers. So
do those on which it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.optim import Optimizer

from ..aot.capture import opened
from ..aot.python_state.nodes import Change, Node, OneByOne, Place
from ..aot.python_state.program_state import ProgramState
from ..aot.python_state.values import CONTAINERS_OF_TREES, is_tree
from ..trace.number_reads import AskedForNumber, number_of
from ..trace.symbols import SYMBOLIC
from .outcome import Float

Key = tuple[int, Any]
_OFTEN = 2  # changes from outside after which a number is an argument


def holds_tensor(x: object) -> bool:
    """Return whether ``x`` is a tensor or a container of Python's with one inside."""
    return is_tree(x) and any(isinstance(leaf, torch.Tensor) for leaf in opened.flatten(x)[0])


class StateValues:
    """The places of Python's state whose values the programs of one function take and return.
    ``places``: these, in the order of the arguments."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._last: ProgramState | None = None  # what the last capture has found
        self._made: frozenset[Key] = frozenset()  # places to which its program assigns results
        self._changed: Counter[Key] = Counter()  # how often each place has changed, see `_is_often`
        self._numbers: set[Key] = set()  # those of `places` that are numbers
        self._constant: set[Key] = set()  # places that are no arguments, whatever happens there
        # A run has failed, perhaps on a number that is an argument. These are constants in the next
        # run. If that fails, too, they were not to blame, and are resumed by the next capture.
        self._set_aside: list[Place] = []
        self._resumed: list[Place] = []

    def begin(self, state: ProgramState) -> bool:
        """Begin a capture of a program that finds ``state``. Return whether further values are
        arguments from now on."""
        # numbers that are resumed may also have changed since the last capture
        resumed = {place.key for place in self._resumed}
        found = [place for place in self._found(state) if place.key not in resumed]
        found, self._resumed = [*self._resumed, *found], []
        self._last, self._made = state, frozenset()
        self.places += found
        return bool(found)

    def take(self, changes: Sequence[Change]) -> bool:
        """Note which values the last capture has changed, such as a graph computes or a call makes
        anew. Return whether some of them have to be arguments, too: tensors and numbers that it
        replaces."""
        known = {place.key for place in self.places} | self._constant
        computed = [
            change for change in changes if _is_number(change.before) and _is_symbol(change.now)
        ]
        numbers = {place_of(change).key for change in computed}
        self._numbers |= numbers - known
        new = [place_of(change) for change in changes if holds_tensor(change.before)]
        new += [place_of(change) for change in changes if place_of(change).key in numbers]
        new = [place for place in new if place.key not in known]
        self.places += new
        self._set_aside = []  # the run has come to its end, so that the constants stay
        self._made = frozenset(place_of(change).key for change in changes)
        return bool(new)

    @property
    def tries_constants(self) -> bool:
        """Return whether this run is one with constants in place of numbers that were arguments."""
        return bool(self._set_aside)

    def set_aside(self) -> bool:
        """Let numbers be constants in the next run, as one has failed. Return whether some were
        arguments."""
        self._set_aside = [place for place in self.places if place.key in self._numbers]
        return self._drop(self._set_aside)

    def resume(self) -> None:
        """Numbers were not to blame: the run has failed on constants, too. They are arguments from
        the next capture on."""
        kept = {place.key for place in self._set_aside}
        self._constant -= kept
        self._numbers |= kept
        self._resumed += self._set_aside
        self._set_aside = []

    def fix(self, places: Sequence[Place]) -> bool:
        """Let the values at ``places`` be constants from now on. Return whether there are any."""
        return self._drop(places)

    def _drop(self, places: Sequence[Place]) -> bool:
        """Let the values at ``places`` be constants. Return whether there are any."""
        keys = {place.key for place in places}
        self._constant |= keys
        self._numbers -= keys
        self.places = [place for place in self.places if place.key not in keys]
        return bool(keys)

    def _found(self, state: ProgramState) -> list[Place]:
        """List where this capture finds other values than the last one, which are to be
        arguments."""
        if self._last is None:  # most values never change, so the first capture takes constants
            return []
        taken = {place.key for place in self.places} | self._constant
        asks_types = self._last.graph.code.asks_types or state.graph.code.asks_types
        groups = _groups_in(self._last.graph.nodes)
        found = []
        for node, label, was, now in self._last.moved():
            if not isinstance(node, OneByOne) or type(was) is not type(now):
                continue
            place = Place(node, label)
            if place.key in taken:
                continue
            if _is_number(now):
                of_group = id(node.owner) in groups
                # A program that asks for types sees another one of an argument. Numbers of
                # optimizers are arguments all the same.
                is_argument = (of_group or not asks_types) and self._is_often(place, of_group)
                if is_argument:
                    self._numbers.add(place.key)
            else:
                is_argument = self._is_data_argument(place, was, now, asks_types)
            if is_argument:
                found.append(place)
        return found

    def _is_data_argument(self, place: Place, was: object, now: object, asks_types: bool) -> bool:
        """Return whether what is at ``place``, no number, is to be an argument: a tensor that has
        often been another one, or a container that the program has made."""
        if _is_data(was) and _is_data(now):
            return self._is_often(place, False)
        has_number = any(is_tree(x) and _has_number(x) for x in (was, now))
        # A program that asks for types sees another one of an argument.
        if asks_types and has_number:
            return False
        if place.key in self._made:
            return type(now) in CONTAINERS_OF_TREES
        # one of constants, such as ``(self.step + 1, self.rate)``, is no result that a call makes
        if not (isinstance(now, tuple) or is_dataclass(now)):
            return False
        return has_number and self._is_of_program(place)

    def _is_of_program(self, place: Place) -> bool:
        """Return whether the last program has assigned what is at ``place``."""
        assert self._last is not None
        return place.key in self._last.written or place.key in self._made

    def _is_often(self, place: Place, of_group: bool) -> bool:
        """Count a change of a place. Return whether it has changed often enough for an argument."""
        of_program = self._is_of_program(place)
        self._changed[place.key] += _OFTEN if of_program or of_group else 1
        return self._changed[place.key] >= _OFTEN


def place_of(change: Change) -> Place:
    """Return the place to which a change has assigned, which can be assigned by itself."""
    assert isinstance(change.node, OneByOne)
    return Place(change.node, change.label)


def _is_number(x: object) -> bool:
    """Return whether ``x`` is a number, or several that belong together, such as ``betas``."""
    if type(x) is tuple:
        return bool(x) and all(type(item) is float for item in x)
    return type(x) is int or type(x) is float


def _has_number(x: Any) -> bool:
    """Return whether a container of Python's, or an object of a data class, has a number inside."""
    return any(map(_is_number, opened.flatten(x)[0]))


def _is_data(value: object) -> bool:
    """Return whether ``value`` is a tensor such as a batch, and no parameter."""
    return isinstance(value, torch.Tensor) and not value.requires_grad


def _is_symbol(x: object) -> bool:
    """Return whether ``x`` is a number that the graph computes."""
    items = x if type(x) is tuple else (x,)
    return any(type(item) in SYMBOLIC for item in items)


def _groups_in(nodes: Iterable[Node]) -> set[int]:
    """Return the identities of the groups of the optimizers that are known."""
    return {
        id(group)
        for node in nodes
        if isinstance(node.owner, Optimizer)
        for group in vars(node.owner).get("param_groups", ())
    }


class Numbers:
    """The numbers of Python's state that one run of a program takes, and where they are."""

    def __init__(self) -> None:
        self._places: dict[fx.Node, Place] = {}

    def read(self, value: Any, place: Place) -> Any:
        """Return what the program finds at ``place`` for a ``value`` of its entry."""
        if isinstance(value, torch.Tensor):
            return value
        return opened.replaced(partial(self._read, place=place), value)

    def _read(self, value: object, place: Place) -> Any:
        """Return ``value``. Read the number of a tensor that a call passes in place of a number,
        and note from which ``place`` it is."""
        if type(value) is not Float:
            return value
        number = value.tensor.item()
        known = number_of(number)
        for node in known.sources if known is not None else ():
            self._places[node] = place
        return number

    def places_of(self, error: AskedForNumber) -> list[Place]:
        """List the places of the numbers whose value a program has asked for."""
        return [self._places[node] for node in error.number.sources if node in self._places]
