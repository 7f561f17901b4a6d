"""The memory of tensors that a traced program closes over, and of its arguments.

A trace runs the program. What the program writes is for the replays of the graph to write: the
caller's tensors stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..rules.hidden_writes import hidden_writes
from ..rules.ops import Op
from ..seam import factories
from ..seam.levels import Value, bottom, constant_of
from ..seam.memory import storage_of
from ..torch_private.mode_stacks import is_traceable_wrapper_subclass, without_dispatch_to_python
from ..torch_private.native_autograd import set_version_counters
from ..torch_private.native_functions import neg_view
from .provenance import here


class OutsideMemory:
    """The tensors from outside that a program has met, and the memory of those that
    it has written to.

    Memory is copied before the first write to it, and put back at the end of the trace. Most
    programs write to none, so none is copied. A write ends the literals in its memory as well:
    their elements follow no longer from the text of the program.
    """

    def __init__(self, abstract: bool = False) -> None:
        # the program runs on fake tensors: its writes change versions alone
        self.abstract = abstract
        self.tensors: dict[int, Any] = {}  # by address of a storage: the storage
        self.saved: dict[int, Any] = {}  # likewise: its bytes before the first write
        # a compressed sparse tensor, and a copy from before the first write
        self.patterns: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.versions: list[tuple[torch.Tensor, int]] = []
        # by address of a storage: the value of the trace that it is the memory of
        self.literals: dict[int, Any] = {}

    def hold(self, t: torch.Tensor) -> None:
        """Note a tensor that is not the trace's."""
        parts = list(_parts(t))
        for part in parts:
            self.tensors.update((storage._cdata, storage) for storage in _storages(part))
        if parts:
            counted = [each for each in (t, *parts) if not each.is_inference()]
            self.versions += [(each, each._version) for each in counted]

    def literal(self, value: Any) -> None:
        """Note a literal of the program's text, whose memory is its own."""
        if value.layout is torch.strided:
            self.literals[address(value)] = value

    def before(self, op: Op, args: Sequence[object], kwargs: dict[str, Any]) -> None:
        """Before a call of ``op`` that writes: copy the memory that it writes to, if it comes from
        outside, and end literals in it."""
        for t in written_by(op, args, kwargs):
            for part in _parts(t):
                self._save(part)
            if self.literals and t.layout is torch.strided:
                value = self.literals.pop(address(t), None)
                if value is not None:
                    value._literal = None

    def _save(self, part: torch.Tensor) -> None:
        """Copy those storages of a plain tensor that come from outside and are not copied yet."""
        outer = [storage for storage in _storages(part) if storage._cdata in self.tensors]
        fresh = [storage for storage in outer if storage._cdata not in self.saved]
        self.saved.update((storage._cdata, storage.clone()) for storage in fresh)
        if fresh and part.layout in _COMPRESSED:
            self._keep_pattern(part)

    def _keep_pattern(self, t: torch.Tensor) -> None:
        """Note how many elements a compressed tensor specifies: ``zero_`` resizes the tensors that
        it consists of, and leaves none."""
        with without_dispatch_to_python():
            self.patterns.append((t.detach(), t.detach().clone()))

    def restore(self) -> None:
        """Put back what was written over. The dispatcher has counted the writes, so the versions
        are put back as well."""
        with without_dispatch_to_python():
            for t, old in self.patterns:
                t.resize_as_sparse_(old)
        for key, old in self.saved.items():
            self.tensors[key].copy_(old)
        if self.versions and (self.saved or self.abstract):
            tensors, versions = zip(*self.versions, strict=True)
            set_version_counters(tensors, versions)
        self.saved.clear()
        self.patterns.clear()
        self.tensors.clear()
        self.versions.clear()
        self.literals.clear()


def written_by(op: Op, args: Sequence[object], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a call of ``op`` writes to."""
    names = [
        a.name
        for a in op.func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    ]
    for name in (*names, *hidden_writes(op, args, kwargs)):
        given = op.argument(op.positions[name], args, kwargs)
        for t in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(t, torch.Tensor):
                yield t


def address(t: torch.Tensor) -> int:
    """Return a number for the storage of a strided tensor."""
    return int(storage_of(bottom(t))._cdata)


def _parts(t: Any) -> Iterator[torch.Tensor]:
    """The plain tensors that have the memory of ``t``: itself, the one that it holds if it is of
    the eager session, or those of which an instance of a user's class consists. A value of a
    transform has none."""
    if isinstance(t, Value):
        yield from () if t._level.number else _parts(t._inner)
    elif is_traceable_wrapper_subclass(t):
        for name in t.__tensor_flatten__()[0]:
            yield from _parts(getattr(t, name))
    elif type(t) in _PLAIN and not t.is_nested:
        yield t


def _storages(t: torch.Tensor) -> list[Any]:
    """Return the storages of a plain tensor; of a sparse one those of its indices and values."""
    with without_dispatch_to_python():
        parts = [getattr(t, name)() for name in _PARTS.get(t.layout, ())]
        return list(map(storage_of, parts))


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_COMPRESSED = frozenset((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))
_PARTS = {  # of each layout the methods that give the tensors that it consists of
    torch.strided: ("detach",),
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")
    ),
    **dict.fromkeys(
        (torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")
    ),
}


def held_by_session(t: Any) -> Any:
    """Return the plain tensor that ``t`` holds, if ``t`` is of the eager session. It shows how
    ``t`` lies in memory, and whether it is conjugated or negated lazily. Any other tensor stays as
    it is."""
    of_session = isinstance(t, Value) and not t._level.number and type(t._inner) is torch.Tensor
    return t._inner.detach() if of_session and t.layout is torch.strided and not t.is_nested else t


def private_copy(t: torch.Tensor) -> torch.Tensor:
    """Return a copy with the strides of ``t``, overlaps included, and lazily conjugated or negated
    if ``t`` is.

    Tracing must not change the caller's tensor, strides decide whether a reshape is a view, and ops
    such as ``real`` take other views of what is conjugated lazily.
    """
    t = held_by_session(t.detach())
    if isinstance(t, Value):
        t = constant_of(t)
    if (
        type(t) is not torch.Tensor
        or t.layout is not torch.strided
        or t.is_nested
        or t._is_zerotensor()
    ):
        return t.clone()
    storage: Any = storage_of(t)
    # an enclosing vmap would draw what `empty` leaves unset, for each of its elements
    with without_dispatch_to_python():
        fresh = factories.empty(0, dtype=t.dtype, device=t.device)
        fresh.set_(storage.clone(), t.storage_offset(), t.shape, t.stride())
        fresh = neg_view(fresh) if t.is_neg() else fresh
        return fresh.conj() if t.is_conj() else fresh


def refuse_made_of_values(t: torch.Tensor) -> None:
    """Refuse an instance of a class that handles its own calls, if it consists of values of a
    transform: it is no tensor from outside."""
    if _made_of_values(t):
        raise RuntimeError(
            f"the program makes a {type(t).__name__} of tensors that are traced, "
            "and a graph has plain tensors. Return the tensors and make it of them, "
            f"or compile the program with aot_function.{here()}"
        )


def _made_of_values(t: object) -> bool:
    if isinstance(t, Value) or not is_traceable_wrapper_subclass(t):
        return False
    parts = [getattr(t, name) for name in t.__tensor_flatten__()[0]]
    return any(p._level.number > 0 if isinstance(p, Value) else _made_of_values(p) for p in parts)
