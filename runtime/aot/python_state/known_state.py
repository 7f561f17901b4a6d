"""Python's state around a capture.

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return x - self.mean

A program may have to be run several times until its graph is known. What a run has changed of
what the program finds in Python's state is put back before the next one, and after an error.
And ``self.mean`` is a value of the trace when the program has returned, which nothing may
find afterwards. The states of Python's random generators are put back, too.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

import numpy as np
import torch

from ...seam.levels import Value
from ...trace.symbols import SYMBOLIC
from .closed_over import computed_at
from .reads import MISSING, WHOLE, Read, Slots, look_up, same

# --- random numbers of Python ---------------------------------------------------------------------
#
# A program draws by ``random`` or by NumPy.
#
#     x * random.random()         # a graph keeps the number
#
# Such numbers are those of the capture. So a warning names the generator.


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


# --- objects and containers -----------------------------------------------------------------------

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)
_MANY = 1024  # items of a container that are put back


@dataclass(frozen=True, eq=False)
class Place:
    """Where the program assigns a tensor that it computes: a name of an object or module, a
    variable of a function around, an item."""

    owner: Any
    name: Any
    what: str

    @property
    def key(self) -> tuple[int, Any]:
        return id(self.owner), self.name

    def current(self) -> Any:
        return look_up(self.owner, self.name)

    def put(self, value: Any) -> None:
        """Let ``value`` be there. ``MISSING``: nothing."""
        if isinstance(self.owner, CellType):
            if value is MISSING:
                del self.owner.cell_contents
            else:
                self.owner.cell_contents = value
        elif isinstance(self.owner, Slots):
            if value is MISSING:
                delattr(self.owner.of, self.name)
            else:
                setattr(self.owner.of, self.name, value)
        elif value is MISSING:
            self.owner.pop(self.name, None)
        else:
            self.owner[self.name] = value


class Held:
    """While entered, ``values`` are at ``places``, as far as there are any. ``left``: what was
    there at the end."""

    def __init__(self, places: Sequence[Place], values: Sequence[Any]) -> None:
        self._places = places[: len(values)]
        self._values = values
        self.left: list[Any] = []

    def __enter__(self) -> Held:
        self._before = [place.current() for place in self._places]
        for place, value in zip(self._places, self._values, strict=True):
            place.put(value)
        return self

    def __exit__(self, *exc: Any) -> None:
        self.left = [place.current() for place in self._places]
        for place, value in zip(self._places, self._before, strict=True):
            place.put(value)


class PythonState:
    """What a program finds in Python's state, before it runs. ``reads``: what its code reads.
    ``modules``: those that it calls."""

    def __init__(self, reads: Sequence[Read], modules: Sequence[torch.nn.Module]) -> None:
        self._reads = reads
        self.draws = PythonDraws(read.value for read in reads)
        self._flags = [(m, m.training) for m in modules]
        self._kept: dict[int, Any] = {}  # by id, containers
        self._copies: dict[int, Any] = {}
        self._names: dict[int, str] = {}  # of what a dictionary is
        for m in modules:
            for names in (m._buffers, m._parameters, vars(m)):
                self._keep(names, f"a {type(m).__name__}")
        for read in reads:
            if type(read.owner) is dict and "__builtins__" not in read.owner:
                self._keep(read.owner, "an object or dictionary")
            self._keep(read.value, "a container")

    def _keep(self, x: Any, what: str, depth: int = 1) -> None:
        if type(x) not in _CONTAINERS or len(x) > _MANY or id(x) in self._kept:
            return
        self._kept[id(x)], self._copies[id(x)], self._names[id(x)] = x, copy.copy(x), what
        for name, value in x.items() if depth and isinstance(x, dict) else ():
            self._keep(value, f"{name!r} of {what}", depth - 1)

    def forget(self, names: dict[str, Any]) -> None:
        """Let ``names``, the dictionary of an object, be as it is from now on."""
        self._reads = [read for read in self._reads if read.owner is not names]
        for x in (names, *names.values()):
            self._kept.pop(id(x), None)

    @property
    def flags(self) -> list[tuple[torch.nn.Module, bool]]:
        """The modules whose ``training`` flag the program has changed, each with
        the present one."""
        return [(m, m.training) for m, flag in self._flags if m.training is not flag]

    def restore(self) -> None:
        """Put back what the program has changed."""
        self.draws.restore()
        for m, flag in self._flags:
            vars(m)["training"] = flag
        for key, x in self._kept.items():
            before = self._copies[key]
            if len(x) != len(before) or any(
                a is not b for a, b in zip(_items(x), _items(before), strict=True)
            ):
                _refill(x, before)
        for read in self._reads:
            if (
                not read.holds()
                and read.name is not WHOLE
                and (isinstance(read.owner, (dict, CellType, Slots)) or _has(read))
            ):
                Place(read.owner, read.name, "").put(read.value)

    def assigned(self) -> list[Place]:
        """Where the program has assigned what holds a value of the trace. ``RuntimeError`` for a
        list to which it has added one."""
        places: dict[tuple[int, Any], Place] = {}
        for key, x in self._kept.items():
            before = self._copies[key]
            if isinstance(x, dict):
                names = [
                    n
                    for n, value in x.items()
                    if value is not before.get(n, MISSING) and holds_values(value)
                ]
                places |= {(key, n): Place(x, n, f"{n!r} of {self._names[key]}") for n in names}
            elif any(isinstance(item, (Value, *SYMBOLIC)) and holds_values(item) for item in x):
                raise RuntimeError(
                    f"the program adds a tensor that it computes to a {type(x).__name__} "
                    f"from outside, {self._names[key]}. A call would not do that. "
                    "Return the tensor, and add it outside of the compiled function."
                    f"{computed_at([item for item in x if isinstance(item, (Value, *SYMBOLIC))])}"
                )
        for read in self._reads:
            now = read.current() if read.name is not WHOLE else None
            if now is not read.value and holds_values(now):
                places.setdefault(
                    (id(read.owner), read.name), Place(read.owner, read.name, str(read))
                )
        return list(places.values())

    def leave_assigned(self) -> None:
        """Put back what the program has assigned and no call assigns. ``RuntimeError`` if the
        program reads such a place."""
        places = self.assigned()
        read = {(id(r.owner), r.name) for r in self._reads}
        what = ", ".join(place.what for place in places)
        if any(place.key in read for place in places):
            raise RuntimeError(
                f"the program reads and assigns {what}, and what it assigns is a tensor that "
                "it computes. A graph would not do that. Let it write to the tensor by copy_(), "
                "or return the new one, or use runtime.jit, which assigns it in each call."
                f"{computed_at([place.current() for place in places if place.key in read])}"
            )
        for place in places:
            place.put(self._before(place))
        if places:
            warnings.warn(
                (
                    f"the program assigns a tensor that it computes to {what}. "
                    "A compiled program leaves it as it was. Return the tensor, "
                    "or use runtime.jit, which assigns it in each call."
                ),
                UserWarning,
                stacklevel=2,
            )

    def _before(self, place: Place) -> Any:
        copied = self._copies.get(id(place.owner))
        if copied is not None:
            return copied.get(place.name, MISSING)
        return next((r.value for r in self._reads if (id(r.owner), r.name) == place.key), MISSING)


def _has(read: Read) -> bool:
    return (
        isinstance(read.owner, list)
        and isinstance(read.name, int)
        and -len(read.owner) <= read.name < len(read.owner)
    )


def _items(x: Any) -> Iterator[Any]:
    if isinstance(x, dict):
        for name, value in x.items():
            yield name
            yield value
    else:
        yield from x


def _refill(x: Any, before: Any) -> None:
    x.clear()
    if isinstance(x, (list, deque)):
        x.extend(before)
    else:
        x.update(before)


def holds_values(x: Any, depth: int = 3) -> bool:
    """Whether ``x`` is a value of a trace, or a number that is a symbol there, or holds one."""
    if isinstance(x, torch.Tensor):
        return isinstance(x, Value) and x._level.number > 0
    if isinstance(x, SYMBOLIC):
        return True
    if depth and isinstance(x, (list, tuple, set, deque)):
        return len(x) <= _MANY and any(holds_values(item, depth - 1) for item in x)
    return (
        bool(depth)
        and isinstance(x, dict)
        and len(x) <= _MANY
        and any(holds_values(item, depth - 1) for item in x.values())
    )
