"""Store the bases of which the values of the functionalize level are views.

    y.unsafe_chunk(2)[0].mul_(2)        # changes the numbers of y, and nobody's history

The results of ``unsafe_split`` share memory with its argument. A program seldom uses both, so each
result is a memory of its own here. The numbers go from one to the other when a memory is used after
the other one was written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

import torch

from ..errors import InplaceError
from ..seam.levels import Value
from ..tape.values import GradValue, edge_of
from ..trace.provenance import Line, here, user_line
from .overlap import ViewCall, has_gaps, shows_twice

# Ops whose results share memory with the argument although their schemas do not say so, and the
# views that they are.
UNSAFE = {
    torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default: torch.ops.aten.split_with_sizes.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.view.default,
}
# The views that lead from the base of a store to a value, the first view first.
Chain = tuple[ViewCall, ...]

_NUMBERS = count()


class Memory:
    """Memory that aliases share: how often it was written to, and the base's value
    after the last write."""

    __slots__ = (
        "generation",
        "inference",
        "made_inside",
        "moved",
        "number",
        "of_copies",
        "part_of",
        "pieces",
        "restrided",
        "taken",
        "value",
        "writes",
        "written_at",
    )

    def __init__(self, value: Any) -> None:
        self.value = value
        self.generation = 0  # how often it was written to
        self.written_at: Line | None = None  # the user's line of the last write
        # greater than that of any memory that was seen before; watches count with it
        self.number = next(_NUMBERS)
        # whether a result of the program's ops has it
        self.made_inside = False
        # whether the tensor is one of inference mode, which writes do not change
        self.inference = torch.is_inference_mode_enabled() and _is_inference(value)
        # whether the value has other strides than the memory, which a write leaves as they are
        self.restrided = False
        # whether the value begins at another place of its storage than the memory
        self.moved = False
        # whether its strides may come of a copy that stands for a view
        self.of_copies = False
        # where the program took its memory as an array
        self.taken: str | None = None
        # what it was split into by `unsafe_split`, and of what it is a piece
        self.pieces: list[Pieces] = []
        self.part_of: Pieces | None = None
        # for arguments with histories of their own, how often one of them was written to: what is
        # saved of the others is then no more what it was
        self.writes: int | None = None

    def is_at(self, generation: int) -> bool:
        """Return whether it was written to so often, and not by way of a piece or of a whole."""
        return self.generation == generation and not self.pieces and self.part_of is None

    @property
    def whole(self) -> Memory:
        """Return the memory that this one is a piece of a piece of, or this one."""
        if self.part_of is None:
            return self
        return self.part_of.store.memory.whole


def is_written_in_part(memory: Memory) -> bool:
    """Return whether a piece of ``memory``, or a piece of one, was written to."""
    return any(
        piece.generation or is_written_in_part(piece)
        for pieces in memory.pieces
        for piece in pieces.memories
    )


class WriteWatch:
    """Watch for a write to a memory that is older than the watch, while it is one of the watches
    of the level. ``found``: whether there was one."""

    __slots__ = ("found", "number")

    def __init__(self) -> None:
        self.number = next(_NUMBERS)
        self.found = False

    def note(self, memory: Memory) -> None:
        """Look at a write to ``memory``."""
        # a tensor from outside is older than any watch, also if the program meets it later
        whole = memory.whole
        if not whole.made_inside or whole.number < self.number:
            self.found = True


def _is_inference(t: torch.Tensor) -> bool:
    while isinstance(t, Value):
        t = t._inner
    return bool(t.is_inference())


class Store:
    """The base of aliases that share a history, and its value."""

    __slots__ = ("counter", "memory", "recorded", "seen", "value")

    def __init__(self, value: torch.Tensor | None, source: Store | None = None) -> None:
        # the value at generation ``seen``
        self.value = value
        self.memory: Memory
        # the version, in a list that ``detach()`` shares and ``.data`` does not
        self.counter: list[int]
        if source is None:
            self.memory, self.counter = Memory(value), [0]
        else:
            self.memory, self.counter = source.memory, source.counter
        self.seen = -1  # smaller than any generation: there is no value yet
        if value is not None:
            self.seen = self.memory.generation
        # whether a write went through this store with grad mode
        self.recorded = False

    @property
    def version(self) -> int:
        """Return the version of the tensors of this base."""
        if self.memory.writes is None:
            return self.counter[0]
        return self.memory.writes

    def count(self, counted: bool) -> None:
        """Count a write. ``counted``: whether it advances the version of the tensor
        that is written to."""
        self.counter[0] += counted
        if self.memory.writes is not None:
            self.memory.writes += 1


class Pieces:
    """The results of one ``unsafe_split``, at the places that ``chain`` shows in the base of
    ``store``.

    Either some pieces have been written to since the numbers last agreed, or the whole has, never
    both.
    """

    __slots__ = ("chain", "memories", "overlap", "seen", "several", "store", "whole_seen")

    def __init__(
        self, store: Store, chain: Chain, memories: Sequence[Memory], several: bool = True
    ) -> None:
        # whether the op has a list of results, which ``_unsafe_view`` has not
        self.several = several
        self.store = store
        self.chain = chain
        self.memories = list(memories)
        # whether a piece shows an element of memory several times
        self.overlap = any(shows_twice(memory.value) for memory in self.memories)
        self.seen = [0] * len(self.memories)
        self.whole_seen = store.memory.generation
        # both ways: a write to either side is looked for from the other one
        for memory in self.memories:
            memory.part_of = self
        store.memory.pieces.append(self)

    def place(self, index: int) -> Chain:
        """Return the views that lead from the base of the whole to piece ``index``."""
        call = self.chain[-1]
        if self.several:
            call = call._replace(which=index)
        return (*self.chain[:-1], call)


def refuse_taken(memory: Memory) -> None:
    """Refuse a write to memory that the program has taken as an array."""
    if memory.taken is not None:
        raise InplaceError(
            "the program writes to a tensor whose memory it has taken as an array, which "
            "would not show the write. Let it read the elements by tolist(). "
            f"The array was taken{memory.taken}"
        )


def refuse_recorded_write(old: torch.Tensor, new: torch.Tensor) -> None:
    """Refuse a recorded write to a view whose history would be needed, and that has none."""
    if has_gradient(old) or has_gradient(new):
        raise RuntimeError(
            "A view was created in no_grad mode and is being "
            "modified inplace with grad mode enabled. "
            "Make the view and write to it both inside the no_grad block, or both outside."
        )


def refuse_overlapping_piece(memory: Memory) -> None:
    """Refuse a write to a piece that shows an element several times, of which the kernel writes
    each place in turn."""
    if memory.part_of is not None and memory.part_of.overlap:
        raise InplaceError(
            "a write to a result of unsafe_split or unsafe_chunk that shows an element of its "
            f"memory several times, as unfold does. Use split or chunk.{here()}"
        )


def refuse_restrided(memory: Memory, chain: Chain) -> None:
    """Refuse ``as_strided`` of a value that has, after a write, other strides than the memory, or
    other elements between its own, or another place to count an offset from."""
    # other views count elements, and only this one counts places of memory
    calls = [call for call in chain if call.func is torch.ops.aten.as_strided.default]
    if not calls:
        return
    if memory.moved and any(_names_offset(call.rest, call.kwargs) for call in calls):
        raise InplaceError(
            "as_strided with a storage_offset, of a tensor that does not begin where its storage "
            "does, and to which the program has written. Leave the offset out, or take a part by "
            f"narrow or by an index.{here()}"
        )
    if memory.restrided or (memory.generation and has_gaps(memory.value)):
        raise InplaceError(
            "as_strided of a tensor with gaps, which the program has written to. "
            f"Take as_strided of the tensor that it is a view of, or of a contiguous copy.{here()}"
        )


def _names_offset(rest: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Return whether a call of ``as_strided`` names a place of the storage."""
    if len(rest) > 2:
        return rest[2] is not None
    return kwargs.get("storage_offset") is not None


class Views(Protocol):
    """Take the part of a base that a chain shows, and put another value there."""

    def viewed(self, base: torch.Tensor, chain: Chain) -> torch.Tensor:
        """Return the part of ``base`` that ``chain`` shows."""
        ...

    def put_back(self, chain: Chain, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return ``old`` with ``new`` in the place that ``chain`` shows."""
        ...


def agree(memory: Memory, views: Views) -> None:
    """Bring the numbers of ``memory`` to what was written to pieces of it, and to what
    it is a piece of."""
    # Only numbers go from one to the other, no history. The wholes of `memory` come first: to fetch
    # from them writes over `memory`, also over what was collected.
    with torch.no_grad():
        _fetch(memory, views)
        _collect(memory, views)


def _fetch(memory: Memory, views: Views) -> None:
    """Bring ``memory`` to what it is a piece of, after that to what it is a piece of itself, and
    so on. A loop, because a program may take pieces of pieces thousands of times."""
    within: list[Pieces] = []
    while memory.part_of is not None:
        within.append(memory.part_of)
        memory = memory.part_of.store.memory
    for own in reversed(within):
        whole = own.store.memory
        # what its other pieces have written is a part of the whole first
        _collect(whole, views, own)
        if whole.generation != own.whole_seen:
            for index, piece in enumerate(own.memories):
                piece.value = views.viewed(whole.value, own.place(index)).detach()
                piece.generation += 1
                own.seen[index] = piece.generation
            own.whole_seen = whole.generation


def _collect(whole: Memory, views: Views, but: Pieces | None = None) -> None:
    """Put what was written to pieces of ``whole`` into it, except to those of ``but``. What was
    written to pieces of a piece comes first."""
    order = [(whole, pieces) for pieces in whole.pieces if pieces is not but]
    for _, pieces in order:  # grows
        for piece in pieces.memories:
            order += [(piece, own) for own in piece.pieces]
    # the list has each piece before its own pieces, so its reverse goes from the inside out
    for memory, pieces in reversed(order):
        for index, piece in enumerate(pieces.memories):
            if piece.generation != pieces.seen[index]:
                memory.value = views.put_back(
                    pieces.place(index), memory.value.detach(), piece.value.detach()
                )
                memory.generation += 1
                pieces.seen[index], pieces.whole_seen = piece.generation, memory.generation


class Replaced:
    """A value that has got other memory by ``set_``."""

    __slots__ = ("chain", "count", "generation", "set_at", "store", "value", "version")

    def __init__(self, value: Any, store: Store, chain: Chain) -> None:
        self.value = value
        # with `chain` the first place of the value
        self.store = store
        self.chain = chain
        # how often that memory was written to before
        self.generation = store.memory.generation
        # how often the value has got memory, and its version after the last time
        self.count = self.version = 0
        # the user's line of the last time
        self.set_at: Line | None = None

    def by(self, source: Store, present: Any, version: int) -> Store:
        """Return a store of the memory of ``source``, whose value is ``present``, for the value
        that gets this memory."""
        self.count += 1
        self.version = version
        self.set_at = user_line()
        store = Store(None, source)
        store.value, store.seen, store.counter = present, source.memory.generation, [version]
        return store


def has_history(t: object) -> bool:
    """Return whether ``t`` has a history at an outer level that differentiates."""
    # a level that hides dimensions, such as a vmap, may be between two that differentiate
    while isinstance(t, Value) and (t._level.keeps_history or t._level.hidden):
        if t._level.keeps_history and not t._level.is_constant(t):
            return True
        t = t._inner
    return False


def has_gradient(t: object) -> bool:
    """Return whether ``t`` requires grad at an outer level."""
    while isinstance(t, Value):
        if isinstance(t, GradValue) and edge_of(t) is not None:
            return True
        t = t._inner
    return False
