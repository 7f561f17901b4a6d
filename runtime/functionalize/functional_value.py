"""The value of a functionalize level: a view of a store, or the whole of it.

    v = x[0]                # Place(store of x, chain of one view)

:class:`.functional_level.FunctionalLevel` makes the values and reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..errors import called_from, refuse_data_write
from ..seam.levels import Value
from .stores import Chain, Store

aten = torch.ops.aten


class Place(NamedTuple):
    """The place of a value: a store and the views that lead from its base to the value.
    ``unrecorded``: one of them was made under no_grad."""

    store: Store
    chain: Chain = ()
    unrecorded: bool = False


class FunctionalValue(Value):
    """A view of a store. ``_inner`` is its value at generation ``_seen``. ``StoreLevel.read``
    returns its present value."""

    _level: Any  # a FunctionalLevel
    _store: Store
    _chain: Chain
    _seen: int
    _unrecorded: bool

    @property
    def is_current(self) -> bool:
        """Return whether nothing was written to its memory since the value was read."""
        memory = self._store.memory
        is_alone = not memory.pieces and memory.part_of is None
        return is_alone and self._seen == memory.generation

    @property
    def _version(self) -> int:  # type: ignore[override]
        return self._store.version

    def count_write(self) -> None:
        self._store.count(True)

    @property
    def data(self) -> Any:
        # the same memory without the history, and with a version of its own, as in torch
        value = aten.detach.default(self)
        value._store.counter = [0]
        return value

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        refuse_data_write()

    def numpy(self, *, force: bool = False) -> Any:
        """As ``torch.Tensor.numpy``. The array has the memory of the present value, so no later
        write of the program may change that."""
        array = super().numpy(force=force)
        self._store.memory.taken = called_from()
        return array

    def _text(self) -> str:
        return f"FunctionalValue(level={self._level.number}, {self._level.read(self)!r})"
