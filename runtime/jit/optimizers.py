"""Optimizers that a program uses while it is captured.

``optimizer.step()`` reads numbers from its groups, and makes its state at the first step. A capture
has to give it something else for each:

- a number that changes between calls, as ``lr`` by a scheduler, is read from a tensor that each
  call fills (:mod:`.groups`);
- state that the step makes, and numbers that the program assigns, are results of the graph, which
  the call puts where they belong;
- state and other numbers that are there are kept by the graph, and each call asks
  whether they still are.

What the capture itself has changed is put back. So a capture has to know an optimizer before the
program uses it. It knows those that the program finds in Python's state, and those of captures
before. If the program steps another one, it is captured once more."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import fx
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..aot.python_state.closed_over import computed_at
from ..aot.python_state.reads import WHOLE, Read, Slots, same
from ..aot.python_state.values import MISSING
from ..seam.levels import Value
from ..trace.number_reads import AskedForNumber, number_of
from ..trace.provenance import here
from .groups import Cell, Group, Kinds, Number, Numbers
from .known import Known
from .scalers import made_in_capture


class Unknown(BaseException):
    """The program steps an ``optimizer`` that the capture has not known. No ``Exception``, since
    nothing is wrong with it."""

    def __init__(self, optimizer: ref[Optimizer]) -> None:
        self.optimizer = optimizer


@dataclass(eq=False)
class StatePlace:
    """Where the state of a parameter has something: ``optimizer.state[parameter][name]``."""

    optimizer: Optimizer
    parameter: Any
    name: str


@dataclass(eq=False)
class Assigned:
    """Where a program assigns a number, ``group[name]``."""

    group: dict[str, Any]
    name: str


class Watched:
    """An optimizer, and what it was before the program. ``stepped``: whether the
    program has stepped it."""

    def __init__(self, optimizer: Optimizer, optimizers: Optimizers) -> None:
        self.optimizer = optimizer
        self.stepped = False
        self.stepped_at = ""  # the user's line of the last step, as the end of an error message
        self.groups, self.own_groups = optimizer.param_groups, list(optimizer.param_groups)
        self.attributes = dict(vars(optimizer))
        self.groups_before = [dict(g) for g in self.groups]
        self.seen = [Group(group, optimizers.numbers, optimizers.number) for group in self.groups]
        self.state = optimizer.state
        self.state_before = {
            p: dict(s) if isinstance(s, dict) else s for p, s in self.state.items()
        }
        self.own_state = dict(self.state)
        self.groups[:] = self.seen

    @property
    def name(self) -> str:
        return type(self.optimizer).__name__

    @property
    def used(self) -> bool:
        """Whether the program has used more of it than the gradients of its parameters."""
        return (
            self.stepped
            or any(g.assigned or g.asked - {"params"} for g in self.seen)
            or not self._state_holds()
        )

    def restore(self, failed: bool) -> None:
        if failed:  # in the middle of a step, which sets attributes and deletes them
            vars(self.optimizer).clear()
            vars(self.optimizer).update(self.attributes)
        for seen, own, before in zip(self.seen, self.own_groups, self.groups_before, strict=True):
            own.clear()
            own.update(before)
            own["params"][:] = seen.parameters
        self.groups[:] = self.own_groups
        self.optimizer.param_groups, self.optimizer.state = self.groups, self.state
        self.state.clear()
        self.state.update(self.own_state)
        for p, before in self.state_before.items():
            if isinstance(before, dict):
                self.state[p].clear()
                self.state[p].update(before)

    @property
    def cells(self) -> list[Cell]:
        """The cells that the program has read."""
        return [cell for seen in self.seen for cell in seen.cells]

    @property
    def carried(self) -> list[tuple[int, Any]]:
        """Items of the groups, by id and name, that the graph does not keep: each call
        reads them, or assigns to them first. And the groups as a whole, since :meth:`reads`
        has what is kept."""
        kept = [{name for name, _ in seen.constants()} for seen in self.seen]
        items = [
            (id(seen.group), n)
            for seen, names in zip(self.seen, kept, strict=True)
            for n in seen.group
            if n not in names
        ]
        return [*items, *((id(seen.group), WHOLE) for seen in self.seen)]

    def _state_holds(self) -> bool:
        state = self.optimizer.state
        return list(map(id, state)) == list(map(id, self.own_state)) and all(
            same(state[p], s) for p, s in self.state_before.items()
        )

    def refuse_replaced(self) -> None:
        """Refuse groups that are added, and state that is loaded."""
        groups = self.optimizer.param_groups
        if (
            groups is not self.groups
            or self.optimizer.state is not self.state
            or list(map(id, groups)) != list(map(id, self.seen))
        ):
            raise RuntimeError(
                f"the program adds a group to its {self.name}, or loads its state. "
                f"Do that outside of the jitted function.{self.stepped_at}"
            )
        for seen in self.seen:
            seen.changes()
        if not all(map(same, self.own_groups, self.groups_before)):
            raise RuntimeError(
                f"the program changes a group of its {self.name} that it has from before "
                f"the call. Let it find the group in param_groups.{self.stepped_at}"
            )

    def assigned(self) -> list[tuple[Assigned, Any]]:
        """The numbers that the program assigns to items of groups."""
        found = [
            (Assigned(own, name), x)
            for own, g in zip(self.own_groups, self.seen, strict=True)
            for name, x in g.changes().items()
        ]
        for place, x in found:
            if isinstance(x, torch.Tensor):
                raise RuntimeError(
                    f"the program assigns a tensor to {place.name!r} "
                    f"of a group of its {self.name}. Assign a number, "
                    "or make the item a tensor outside and let the program write to it by copy_()."
                    f"{computed_at(x) or self.stepped_at}"
                )
        return found

    def made(self) -> list[tuple[StatePlace, Any]]:
        """The state that the program has made. ``RuntimeError`` for state that is no tensor and
        changes, and for state that it drops."""
        found = []
        state = self.optimizer.state
        for p, s in state.items():
            old = self.state_before.get(p, {})
            if not isinstance(s, dict):
                raise RuntimeError(
                    f"the state of {self.name} has a {type(s).__name__} for "
                    f"a parameter, and no dictionary.{self.stepped_at}"
                )
            for name, x in s.items():
                if isinstance(x, Value) and x._level.number:
                    found.append((StatePlace(self.optimizer, p, name), x))
                elif not same(x, old.get(name, MISSING)):
                    raise RuntimeError(
                        f"the program, or its {self.name}, keeps {name!r}, "
                        f"of type {type(x).__name__}, in the optimizer's state, and changes it. "
                        "A graph would not do that. "
                        f"Keep it as a tensor, and change it in place.{self.stepped_at}"
                    )
        if any(
            p not in state or not set(old) <= set(state[p])
            for p, old in self.state_before.items()
            if isinstance(old, dict)
        ):
            raise RuntimeError(
                f"the program drops state of its {self.name}. "
                f"Do that outside of the jitted function.{self.stepped_at}"
            )
        return found

    def reads(self) -> list[Read]:
        """What the program has found in it. Called after :meth:`restore`."""
        optimizer, groups, state = self.optimizer, self.groups, self.state
        found = [Read(vars(optimizer), "param_groups", groups), Read(groups, WHOLE, list(groups))]
        if self.cells:
            found.append(Read(Slots(Kinds(self.cells)), "floats", True))
        for seen in self.seen:
            found += [Read(seen.group, name, x) for name, x in seen.constants()]
            found.append(Read(seen.group["params"], WHOLE, seen.parameters))
        if not self.stepped:
            return found
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        found += [Read(vars(optimizer), "state", state), *(Read(h, WHOLE, h.copy()) for h in hooks)]
        for p in (p for seen in self.seen for p in seen.parameters):
            kept = self.state_before.get(p)
            found.append(Read(state, p, state[p] if kept is not None else MISSING))
            found += [Read(state[p], name, x) for name, x in (kept or {}).items()]
        return found


class Optimizers:
    """The optimizers that one run of a program uses. ``numbers``: those of the jitted function.
    ``known``: those that may be used. If the program steps another one, that is :class:`Unknown`,
    unless the program ``makes`` optimizers: ``unseen`` are those not known then."""

    def __init__(self, numbers: Numbers, known: Known, makes: bool = False) -> None:
        self.numbers = numbers
        self.makes = makes
        self.unseen: list[ref[Optimizer]] = []
        self.scaler: GradScaler | None = None  # one that the program has given a scale
        self._known = [o for o in known.optimizers if {"param_groups", "state"} <= vars(o).keys()]
        self._schedulers = [(s, dict(vars(s))) for s in known.schedulers]
        self._watched: dict[int, Watched] = {}
        self._read: dict[fx.Node, Number] = {}
        self._thread = threading.get_ident()

    def __enter__(self) -> Optimizers:
        self._handle = register_optimizer_step_pre_hook(self._begin)
        self._watched = {id(o): Watched(o, self) for o in self._known}
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._handle.remove()
        for watched in self._watched.values():
            watched.restore(kind is not None)
        for scheduler, before in self._schedulers if kind is not None else ():
            vars(scheduler).update(before)

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return  # another thread's program
        self.scaler = self.scaler or made_in_capture()
        watched = self._watched.get(id(optimizer))
        if watched is not None:
            watched.stepped, watched.stepped_at = True, here()
        elif self.makes:
            self.unseen.append(ref(optimizer))
        else:
            raise Unknown(ref(optimizer))

    def number(self, cell: Cell) -> Any:
        """The number in ``cell``, as the program sees it."""
        number = cell.tensor.item()
        known = number_of(number)
        for node in known.sources if known is not None else ():
            self._read[node] = id(cell.group), cell.name, cell.at
        return number

    @property
    def opened(self) -> list[Number]:
        """The numbers of groups that the program has read from cells."""
        return list(self._read.values())

    def pinned(self, error: AskedForNumber) -> list[Number]:
        """The numbers of groups for whose values the program has asked."""
        return [self._read[n] for n in error.number.sources if n in self._read]

    @property
    def used(self) -> list[Watched]:
        """Those that the program has used, beside their parameters."""
        for watched in self._watched.values():
            watched.refuse_replaced()
        return [w for w in self._watched.values() if w.used]


def put(places: Sequence[StatePlace], tensors: Sequence[Any]) -> None:
    """Put the state that a program has made where it belongs."""
    for place, t in zip(places, tensors, strict=True):
        place.optimizer.state[place.parameter][place.name] = t
