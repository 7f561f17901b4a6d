"""Write the questions of a guard about the tensors that a program closes over, all at once.

    outside = OutsideTensors.of(tensors, kinds, tracked)
    outside.conditions(constant)        # ["c1.requires_grad is True", …]
    outside.leaves, outside.plain       # what a call passes to the program and to its graph

The tensors are the same in each call, but their facts may change. ``compared`` are those of whose
geometry :mod:`.plain_tensors` asks: sizes, strides, dtypes, devices and ``requires_grad``.
"""

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
from .plain_tensors import has_plain_geometry

_is = operator.is_
_inner, _req, _edge, _view = map(operator.attrgetter, ("_inner", "_req", "_edge", "_view"))


class OutsideTensors:
    """Collect the tensors that a program closes over, by the questions that a guard asks."""

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked
        # see :class:`~.arguments.Call`, which has leaves and plain tensors of arguments
        self.leaves: list[Any] = []
        self.plain: list[Any] = []
        # the leaves whose gradient is wanted
        self.targets: list[Any] = []
        # tensors whose geometry the guard compares
        self.compared: list[torch.Tensor] = []
        # tensors of torch that are leaves of the session too; the leaves hold aliases of the memory
        # of now, so the guard asks where the tensors themselves lie
        self._shown: list[torch.Tensor] = []
        self._aliases: set[int] = set()
        # tensors of the session, and whether the gradient of each is wanted
        self._values: list[Tensor] = []
        self._wanted: list[bool] = []
        # tensors of a layout or a class that the guard in C++ does not know, with their kinds
        self._others: list[tuple[torch.Tensor, Kind]] = []
        # the plain ones among these, and whether each requires grad
        self._undetermined: list[torch.Tensor] = []
        self._flags: list[bool] = []

    @classmethod
    def of(
        cls, tensors: Sequence[torch.Tensor], kinds: Sequence[Kind], tracked: bool
    ) -> OutsideTensors | None:
        """Return the questions about ``tensors``, of the kinds ``kinds``.

        None if only the general way can decide.
        """
        outside = cls(tracked)
        for tensor, kind in zip(tensors, kinds, strict=True):
            add = outside._add_plain
            if type(tensor) in VALUES:
                add = outside._add_value
            if not add(tensor, kind):
                return None
        return outside

    def conditions(self, constant: Callable[[Any], str]) -> list[str]:
        """Write the questions as Python source. ``constant``: gives an object a name."""
        questions = []
        if self._values:
            questions += self._conditions_of_values(constant)
        for tensor, kind in self._others:
            questions.append(
                f"{constant(kind_of)}({constant(tensor)}, {kind[0]}, False) == {constant(kind)}"
            )
        questions += [
            f"{constant(tensor)}.requires_grad is {flag}"
            for tensor, flag in zip(self._undetermined, self._flags, strict=True)
        ]
        return questions

    def placed(self, sharing: bool) -> list[torch.Tensor]:
        """List the tensors that must be where they are now: they may get other memory.

        ``sharing``: whether it matters which tensors share memory.
        """
        if not sharing:
            return self._shown
        return [*self._shown, *(tensor for tensor in self.plain if id(tensor) not in self._aliases)]

    def _conditions_of_values(self, constant: Callable[[Any], str]) -> list[str]:
        """Write the questions about tensors of the session: are they leaves as they were?"""
        values, same = constant(self._values), constant(_is)
        inner = constant([value._inner for value in self._values])
        questions = [f"all(map({same}, map({constant(_inner)}, {values}), {inner}))"]
        if self.tracked:
            wanted, none = constant(self._wanted), f"{constant(repeat)}(None)"
            questions.append(f"all(map({same}, map({constant(_req)}, {values}), {wanted}))")
            questions += [
                f"all(map({same}, map({constant(part)}, {values}), {none}))"
                for part in (_edge, _view)
            ]
        return questions

    def _add_value(self, tensor: Any, kind: Kind) -> bool:
        """Add a tensor of the session. False if it is no leaf, as its history may change."""
        if tensor._level is not SESSION or tensor._edge is not None or tensor._view is not None:
            return False
        # the tensor itself may change: whether it requires grad, and its memory
        self._values.append(tensor)
        self._wanted.append(bool(kind[0]))
        self._add(tensor, tensor._inner, bool(kind[0]))
        self._ask_geometry(tensor._inner, kind)
        return True

    def _add_plain(self, tensor: torch.Tensor, kind: Kind) -> bool:
        """Add a tensor of torch. False if only the general way can decide."""
        wanted = bool(kind[0])
        if wanted and tensor.layout is not torch.strided:
            return False  # a guard of its own for each layout would not pay
        is_compared = self._ask_geometry(tensor, kind)
        # the guard in C++ compares `requires_grad` of the others
        if self.tracked and not is_compared:
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
        """Add a tensor to what a call passes on."""
        self.leaves.append(leaf)
        self.plain.append(inner)
        if wanted:
            self.targets.append(leaf)

    def _ask_geometry(self, tensor: torch.Tensor, kind: Kind) -> bool:
        """Ask for all that ``kind`` says of ``tensor``. Return whether the guard in C++ can."""
        if has_plain_geometry(tensor):
            self.compared.append(tensor)
            return True
        self._others.append((tensor, kind))
        return False
