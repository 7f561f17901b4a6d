"""Sees the functions of torch that a traced program calls: notes which was the last, and indexes
tensors by symbols without asking for their values.

    cache[:, self.position] = key       # also cache[:, position], rows[step]

``self.position`` is a symbol in a program for any number. Torch's code in C takes the value of an
integer index, so that there would be a program for each. ``select`` takes the symbol itself.

The modes are no part of ``provenance``: a walk from a call to the user's line stops at a frame of
that file, and here a frame stands between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..seam.call_types import Arguments, Kernel

_GET, _SET = torch.Tensor.__getitem__, torch.Tensor.__setitem__
_BASIC = (int, slice, type(None), type(Ellipsis), torch.SymInt)


class Functions(TorchFunctionMode):
    """Notes the last function of torch that the program called, as torch's ``torch_fn``: (name
    with its number, class and name). Example: ``("relu_1", "function.relu")``."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[object, int] = {}
        self.last: tuple[str, str] | None = None

    def __torch_function__(
        self,
        func: Kernel,
        types: object,
        args: Arguments = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = getattr(func, "__name__", None)
        if name is not None:
            self.counts[func] = self.counts.get(func, 0) + 1
            self.last = f"{name}_{self.counts[func]}", f"{type(func).__name__}.{name}"
        return func(*args, **kwargs or {})


class SymbolIndices(TorchFunctionMode):
    """Let tensors be indexed by symbols, while entered."""

    def __torch_function__(
        self,
        func: Kernel,
        types: object,
        args: Arguments = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        if (func is _GET or func is _SET) and len(args) > 1:
            index = _as_tuple(args[1])
            if _is_of_symbols(index):
                part = _select(args[0], index)
                return part if func is _GET else _write(part, args[2])
        return func(*args, **kwargs or {})


def _as_tuple(index: object) -> tuple[object, ...]:
    """Return an index as one for each dimension."""
    if type(index) is tuple:
        return index
    return (index,)


def _is_of_symbols(index: Sequence[object]) -> bool:
    """Return whether one of the indices is a symbol, and the others are no tensors or lists."""
    kinds = list(map(type, index))
    return torch.SymInt in kinds and all(kind in _BASIC for kind in kinds)


def _select(tensor: Any, index: tuple[object, ...]) -> Any:
    """Return the view of ``tensor`` at ``index``, of which some are symbols."""
    whole = slice(None)
    others = tuple(whole if type(item) is torch.SymInt else item for item in index)
    view = tensor[others]
    # the last one first, so that the dimensions before it keep their places
    for place in reversed(range(len(index))):
        if type(index[place]) is torch.SymInt:
            view = view.select(_dim_of(index, place, view.dim()), index[place])
    return view


def _dim_of(index: Sequence[object], place: int, n_dims: int) -> int:
    """Return the dimension of a view that has a whole slice at ``place`` of ``index``. Behind an
    ellipsis it is counted from the end: there symbols are gone from the view, and numbers, too."""
    before, behind = index[:place], index[place + 1 :]
    if Ellipsis not in before:
        return sum(not isinstance(item, int) for item in before)
    return n_dims - 1 - sum(not isinstance(item, (int, torch.SymInt)) for item in behind)


def _write(part: Any, value: object) -> None:
    """Write a tensor or a number to a view, as an assignment to an index does."""
    if isinstance(value, torch.Tensor):
        # more dimensions of size 1 than the view has are left out
        extra = value.dim() - part.dim()
        if extra > 0 and all(size == 1 for size in value.shape[:extra]):
            value = value.reshape(value.shape[extra:])
        part.copy_(value)
    else:
        part.fill_(value)
