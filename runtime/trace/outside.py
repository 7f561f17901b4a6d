"""Restores the memory of tensors that a traced program closes over, and copies its arguments.

A trace runs the program. What the program writes is for the replays of the graph to write: the
caller's tensors stay as they are. Example: a layer of batch norm updates its running mean in each
call, but the capture of a training step must not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..rules.hidden_writes import hidden_writes
from ..rules.ops import Op
from ..seam import factories
from ..seam.containers import written_arguments
from ..seam.levels import Value, bottom, constant_of
from ..seam.memory import storage_of
from ..torch_private.mode_stacks import is_traceable_wrapper_subclass, without_dispatch_to_python
from ..torch_private.native_autograd import set_version_counters
from ..torch_private.native_functions import neg_view
from .provenance import here

FOREIGN = "foreign"
"""The key under which a literal of the graph says where its memory began and ended, if torch has
not allocated it."""


def foreign_span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return where the memory of ``tensor`` begins and ends, if torch has not allocated it: that of
    ``torch.from_numpy`` is an array's. None for any other tensor."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.layout is not torch.strided:
        return None
    storage = storage_of(tensor)
    if storage.resizable():
        return None
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


class OutsideMemory:
    """The tensors from outside that a program has met, and the memory of those that
    it has written to.

    Memory is copied before the first write to it, and put back at the end of the trace. Most
    programs write to none, so none is copied. After a write the literals in its memory are none any
    more: their elements follow no longer from the text of the program.
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

    def hold(self, tensor: torch.Tensor) -> None:
        """Note a tensor that is not the trace's."""
        parts = list(_parts(tensor))
        for part in parts:
            self.tensors.update((storage._cdata, storage) for storage in _storages(part))
        if parts:
            # an inference tensor has no version
            counted = [each for each in (tensor, *parts) if not each.is_inference()]
            self.versions += [(each, each._version) for each in counted]

    def literal(self, value: torch.Tensor) -> None:
        """Note a literal of the program's text, whose memory is its own."""
        if value.layout is torch.strided:
            self.literals[address(value)] = value

    def before(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> None:
        """Copy the memory that a call of ``op`` is about to write to, if it comes from outside, and
        forget literals in it."""
        for tensor in written_by(op, args, kwargs):
            for part in _parts(tensor):
                self._save(part)
            if self.literals and tensor.layout is torch.strided:
                value = self.literals.pop(address(tensor), None)
                if value is not None:
                    value._literal = None

    def _save(self, part: torch.Tensor) -> None:
        """Copy those storages of a plain tensor that come from outside and are not copied yet."""
        outer = [storage for storage in _storages(part) if storage._cdata in self.tensors]
        fresh = [storage for storage in outer if storage._cdata not in self.saved]
        self.saved.update((storage._cdata, storage.clone()) for storage in fresh)
        if fresh and part.layout in _COMPRESSED:
            self._keep_pattern(part)

    def _keep_pattern(self, tensor: torch.Tensor) -> None:
        """Note how many elements a compressed tensor specifies: ``zero_`` resizes the tensors that
        it consists of, and leaves none."""
        with without_dispatch_to_python():
            self.patterns.append((tensor.detach(), tensor.detach().clone()))

    def restore(self) -> None:
        """Put back what was written over. The dispatcher has counted the writes, so the versions
        are put back as well."""
        # the patterns first, since they make the memory of the size that is then filled
        with without_dispatch_to_python():
            for tensor, pattern in self.patterns:
                tensor.resize_as_sparse_(pattern)
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


def written_by(op: Op, args: Sequence[object], kwargs: dict[str, object]) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call of ``op`` writes to."""
    names = [name for _, name in written_arguments(op.func._schema)]
    for name in (*names, *hidden_writes(op, args, kwargs)):
        argument = op.argument(op.positions[name], args, kwargs)
        targets: Sequence[object] = (argument,)
        if isinstance(argument, (list, tuple)):
            targets = argument
        for target in targets:
            if isinstance(target, torch.Tensor):
                yield target


def address(tensor: torch.Tensor) -> int:
    """Return a number for the storage of a strided tensor."""
    return int(storage_of(bottom(tensor))._cdata)


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that have the memory of ``tensor``: itself, its inner tensor if it is
    of the eager session, or those of which an instance of a user's class consists. A value of a
    transform has none."""
    if isinstance(tensor, Value):
        if not tensor._level.number:
            yield from _parts(tensor._inner)
    elif is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    elif type(tensor) in _PLAIN and not tensor.is_nested:
        yield tensor


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """Return the storages of a plain tensor; of a sparse one those of its indices and values."""
    with without_dispatch_to_python():
        parts = [getattr(tensor, name)() for name in _PARTS.get(tensor.layout, ())]
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


def held_by_session(tensor: Any) -> Any:
    """Return the inner tensor of ``tensor``, if ``tensor`` is of the eager session. It shows how
    ``tensor`` lies in memory, and whether it is conjugated or negated lazily. Any other tensor
    stays as it is."""
    of_session = (
        isinstance(tensor, Value)
        and not tensor._level.number
        and type(tensor._inner) is torch.Tensor
    )
    if of_session and tensor.layout is torch.strided and not tensor.is_nested:
        return tensor._inner.detach()
    return tensor


def private_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the strides of ``tensor``, overlaps included, and lazily conjugated or
    negated if ``tensor`` is.

    Tracing must not change the caller's tensor, strides decide whether a reshape is a view, and ops
    such as ``real`` take other views of what is conjugated lazily.
    """
    tensor = held_by_session(tensor.detach())
    if isinstance(tensor, Value):
        tensor = constant_of(tensor)
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return tensor.clone()
    if tensor.is_nested or tensor._is_zerotensor():
        return tensor.clone()
    storage: Any = storage_of(tensor)
    # an enclosing vmap would draw what `empty` leaves unset, for each of its elements
    with without_dispatch_to_python():
        fresh = factories.empty(0, dtype=tensor.dtype, device=tensor.device)
        fresh.set_(storage.clone(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.is_neg():
            fresh = neg_view(fresh)
        if tensor.is_conj():
            fresh = fresh.conj()
        return fresh


def refuse_made_of_values(tensor: torch.Tensor) -> None:
    """Refuse an instance of a class that handles its own calls, if it consists of values of a
    transform: it is no tensor from outside."""
    if _consists_of_values(tensor):
        raise RuntimeError(
            f"the program makes a {type(tensor).__name__} of tensors that are traced, "
            "and a graph has plain tensors. Return the tensors and make it of them, "
            f"or compile the program with aot_function.{here()}"
        )


def _consists_of_values(tensor: object) -> bool:
    """Return whether ``tensor``, of a class that handles its own calls, has a value of a transform
    among its parts, at any depth."""
    if isinstance(tensor, Value) or not is_traceable_wrapper_subclass(tensor):
        return False
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, Value) and part._level.number > 0:
            return True
        if _consists_of_values(part):
            return True
    return False


def detach_from_tapes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the memory of a closed-over ``tensor`` that no tape around the trace
    sees."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor.data  # with a version of its own: a write of the trace is undone
    if not isinstance(tensor, Value):
        if tensor.requires_grad:
            return tensor.detach()
        return tensor
    if tensor._level.number:
        return tensor
    # of the eager session: its tape has nothing to do with the trace
    return constant_of(tensor.detach())  # type: ignore[no-any-return]
