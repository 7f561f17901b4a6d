"""What a guard asks of the tensors that a program closes over, of all at once.

    outside = OutsideTensors.of(tensors, kinds, tracked)
    outside.conditions(constant)        # ["list(map(data_ptr, c1)) == c2", …]
    outside.leaves, outside.plain       # what a call gives to the program and to its graph

The tensors are the same in each call. What they say of themselves may be another. Sizes, strides,
dtypes, devices and ``requires_grad`` of ``compared`` are asked by the guard, beside those of
arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch

from ...seam.shells import VALUES
from ...session.leaf import as_leaf
from ...session.tensor import SESSION, Tensor
from .arguments import Kind, kind_of

PLAIN = (torch.Tensor, torch.nn.Parameter)
_is, _data_ptr = operator.is_, torch.Tensor.data_ptr
_inner, _req, _edge, _view = map(operator.attrgetter, ("_inner", "_req", "_edge", "_view"))


def has_plain_geometry(tensor: torch.Tensor) -> bool:
    """Return whether torch's guards in C++ know all that a graph depends on of ``tensor``."""
    return tensor.layout is torch.strided and type(tensor) in PLAIN


class OutsideTensors:
    """``leaves`` and ``plain``: see :class:`~.arguments.Call`. ``targets``: the leaves whose
    gradient is wanted. ``compared``: tensors whose geometry the guard asks for."""

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked
        self.leaves: list[Any] = []
        self.plain: list[Any] = []
        self.targets: list[Any] = []
        self.compared: list[torch.Tensor] = []
        # tensors of torch's behind a leaf, which shows their memory, and what the leaves hold
        self._shown: list[torch.Tensor] = []
        self._aliases: set[int] = set()
        self._values: list[Tensor] = []
        self._wanted: list[bool] = []  # of each of `_values`
        # of a layout or class of its own: what is asked, with its kind
        self._others: list[tuple[torch.Tensor, Kind]] = []
        self._undetermined: list[torch.Tensor] = []  # others, and whether each requires grad
        self._flags: list[bool] = []

    @classmethod
    def of(
        cls, tensors: Sequence[torch.Tensor], kinds: Sequence[Kind], tracked: bool
    ) -> OutsideTensors | None:
        """Return the questions about ``tensors``, of the kinds ``kinds``. None if only the general
        way can tell."""
        found = cls(tracked)
        for tensor, kind in zip(tensors, kinds, strict=True):
            add = found._add_value if type(tensor) in VALUES else found._add_plain
            if not add(tensor, kind):
                return None
        return found

    def conditions(self, constant: Callable[[Any], str], sharing: bool) -> list[str]:
        """Write the questions as Python source. ``constant``: gives an object a name. ``sharing``:
        whether it matters which tensors share memory, so that each must be where it is."""
        found = []
        if self._values:
            found += self._of_values(constant)
        for t, kind in self._others:
            found.append(
                f"{constant(kind_of)}({constant(t)}, {kind[0]}, False) == {constant(kind)}"
            )
        found += [
            f"{constant(t)}.requires_grad is {flag}"
            for t, flag in zip(self._undetermined, self._flags, strict=True)
        ]
        placed = self._shown
        if sharing:
            placed = [*placed, *(t for t in self.plain if id(t) not in self._aliases)]
        if placed:
            pointers = constant([tensor.data_ptr() for tensor in placed])
            found.append(f"list(map({constant(_data_ptr)}, {constant(placed)})) == {pointers}")
        return found

    def _of_values(self, constant: Callable[[Any], str]) -> list[str]:
        values, same = constant(self._values), constant(_is)
        inner = constant([v._inner for v in self._values])
        found = [f"all(map({same}, map({constant(_inner)}, {values}), {inner}))"]
        if self.tracked:
            wanted, none = constant(self._wanted), f"{constant(repeat)}(None)"
            found.append(f"all(map({same}, map({constant(_req)}, {values}), {wanted}))")
            found += [
                f"all(map({same}, map({constant(part)}, {values}), {none}))"
                for part in (_edge, _view)
            ]
        return found

    def _add_value(self, tensor: Any, kind: Kind) -> bool:
        if tensor._level is not SESSION or tensor._edge is not None or tensor._view is not None:
            return False  # its history may change
        self._values.append(tensor)
        self._wanted.append(bool(kind[0]))
        self._add(tensor, tensor._inner, bool(kind[0]))
        self._ask_geometry(tensor._inner, kind)
        return True

    def _add_plain(self, tensor: torch.Tensor, kind: Kind) -> bool:
        wanted = bool(kind[0])
        if wanted and tensor.layout is not torch.strided:
            return False  # a guard of its own for each layout would not pay
        known = self._ask_geometry(tensor, kind)
        if self.tracked and not known:  # else the guard in C++ compares `requires_grad`
            self._undetermined.append(tensor)
            self._flags.append(wanted)
        if not wanted:
            self._add(tensor, tensor, False)
            return True
        leaf: Any = as_leaf(tensor)
        self._shown.append(tensor)
        self._aliases.add(id(leaf._inner))
        self._add(leaf, leaf._inner, True)
        return True

    def _add(self, leaf: object, inner: torch.Tensor, wanted: bool) -> None:
        self.leaves.append(leaf)
        self.plain.append(inner)
        if wanted:
            self.targets.append(leaf)

    def _ask_geometry(self, tensor: torch.Tensor, kind: Kind) -> bool:
        """Ask for all that ``kind`` says of ``tensor``. Whether the guard in C++ can."""
        if has_plain_geometry(tensor):
            self.compared.append(tensor)
            return True
        self._others.append((tensor, kind))
        return False
