"""Optimizers that a program steps while it is captured.

``optimizer.step()`` reads numbers from its groups, and makes its state at the first step. A capture has to give it something else for each:

- a number that changes between calls, as ``lr`` by a scheduler, is read from a tensor that each call fills (:class:`Cell`);
- state that the step makes is a result of the graph, which the call puts into ``optimizer.state``;
- state and other numbers that are there are kept by the graph, and each call asks whether they still are.

What the capture itself has changed is put back.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from ...func.traced_numbers import AskedForNumber, number_of
from ...seam.levels import Value
from ..capture.reads import MISSING, WHOLE, Read, same
from .scalers import made_in_capture

Number = tuple[int, str, int | None]  # where a number is: the id of a group, its name, and its position if that is a tuple


@dataclass(eq=False)
class Cell:
    """A number of a group, ``group[name]`` or ``group[name][at]``, as a tensor of no dimensions that a graph reads."""

    group: dict[str, Any]
    name: str
    at: int | None
    tensor: torch.Tensor

    def fill(self) -> None:
        found = self.group[self.name]
        self.tensor.fill_(found if self.at is None else found[self.at])


class Numbers:
    """Which numbers of groups are read from cells: all called ``lr``, and those that have changed since a capture before."""

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
        numbers = {(id(group), name, at): x for at, x in (enumerate(value) if several else ((None, value),))}
        self._held.append(group)
        changed = [name == "lr" or key in self.cells or self._first.setdefault(key, x) != x for key, x in numbers.items()]
        if not any(changed) or not self.fixed.isdisjoint(numbers):
            return []
        for key, x in numbers.items():
            if key not in self.cells:
                with _disable_current_modes():
                    self.cells[key] = Cell(group, name, key[2], torch.tensor(x, dtype=torch.float64, device="cpu"))
        return [self.cells[key] for key in numbers]


@dataclass(eq=False)
class Place:
    """Where the state of a parameter has something: ``optimizer.state[parameter][name]``."""

    optimizer: Optimizer
    parameter: Any
    name: str


@dataclass(eq=False)
class _Before:
    """What an optimizer was before the program."""

    optimizer: Optimizer
    groups: list[dict[str, Any]]
    parameters: list[list[Any]]
    state: dict[Any, Any]
    cells: dict[int, Cell] = field(default_factory=dict)

    @staticmethod
    def of(optimizer: Optimizer) -> _Before:
        groups = [dict(g) for g in optimizer.param_groups]
        state = {p: dict(s) if isinstance(s, dict) else s for p, s in optimizer.state.items()}
        return _Before(optimizer, groups, [list(g["params"]) for g in groups], state)

    def restore(self) -> None:
        for group, before in zip(self.optimizer.param_groups, self.groups, strict=False):
            group.update(before)
        state = self.optimizer.state
        for p in [p for p in state if p not in self.state]:
            del state[p]
        for p, before in self.state.items():
            if isinstance(before, dict):
                state[p].clear()
                state[p].update(before)
            else:
                state[p] = before


class Optimizers:
    """The optimizers that one run of a program steps. ``numbers``: those of the jitted function."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.seen: dict[int, _Before] = {}
        self.scaler: GradScaler | None = None  # one that the program has given a scale
        self._read: dict[fx.Node, Number] = {}
        self._thread = threading.get_ident()

    def __enter__(self) -> Optimizers:
        self._handles = [register_optimizer_step_pre_hook(self._begin), register_optimizer_step_post_hook(self._end)]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        for handle in self._handles:
            handle.remove()
        for before in self.seen.values():
            before.restore()

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return  # another thread's program
        if id(optimizer) not in self.seen:
            self.seen[id(optimizer)] = _Before.of(optimizer)
        before = self.seen[id(optimizer)]
        self.scaler = self.scaler or made_in_capture()
        for group in optimizer.param_groups:
            for name in list(group):
                cells = self.numbers.opened(group, name)
                if cells:
                    before.cells |= {id(cell): cell for cell in cells}
                    numbers = [self._number(cell) for cell in cells]
                    group[name] = numbers[0] if cells[0].at is None else tuple(numbers)

    def _number(self, cell: Cell) -> Any:
        """The number in ``cell``, as the program sees it."""
        number = cell.tensor.item()
        known = number_of(number)
        for node in known.sources if known is not None else ():
            self._read[node] = id(cell.group), cell.name, cell.at
        return number

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        before = self.seen.get(id(optimizer)) if threading.get_ident() == self._thread else None
        if before is not None:
            for cell in before.cells.values():
                was = next(was for was, group in zip(before.groups, optimizer.param_groups, strict=True) if group is cell.group)
                cell.group[cell.name] = was[cell.name]

    def pinned(self, error: AskedForNumber) -> list[Number]:
        """The numbers of groups for whose values the program has asked."""
        return [self._read[n] for n in error.number.sources if n in self._read]

    def made(self) -> list[tuple[Place, Any]]:
        """The state that the program has made. ``RuntimeError`` for state that is no tensor and changes."""
        found = []
        for before in self.seen.values():
            optimizer = before.optimizer
            for group, was in zip(optimizer.param_groups, before.groups, strict=False):
                changed = [n for n in group if n != "params" and not same(group[n], was.get(n))]
                if changed:
                    raise RuntimeError(f"{type(optimizer).__name__}.step() changes {changed[0]!r} of its group, which a graph would not do")
            for p, state in optimizer.state.items():
                old = before.state.get(p, {})
                if not isinstance(state, dict):
                    raise RuntimeError(
                        f"the state of {type(optimizer).__name__} has a {type(state).__name__} for a parameter, and no dictionary"
                    )
                for name, x in state.items():
                    if isinstance(x, Value) and x._level.number:
                        found.append((Place(optimizer, p, name), x))
                    elif not same(x, old.get(name, MISSING)):
                        raise RuntimeError(
                            f"{type(optimizer).__name__}.step() keeps {name!r}, a {type(x).__name__}, in its state, and changes it. A "
                            "graph would not do that. Keep it as a tensor, and change it in place."
                        )
        return found

    def reads(self) -> list[Read]:
        """What the program has found in its optimizers."""
        return [read for before in self.seen.values() for read in _reads_of(before)]


def _reads_of(before: _Before) -> list[Read]:
    optimizer, opened = before.optimizer, {(id(c.group), c.name) for c in before.cells.values()}
    groups, state = optimizer.param_groups, optimizer.state
    found = [Read(vars(optimizer), "param_groups", groups), Read(groups, WHOLE, list(groups)), Read(vars(optimizer), "state", state)]
    for group, was, parameters in zip(groups, before.groups, before.parameters, strict=True):
        found += [Read(group, name, x) for name, x in was.items() if (id(group), name) not in opened]
        found.append(Read(group["params"], WHOLE, parameters))
        for p in parameters:
            kept = before.state.get(p)
            found.append(Read(state, p, state[p] if kept is not None else MISSING))
            found += [Read(state[p], name, x) for name, x in (kept or {}).items()]
    return found


def put(places: Sequence[Place], tensors: Sequence[Any]) -> None:
    """Put the state that a program has made where it belongs."""
    for place, t in zip(places, tensors, strict=True):
        place.optimizer.state[place.parameter][place.name] = t
