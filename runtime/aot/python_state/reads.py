"""Single questions that a call asks beside those of the object graph: what a tensor says of itself,
and what an optimizer or a gradient scaler has.

    read = Read(group, "lr", 0.1)
    read.holds()                        # whether group["lr"] is still 0.1
    read.condition(constant)            # the same as Python source, for a guard"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from ...seam.levels import Value
from ...seam.memory_gate import elements_of
from ...session.tensor import dispatches, unwrap
from ...torch_private.mode_stacks import unseen_by_handlers
from ...trace.provenance import here
from .values import MISSING, SIMPLE
from .values import same as same_value

# names of questions to a tensor, see :class:`Read`; no dictionary has such keys
FACTS: Any = object()
ELEMENTS: Any = object()
_COMPRESSED = frozenset((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc))


@dataclass(frozen=True, eq=False)
class Slots:
    """Stands for the dictionary of an object whose class has ``__slots__``."""

    of: Any


@dataclass(frozen=True, eq=False)
class Read:
    """Where a program finds an object: as item ``name`` of a dictionary, or as an attribute of
    :class:`Slots`. ``value``: what it has found.

    With the name ``FACTS`` the owner is a tensor, and ``value`` is what it says of itself; with
    ``ELEMENTS`` its elements; with a name of ``OF_MEMORY`` where it is."""

    owner: Any
    name: Any
    value: Any

    def current(self) -> Any:
        """Return what is there now."""
        return look_up(self.owner, self.name)

    def holds(self) -> bool:
        """Return whether the same is still there."""
        return same(self.current(), self.value)

    def condition(self, constant: Callable[[Any], str]) -> str:
        """Write the question whether the same is still there as Python source. ``constant``: gives
        an object a name."""
        value = constant(self.value)
        # a guard asks this in each call, so it saves the frame of `holds`
        if self.name is FACTS:
            return f"{constant(facts)}({constant(self.owner)}) == {value}"
        if isinstance(self.owner, Mapping):
            key = repr(self.name) if type(self.name) is str else constant(self.name)
            now = f"{constant(self.owner)}.get({key}, {constant(MISSING)})"
        else:
            name = repr(self.name) if type(self.name) is str else constant(self.name)
            now = f"{constant(look_up)}({constant(self.owner)}, {name})"
        # equal constants may be two objects; of most the identity already tells
        if isinstance(self.value, (*SIMPLE, tuple)):
            return f"({now} is {value} or {constant(same)}({now}, {value}))"
        return f"{now} is {value}"

    def __str__(self) -> str:
        owner = self.owner.of if isinstance(self.owner, Slots) else self.owner
        kind = type(owner).__name__
        if self.name is FACTS:
            return f"what a {kind} says of itself"
        return f"{self._what} of a {kind}"

    @property
    def _what(self) -> str:
        if self.name is ELEMENTS:
            return "the elements"
        if isinstance(self.name, torch.Tensor):
            return f"the {type(self.name).__name__}"
        return f"the {self.name!r}"


class Facts(NamedTuple):
    """What a tensor says of itself. ``sizes``: with the strides. ``kind``: its class, which
    somebody may assign."""

    requires_grad: bool
    is_leaf: bool
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    sizes: tuple[Any, ...]
    kind: type

    def __str__(self) -> str:
        sizes = f"{list(self.sizes[0])}" if self.sizes else ""
        return (
            f"{self.dtype}{sizes}{' that requires grad' if self.requires_grad else ''}"
        ).removeprefix("torch.")


def facts(t: torch.Tensor) -> Facts:
    """Return what ``t`` says of itself. ``RuntimeError`` for a tensor of a lazy module without
    sizes."""
    if is_lazy(t):
        raise RuntimeError(
            "a parameter or buffer of a lazy module, such as nn.LazyLinear, has no sizes yet. "
            "The first call of the module makes it, in place. "
            f"Call the module once before the program is captured.{here()}"
        )
    return Facts(t.requires_grad, t.is_leaf, t.dtype, t.device, t.layout, _sizes(t), type(t))


def _sizes(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the shape of ``tensor`` and its :func:`form_of`; nothing of a nested one, which has no
    shape."""
    if tensor.is_nested:
        return ()
    return tuple(tensor.shape), form_of(tensor)


def form_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return what the layout of ``tensor`` has beside the shape: the strides, or how many
    dimensions of a sparse one are sparse, and whether its entries are coalesced."""
    if tensor.layout is torch.strided:
        return tensor.stride()
    if tensor.layout is torch.sparse_coo:
        return tensor.sparse_dim(), tensor.is_coalesced()
    if tensor.layout in _COMPRESSED:
        return tensor.dense_dim(), _dtype_of_indices(tensor)
    return None


def _dtype_of_indices(tensor: torch.Tensor) -> torch.dtype:
    """Return the integers by which a compressed tensor says where its entries are."""
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices().dtype
    return tensor.ccol_indices().dtype


def _bytes_of_memory(t: Any) -> int:
    return int(unwrap(t).untyped_storage().nbytes())


def _offset(t: Any) -> int:
    return int(unwrap(t).storage_offset())


OF_MEMORY: dict[str, Callable[[Any], Any]] = {
    "const_data_ptr": lambda t: unwrap(t).data_ptr(),
    "data_ptr": lambda t: unwrap(t).data_ptr(),
    "storage_offset": _offset,
    "sym_storage_offset": _offset,
    **dict.fromkeys(("storage", "untyped_storage", "_typed_storage"), _bytes_of_memory),
    # whether two tensors have one memory follows from where each is
    "is_set_to": lambda t: unwrap(t).data_ptr(),
    "_is_alias_of": lambda t: unwrap(t).untyped_storage().data_ptr(),
}
"""What the elements or the place of a tensor change, by the name that a program asks for."""


def _count(hooks: Any) -> int:
    return len(hooks or ())


# The conditions stand where torch raises or warns: for `.grad` and `grad_dtype` of what is no leaf,
# for `is_coalesced` of what is not sparse, for `_version` in inference mode.
OF_OBJECT: dict[str, Callable[[Any], Any]] = {
    "_backward_hooks": lambda t: _count(t._backward_hooks),
    "_grad": lambda t: t.grad is None if t.is_leaf else None,
    "_post_accumulate_grad_hooks": lambda t: _count(t._post_accumulate_grad_hooks),
    "grad_dtype": lambda t: t.grad_dtype if t.is_leaf else None,
    "is_coalesced": lambda t: t.layout is torch.sparse_coo and t.is_coalesced(),
    "is_conj": lambda t: t.is_conj(),
    "is_inference": lambda t: t.is_inference(),
    "is_neg": lambda t: t.is_neg(),
    "is_shared": lambda t: unwrap(t).is_shared(),
    "output_nr": lambda t: t.output_nr,
    "retains_grad": lambda t: t.retains_grad,
    "_version": lambda t: None if t.is_inference() else t._version,
    "_is_zerotensor": lambda t: t._is_zerotensor(),
}
"""What else may change while a tensor is the same object, by the name that a program asks for."""
QUESTIONS = frozenset((*OF_MEMORY, *OF_OBJECT))


def asked_by_name(names: Collection[str], tensors: Sequence[torch.Tensor]) -> list[Read]:
    """Return the questions to ``tensors`` for which a program has ``names``."""
    reads: list[Read] = []
    for name in filter(names.__contains__, OF_MEMORY):
        reads += [
            Read(tensor, name, look_up(tensor, name)) for tensor in filter(has_place, tensors)
        ]
    for name in filter(names.__contains__, OF_OBJECT):
        reads += [Read(tensor, name, look_up(tensor, name)) for tensor in tensors]
    return reads


def places_beneath(made: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> list[Read]:
    """Return where those of ``found`` are over whose memory the program has ``made`` a tensor.

    Example: ``torch.from_dlpack(w)``. No trace sees that call, so its result is a constant of the
    graph. It is the memory that ``w`` has had, and ``w`` may be given another one.
    """
    if not made:
        return []
    with unseen_by_handlers():
        extents = [*filter(None, map(extent_of, made))]
        return [
            Read(tensor, "data_ptr", look_up(tensor, "data_ptr"))
            for tensor in found
            if any(_meet(extent_of(tensor), extent) for extent in extents)
        ]


def extent_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return where the memory of ``tensor`` begins and ends; None if it has none of its own.

    A value of a transform has that of the tensor inside. The storage of an abstract tensor has no
    address, and says so by an error.
    """
    if isinstance(tensor, Value) or not has_place(tensor):
        return None
    storage = tensor.untyped_storage()
    try:
        begin = storage.data_ptr()
    except RuntimeError:
        return None
    return begin, begin + storage.nbytes()


def _meet(a: tuple[int, int] | None, b: tuple[int, int]) -> bool:
    # each extent ends before its second number, so that neighbours share nothing
    return a is not None and a[0] < b[1] and b[0] < a[1]


def has_place(tensor: torch.Tensor) -> bool:
    """Return whether it can be asked where ``tensor`` is: it has memory of its own."""
    return tensor.layout is torch.strided and not dispatches(type(unwrap(tensor)))


def _elements(tensor: torch.Tensor) -> bytes:
    return elements_of(unwrap(tensor))


_OF_TENSORS: dict[Any, Callable[[Any], Any]] = {
    FACTS: facts,
    ELEMENTS: _elements,
    **OF_MEMORY,
    **OF_OBJECT,
}


def same(a: Any, b: Any) -> bool:
    """Return whether two values are the same for a graph, as :func:`.values.same` says. Of lists
    and dictionaries the items are compared."""
    if type(a) is type(b) and isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is type(b) and isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    return same_value(a, b)


def look_up(owner: Any, name: Any) -> Any:
    """Return what ``owner`` has under ``name``, or ``MISSING``."""
    if isinstance(owner, torch.Tensor):
        with unseen_by_handlers():  # no guard calls code of the user's
            return _OF_TENSORS[name](owner)
    if isinstance(owner, Mapping):
        return owner.get(name, MISSING)
    return getattr(owner.of, name, MISSING)


def asked_for(
    reads: Sequence[Read], known: Iterable[torch.Tensor], carried: frozenset[tuple[int, object]]
) -> list[Read]:
    """Return those of ``reads`` that a call asks for: none of ``carried``, and nothing that a
    tensor says of itself which is ``known``."""
    gone = set(map(id, known))
    return [
        read
        for read in reads
        if (id(read.owner), read.name) not in carried
        and not (read.name is FACTS and id(read.owner) in gone)
    ]


def once(reads: Iterable[Read]) -> list[Read]:
    """Return ``reads``, of each place the last one, in the order in which the places come first."""
    return list({(id(read.owner), read.name): read for read in reads}.values())


def unchanged(reads: Sequence[Read]) -> list[Read]:
    """Return those of ``reads`` that the program has not changed while it was captured. A warning
    tells of the others."""
    holding = [read.holds() for read in reads]
    changed = dict.fromkeys(
        str(read) for read, holds in zip(reads, holding, strict=True) if not holds
    )
    if changed:
        warnings.warn(
            (
                f"the program reads and changes {', '.join(changed)}. A compiled program changes "
                "it when it is captured, and in no later call, and its graph keeps what it has "
                "found then. Do that outside of it, or hold the number in a tensor."
            ),
            UserWarning,
            stacklevel=2,
        )
    return list(itertools.compress(reads, holding))
