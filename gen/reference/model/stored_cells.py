"""Memory, and the reading and writing of what a tensor shows of it.

    x = Stored.of([1.0, 2.0], (2,))
    x.elements()                        # [1.0, 2.0]

An element of a complex tensor is a pair of numbers, its parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gen.reference.model import chain_rule
from gen.reference.model.cell_geometry import Geometry, Refused, Shape
from gen.reference.model.chain_rule import Cell, Number

Element = Cell | tuple[Cell, Cell]
STEPS = {"real": 1, "bool": 1, "complex": 2}
"""How many cells an element has, by the kind of its tensor."""
_SIGNS = {False: 1.0, True: -1.0}


class _Recording:
    """Whether results know what they were computed from."""

    on = True


_RECORDING = _Recording()


@contextmanager
def recording(on: bool) -> Iterator[None]:
    """Let results have a history, or none, while entered."""
    before, _RECORDING.on = _RECORDING.on, on
    try:
        yield
    finally:
        _RECORDING.on = before


@dataclass(eq=False)
class Memory:
    """The cells of a base and its views."""

    cells: list[Cell]
    # the numbers by which one differentiates, of a tensor that was told to require grad
    leaves: list[Number] = field(default_factory=list)
    # False once a hook makes torch's behaviour at a later write unspecified
    writable: bool = True
    # Whether it has the elements of a new tensor in their order. Torch gives some results the order
    # of their arguments.
    is_ordered: bool = False

    @property
    def has_history(self) -> bool:
        return any(isinstance(cell, Number) for cell in self.cells)

    def write(self, place: int, cell: Cell) -> None:
        """Put a number into a cell."""
        if not _RECORDING.on:
            cell = chain_rule.value_of(cell)
            # A write under no_grad gives the same leaf a new value.
            if self.leaves:
                cell = chain_rule.with_slope(cell, self.leaves[place], 1.0)
        self.cells[place] = cell


@dataclass(eq=False)
class Stored:
    """A memory, and which of its cells are elements."""

    memory: Memory
    geometry: Geometry
    # real, complex or bool
    kind: str = "real"
    # whether cells are read and written with the other sign of the imaginary part
    conjugate: bool = False
    # whether cells are read and written with the other sign
    negative: bool = False
    # False for a tensor that was detached
    history: bool = True
    # the factors of the hooks of this tensor and of those of which it is a view
    hooks: tuple[list[float], ...] = ()

    # --- making -----------------------------------------------------------------------------------

    @classmethod
    def of(cls, elements: Sequence[Element], shape: Sequence[int], kind: str = "real") -> Self:
        """Return new memory with these elements."""
        cells: list[Cell] = []
        for element in elements:
            cells += parts_of(element)
        if not _RECORDING.on:
            cells = [*chain_rule.values_of(cells)]
        return cls(Memory(cells), Geometry.packed(tuple(shape), STEPS[kind]), kind)

    def in_order(self) -> Self:
        """Note that the elements of this new tensor lie in their order."""
        self.memory.is_ordered = True
        return self

    @property
    def is_in_order(self) -> bool:
        """Return whether the elements are those of a new tensor, one after another."""
        packed = Geometry.packed(self.shape, STEPS[self.kind])
        there = replace(packed, offset=self.geometry.offset)
        return self.memory.is_ordered and self.geometry.places() == there.places()

    def keeps_order_of(self, other: Stored) -> bool:
        """Return whether a result of both lies in the order of `other`: a number changes none."""
        return self.is_in_order and self.numel() in (1, other.numel())

    def requires_grad_(self) -> Self:
        """Make a leaf of a new tensor: its cells are numbers to differentiate by."""
        if self.memory.has_history or self.kind == "bool":
            raise Refused("a tensor with a history is no leaf")
        self.memory.leaves = list(map(Number, chain_rule.values_of(self.memory.cells)))
        self.memory.cells = list(self.memory.leaves)
        return self

    def _view(self, geometry: Geometry, **changes: Any) -> Self:
        """Return a tensor that shows cells of the same memory."""
        if not _RECORDING.on:
            # As in torch, a view that is made under no_grad has no history.
            changes = {"history": False, **changes}
        # The lists are shared, because a later hook of the base counts for the view too. The view's
        # own hooks go into a list that the base does not have.
        return replace(self, geometry=geometry, hooks=(*self.hooks, []), **changes)

    # --- reading and writing ----------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self.geometry.shape

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def size(self, dim: int) -> int:
        return self.shape[self.geometry.dim(dim)]

    def __len__(self) -> int:
        if not self.shape:
            raise Refused("a tensor without dimensions has no length")
        return self.shape[0]

    def numbers(self) -> list[Cell]:
        """Return the numbers of the elements in order, two of each complex one."""
        return list(itertools.chain.from_iterable(map(parts_of, self.elements())))

    def elements(self) -> list[Element]:
        """Return the elements in order."""
        return list(map(self._read, self.geometry.places()))

    @property
    def _signs(self) -> tuple[float, float]:
        """Return the factors from the cells of an element to its parts, real and imaginary."""
        sign = _SIGNS[self.negative]
        return sign, sign * _SIGNS[self.conjugate]

    def _read(self, place: int) -> Element:
        sign, sign_of_imaginary = self._signs
        if self.kind != "complex":
            return self._signed(place, sign)
        return self._signed(place, sign), self._signed(place + 1, sign_of_imaginary)

    def _signed(self, place: int, sign: float) -> Cell:
        cell = self.memory.cells[place]
        if not self.history or not _RECORDING.on:
            cell = chain_rule.value_of(cell)
        cell = chain_rule.scale(cell, sign)
        if not self.hooks or not isinstance(cell, Number):
            return cell
        # The factor is computed when a derivative is asked for, so hooks after this reading count.
        return chain_rule.computed(cell.value, (cell, self._factor))

    def _factor(self) -> float:
        """Return the product of the factors of all hooks."""
        return math.prod(itertools.chain.from_iterable(self.hooks))

    def _write(self, elements: Sequence[Element]) -> Self:
        """Replace the elements, and return the tensor."""
        places = self.geometry.places()
        self._require_writable(places, elements)
        for place, element in zip(places, elements, strict=True):
            signed = map(chain_rule.scale, parts_of(element), self._signs)
            for step, cell in enumerate(signed):
                self.memory.write(place + step, cell)
        return self

    def _require_writable(self, places: Sequence[int], elements: Sequence[Element]) -> None:
        """Refuse a write that torch refuses, or of which it does not say what it gives."""
        if not self.memory.writable:
            raise Refused("a write to what a function has returned")
        if self.kind == "bool" and not {*elements} <= {0.0, 1.0}:
            raise Refused("a truth is written to truths")
        if len(set(places)) < len(places):
            raise Refused("two elements of the tensor are one cell")
        if _RECORDING.on:
            self._require_recorded(elements)
        elif self.memory.has_history and not self.memory.leaves:
            raise Refused("a write that is not recorded is in no history")

    def _require_recorded(self, elements: Sequence[Element]) -> None:
        """Refuse a write that is in no history of those who share the memory."""
        if self.memory.leaves:
            raise Refused("a leaf is not written to")
        if self.history:
            return
        parts = itertools.chain.from_iterable(map(parts_of, elements))
        if self.memory.has_history or any(isinstance(part, Number) for part in parts):
            raise Refused("a write through a detached tensor is in no history")

    def _require_apart(self, *others: Stored) -> None:
        """Refuse a write to cells that are read at another element."""
        mine = self.geometry.places()
        for other in others:
            if other.memory is not self.memory:
                continue
            theirs = other.geometry.expand(self.shape).places()
            # A cell that is read and written at the same element is read first.
            if theirs != mine and set(theirs) & set(mine):
                raise Refused("cells are read at one element and written at another")


def parts_of(element: Element) -> tuple[Cell, ...]:
    """Return the cells of an element: one, or the two parts of a complex number."""
    return element if isinstance(element, tuple) else (element,)


def copy_of(element: Element) -> Element:
    """Return an element of new numbers, each computed from that of `element`."""
    if isinstance(element, tuple):
        return chain_rule.same(element[0]), chain_rule.same(element[1])
    return chain_rule.same(element)
