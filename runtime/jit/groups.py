"""Groups of parameters of an optimizer, as a program sees them while it is captured.

    for group in optimizer.param_groups:
        group["lr"] = rate              # each call does that
        print(group["weight_decay"])    # a constant of the graph, or what a cell has

The program gets a :class:`Group` in place of each dictionary. It shows a number that changes
between calls as one that the graph reads from a tensor, which each call fills (:class:`Cell`). What
the program assigns stays in it, and the caller's dictionary is as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import lr_scheduler, swa_utils
from torch.utils._python_dispatch import _disable_current_modes

from ..aot.python_state.values import MISSING
from ..trace.provenance import here

# where a number is: the id of a group, its name, and its position if that is a tuple
Number = tuple[int, str, int | None]

_OF_SCHEDULERS = (lr_scheduler.__file__, swa_utils.__file__)


@dataclass(eq=False)
class Cell:
    """A number of a group, ``group[name]`` or ``group[name][at]``, as a tensor of no dimensions
    that a graph reads."""

    group: dict[str, Any]
    name: str
    at: int | None
    tensor: torch.Tensor

    def fill(self) -> None:
        found = self.group[self.name]
        self.tensor.fill_(found if self.at is None else found[self.at])


class Kinds:
    """Of which types the numbers in cells are, which a graph depends on."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._places = [(cell.group, cell.name) for cell in cells]

    @property
    def floats(self) -> bool:
        """Whether there are ``float`` or tuples of them in all places."""
        found = [group.get(name) for group, name in self._places]
        return all(
            type(x) is float or (type(x) is tuple and all(type(y) is float for y in x))
            for x in found
        )


class Numbers:
    """Which numbers of groups are read from cells: all called ``lr``, and those that have changed
    since a capture before."""

    def __init__(self) -> None:
        self.cells: dict[Number, Cell] = {}
        self.fixed: set[Number] = set()  # the program asks for their values
        self._first: dict[Number, float] = {}
        self._held: list[Any] = []  # so that no id is given to another group

    def opened(self, group: dict[str, Any], name: str) -> list[Cell]:
        """The cells of what ``group`` has under ``name``; none if it stays a constant."""
        value = group[name]
        several = type(value) is tuple and value and all(type(x) is float for x in value)
        if type(value) is not float and not several:
            return []
        numbers = {
            (id(group), name, at): x
            for at, x in (enumerate(value) if several else ((None, value),))
        }
        self._held.append(group)
        changed = [
            name == "lr" or key in self.cells or self._first.setdefault(key, x) != x
            for key, x in numbers.items()
        ]
        if not any(changed) or not self.fixed.isdisjoint(numbers):
            return []
        for key, x in numbers.items():
            if key not in self.cells:
                with _disable_current_modes():
                    self.cells[key] = Cell(
                        group, name, key[2], torch.tensor(x, dtype=torch.float64, device="cpu")
                    )
        return [self.cells[key] for key in numbers]


class Group(dict[str, Any]):
    """What the program sees of ``group``. ``number``: what it sees of the number in a cell.

    ``cells``: those that it has read. ``asked``: the names that it has read, and ``assigned``: to
    which it has assigned something."""

    def __init__(
        self, group: dict[str, Any], numbers: Numbers, number: Callable[[Cell], Any]
    ) -> None:
        super().__init__(group)
        self.group = group
        self.cells: list[Cell] = []
        self.asked: set[str] = set()
        self.assigned: set[str] = set()
        self.parameters = list(group["params"])
        self._numbers = numbers
        self._number = number
        self._thread = threading.get_ident()

    def __getitem__(self, name: str) -> Any:
        if threading.get_ident() != self._thread:
            return self.group[name]
        _refuse_scheduler()
        if super().__contains__(name) and name not in self.asked and name not in self.assigned:
            self.asked.add(name)
            cells = self._numbers.opened(self.group, name)
            if cells:
                self.cells += cells
                numbers = [self._number(cell) for cell in cells]
                super().__setitem__(name, numbers[0] if cells[0].at is None else tuple(numbers))
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        if not found and isinstance(name, str):
            self.asked.add(name)  # a call asks whether there is still none
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        if threading.get_ident() != self._thread:
            self.group[name] = value
            return
        _refuse_scheduler()
        self.assigned.add(name)
        super().__setitem__(name, value)

    # with this `dict(group)` and `**group` ask for the items by name
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            return self[name]
        return default

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *others: Any, **named: Any) -> None:
        for name, value in dict(*others, **named).items():
            self[name] = value

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def constants(self) -> list[tuple[str, Any]]:
        """Names and values that the graph keeps."""
        opened = {cell.name for cell in self.cells}
        kept = (*self.asked, *(n for n in self.group if n not in self.assigned))
        return [
            (name, self.group.get(name, MISSING))
            for name in dict.fromkeys(kept)
            if name not in opened
        ]

    def changes(self) -> dict[str, Any]:
        """What the program has assigned, by name. ``RuntimeError`` for what a call would not do."""
        where = "of a group of an optimizer"
        if any(name not in self for name in self.group):
            raise RuntimeError(
                f"the program deletes an item {where}. Do that outside of the jitted function."
            )
        kept = super().__getitem__("params")
        if kept is not self.group["params"] or [id(p) for p in kept] != [
            id(p) for p in self.parameters
        ]:
            raise RuntimeError(
                f"the program changes the parameters {where}. "
                "Do that outside of the jitted function."
            )
        return {
            name: super(Group, self).__getitem__(name) for name in self if name in self.assigned
        }


def _refuse_scheduler() -> None:
    """Refuse a step of a scheduler, from whose code :class:`Group` is called."""
    if sys._getframe(2).f_code.co_filename in _OF_SCHEDULERS:
        raise RuntimeError(
            "the program steps or makes a learning-rate scheduler, "
            "which counts its steps in Python. A graph would not do that. "
            f"Step schedulers outside of the jitted function.{here()}"
        )
