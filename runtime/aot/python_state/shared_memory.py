"""Arrays of Python's state over the memory of tensors.

    array = tensor.numpy()
    jit(lambda x: (tensor.add_(x), array.sum()))        # refused: the array changes with the tensor

A graph writes to tensors, and the state is compared and put back as bytes. Neither is told of the
other. So a program is refused that changes one of the two and comes to both."""

from __future__ import annotations

import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from ...session.tensor import unwrap
from ...trace.provenance import Line, happened_at
from .contents import Buffer, Elements
from .nodes import Node

Range = tuple[int, int]


def refuse_shared_writes(
    nodes: Iterable[Node],
    given: Iterable[object],
    tensors: Sequence[tuple[torch.Tensor, Any]],
    changed: Collection[tuple[int, object]],
    line: Line | None,
) -> None:
    """Refuse a program that changes a tensor or an array, and comes to the other one in the same
    memory. ``nodes``: of the objects that it finds. ``given``: its arguments. ``tensors``: of its
    graph, each with the input that it is. ``changed``: by identity, the objects that it changes.
    ``line``: of the program."""
    arrays = [node.owner for node in nodes if isinstance(node, (Elements, Buffer))]
    arrays += [x for x in given if isinstance(x, (np.ndarray, array.array, bytearray, memoryview))]
    if not arrays:
        return
    identities = {identity for identity, _ in changed}
    places = [(_place_of(unwrap(t)), entry) for t, entry in tensors]
    for x in arrays:
        begin, end = _place_of_array(x)
        sharing = [entry for (first, last), entry in places if first < end and begin < last]
        for entry in sharing:
            if entry.written or id(x) in identities:
                _refuse(x, entry.written_at or line)


def _refuse(x: object, line: Line | None) -> NoReturn:
    raise RuntimeError(
        f"the program changes a tensor or an array ({type(x).__name__}), and comes to the other "
        "one, which has the same memory. A graph would not tell one of the write to the other. "
        f"Let it use the tensor alone, or a copy.{happened_at(line)}"
    )


def _place_of(tensor: torch.Tensor) -> Range:
    """Return where the memory of ``tensor`` begins and ends."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return 0, 0
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _place_of_array(owner: Any) -> Range:
    """Return where the memory of the array ``owner`` begins and ends, which may have gaps."""
    try:
        x = owner if isinstance(owner, np.ndarray) else np.asarray(memoryview(owner))
    except ValueError:  # a view of memory that was released
        return 0, 0
    first = x.__array_interface__["data"][0]
    if not x.size:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(x.shape, x.strides, strict=True)]
    below, above = (sum(s for s in steps if s < 0), sum(s for s in steps if s > 0))
    return first + below, first + above + x.itemsize
