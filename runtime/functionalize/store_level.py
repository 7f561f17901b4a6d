"""Hold the values of a functionalize level: views of stores, and what writes make of these.

A :class:`FunctionalValue` is a view of a :class:`Store`, or the whole of it. The store has the
present value of one base. A write runs the functional form of the op, puts the result into the base
through the views between them, and increments the generation of the memory. Any other view notices
this when it is next read, and computes its value again. Example: after ``v = x[0]; v.mul_(2)`` the
base of ``x`` is ``select_scatter(x, 2 * x[0], 0, 0)``.

``b.detach()`` shares the memory of ``b`` but not its history. So it is a view of a second store of
the same :class:`Memory`. A write through one store changes the numbers of the other store, but not
its history at outer levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..seam.call_types import Kernel
from ..seam.levels import Level
from ..seam.memory_gate import address_of
from ..seam.nested_views import view_of
from ..seam.shells import faithful_shell
from ..seam.user_code import settled
from ..trace.provenance import user_line
from .functional_value import FunctionalValue, Place
from .memory_order import laid_out_as
from .overlap import overlaps, refuse_gaps, same_start, same_strides, through_copy
from .stores import (
    Chain,
    Store,
    WriteWatch,
    agree,
    has_history,
    refuse_overlapping_piece,
    refuse_recorded_write,
    refuse_restrided,
    refuse_taken,
)
from .writes import WrittenBack, copying_form, put_back

aten = torch.ops.aten


class StoreLevel(Level):
    """A level whose values are views of stores. ``views``: whether views are replaced by copies,
    too."""

    __slots__ = ("closed_over", "held", "overlapped", "overtaken", "views", "watches")

    def __init__(self, views: bool) -> None:
        super().__init__()
        self.views = views
        # by id, the values of tensors from outside, and these tensors with their stores
        self.closed_over: dict[int, FunctionalValue] = {}
        self.held: list[tuple[torch.Tensor, Store]] = []
        # each is told of every write
        self.watches: list[WriteWatch] = []
        # values that a store took of another store of its memory, in place of its own
        self.overtaken: list[torch.Tensor] = []
        # whether a write went through a view that shows an element several times
        self.overlapped = False

    def wrap(self, inner: torch.Tensor, place: Place | None = None, /) -> FunctionalValue:
        """Return the value at ``place``. None: the base of a new store."""
        value: FunctionalValue = faithful_shell(FunctionalValue, inner)
        value._level = self
        value._inner = inner
        value._store, value._chain, value._unrecorded = place or Place(Store(inner))
        # up to date now: a later write raises the generation of the memory
        value._seen = value._store.memory.generation
        return value

    def valued(self, result: Any) -> Any:
        """Return the result of a call as a value, with memory of its own that the program has
        created."""
        if not isinstance(result, torch.Tensor):
            return super().valued(result)
        value = self.wrap(result)
        value._store.memory.made_inside = True
        return value

    def present(self, store: Store) -> torch.Tensor:
        """Return the present value of ``store``. Writes through other stores of its memory change
        the value, and are not in its history."""
        memory = store.memory
        if memory.pieces or memory.part_of is not None:
            agree(memory, self)
        old = store.value
        if old is not None and store.seen == memory.generation:
            return old
        # a store with a history keeps that, and takes over the numbers alone
        value: torch.Tensor
        if old is None or not has_history(old):
            value = self.view_op(aten.detach.default)(memory.value)
        else:
            # the clone has the history, and a write to its detached alias changes its numbers
            with torch.enable_grad():
                value = old.clone()
            value.detach().copy_(memory.value.detach())
        # a store without a value is that of detach(), and takes its first one here
        if old is not None:
            self.overtaken.append(value)
        store.value = value
        store.seen = memory.generation
        return value

    def read(self, value: FunctionalValue) -> torch.Tensor:
        """Return the present tensor of ``value``: a later write may have changed its memory."""
        memory = value._store.memory
        if memory.pieces or memory.part_of is not None:
            agree(memory, self)
        generation = memory.generation
        if value._seen != generation:
            tensor = self.present(value._store)
            refuse_restrided(memory, value._chain)
            # the result is stored, and the first read may come under no_grad
            with torch.set_grad_enabled(not value._unrecorded):
                tensor = self.viewed(tensor, value._chain)
            value._inner = tensor
            value._seen = generation
        return value._inner

    def write(self, value: FunctionalValue, new: torch.Tensor, counted: bool = True) -> None:
        """Make ``new`` the value of ``value``, and put it into the base of ``value``. ``counted``:
        whether the write increments the version."""
        # a kernel converts what it writes, and a functional form returns what it has computed
        if new.dtype is not value.dtype:
            new = new.to(value.dtype)
        if new.shape != value.shape:
            raise settled(
                RuntimeError(
                    f"output with shape {list(value.shape)} doesn't match the broadcast "
                    f"shape {list(new.shape)}"
                )
            )
        refuse_restrided(value._store.memory, value._chain)
        self._replace(value, self.put_back(value._chain, self.present(value._store), new), counted)

    def _replace(self, value: FunctionalValue, new: torch.Tensor, counted: bool) -> None:
        """Make ``new`` the value of the base of ``value``."""
        store = value._store
        refuse_taken(store.memory)
        refuse_overlapping_piece(store.memory)
        old = self.present(store)
        recorded = torch.is_grad_enabled()
        if value._unrecorded and recorded:
            refuse_recorded_write(old, new)
        if not recorded and has_history(old):  # only the numbers change, not the history
            with torch.enable_grad():
                copied = old.clone()
            new = copied.copy_(new)
        # the functional op may lay its result out otherwise; as_strided refuses such a memory
        memory = store.memory
        memory.restrided = memory.restrided or not same_strides(old, new)
        memory.moved = memory.moved or not same_start(old, new)
        # views are taken anew when somebody reads them, as their generation is an old one
        store.value = new
        store.recorded = store.recorded or recorded
        store.count(counted)
        store.memory.value = new
        store.memory.written_at = user_line()
        store.memory.generation += 1
        store.seen = store.memory.generation
        for watch in self.watches:
            watch.note(store.memory)

    def viewed(self, base: torch.Tensor, chain: Chain) -> torch.Tensor:
        """Return the view of ``base`` to which ``chain`` leads."""
        for func, rest, kwargs, which in chain:
            out = view_of(self.view_op(func), base, rest, kwargs)
            base = out if which is None else out[which]
        return base

    def put_back(self, chain: Chain, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return ``old`` with ``new`` in the place that ``chain`` shows."""
        refuse_gaps(old, chain)
        if overlaps(old, chain):
            self.overlapped = True
            return through_copy(old, chain, lambda part, copy: part.copy_(new))
        # the view of each step, and then each put back into the one before, from the inside out
        bases = [old]
        for step in chain[:-1]:
            bases.append(self.viewed(bases[-1], (step,)))
        for (func, rest, kwargs, which), base in zip(
            reversed(chain), reversed(bases), strict=bool(chain)
        ):
            new = put_back(func, base, new, which, rest, kwargs, self.views)
        return laid_out_as(old, new)

    def overtakes(self, address: int) -> bool:
        """Return whether the program has written to the storage at ``address``."""
        return any(
            store.memory.generation and address_of(tensor) == address for tensor, store in self.held
        )

    def has_written(self, value: Any) -> bool:
        """Return whether the program has written to the memory of ``value``."""
        return bool(value._store.memory.generation)

    def settle(self, stores: Iterable[Store]) -> None:
        """Bring the memories of ``stores`` to what was written to pieces of them, when the
        program has returned."""
        for store in stores:
            agree(store.memory, self)

    def written_back(
        self, store: Store, turns: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()
    ) -> WrittenBack:
        """Return what the program has written to ``store``. ``turns``: the calls that have changed
        its geometry."""
        value = self.present(store) if store.memory.generation else None
        return WrittenBack(value, store.recorded, store.counter[0] > len(turns), turns)

    def own(self, tensor: torch.Tensor) -> FunctionalValue:
        """Return ``tensor`` as a value of this level. For a closed-over tensor always the same
        value: later reads see writes to it, and they are carried out at the end."""
        if isinstance(tensor, FunctionalValue) and tensor._level is self:
            return tensor
        value = self.closed_over.get(id(tensor))
        if value is None:
            value = self.closed_over[id(tensor)] = self.wrap(tensor)
            # also so that nothing else gets the id while the level lives
            self.held.append((tensor, value._store))
        return value

    def lowered(self, argument: Any) -> Any:
        """Return the present value of ``argument`` if it is a value of this level, or a closed-over
        tensor that the program has viewed or written to. Else ``argument``."""
        if isinstance(argument, torch.Tensor):
            if isinstance(argument, FunctionalValue) and argument._level is self:
                return self.read(argument)
            value = self.closed_over.get(id(argument))
            # a tensor from outside that nobody has written to is its own value
            if value is not None:
                return self.read(value)
        return argument

    def lowered_args(self, args: Iterable[Any]) -> list[Any]:
        """Return the arguments of a call, and the elements of lists among them, each
        :meth:`lowered`."""
        return [
            list(map(self.lowered, argument))
            if isinstance(argument, (list, tuple))
            else self.lowered(argument)
            for argument in args
        ]

    def view_op(self, func: Kernel) -> Any:
        """Return ``func``, a view op, or its copying form if views are to be removed."""
        if self.views:
            return copying_form(func)
        return func

    def write_each(self, target: Any, new: Any, counted: bool = True) -> None:
        """Make ``new`` the value of ``target``, or of each in a list. Nothing is written to an
        optional argument that is None. ``counted``: see :meth:`write`."""
        if isinstance(target, (list, tuple)):
            for part, value in zip(target, new, strict=True):
                self.write_each(part, value, counted)
        elif target is not None:
            self.write(self.own(target), new, counted)
