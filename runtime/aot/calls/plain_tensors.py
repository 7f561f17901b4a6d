"""Ask whether plain tensors that a program reaches by itself are as they are now.

    reached = PlainTensors(tensors)
    reads = reached.without_facts(reads)            # adds the tensors that the program has asked
    reached.conditions(placed, constant)            # ["(c1() or c2())"]
    reached.compared                                # [], or those that the guard must compare

Plain are strided tensors of torch's own two classes. torch's ``TensorGuards`` in C++ compares their
classes, sizes, strides, dtypes, devices, dispatch keys and ``requires_grad``: their *geometry*. The
native part asks for it too, and for the rest in the same call (:mod:`runtime.native.noted`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...native.noted import Kind, Noted, Question, native_batch
from ...torch_private.graph_parts import TensorGuards
from ...trace.generated_code import answer
from ..python_state.reads import FACTS, Read

PLAIN = (torch.Tensor, torch.nn.Parameter)
Constant = Callable[[Any], str]
"""Gives an object a name in the source."""
_is_leaf, _data_ptr = operator.attrgetter("is_leaf"), torch.Tensor.data_ptr


def has_plain_geometry(tensor: torch.Tensor) -> bool:
    """Return whether torch's guards in C++ compare all that a graph depends on of ``tensor``."""
    return tensor.layout is torch.strided and type(tensor) in PLAIN


def geometry_of(tensors: Sequence[torch.Tensor]) -> Any:
    """Return what compares tensors with the geometry of these, and that none comes twice."""
    sizes: Any = [list(tensor.shape) for tensor in tensors]
    strides: Any = [list(tensor.stride()) for tensor in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


class PlainTensors:
    """Collect the tensors, which are no arguments."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = {id(tensor): tensor for tensor in tensors}
        # for those whose history the program has asked, by identity: is it a leaf?
        self._leaves: dict[int, bool] = {}
        # the tensors that the native part does not know, after :meth:`conditions`; the guard
        # compares their geometry together with that of arguments
        self.compared: list[torch.Tensor] = []
        # the other tensors
        self.noted: list[torch.Tensor] = []

    def without_facts(self, reads: Sequence[Read]) -> list[Read]:
        """Return ``reads`` without those facts of tensors that are asked here.

        The program does not compute with these tensors, but has reached them.
        """
        others: list[Read] = []
        for read in reads:
            tensor = read.owner
            if read.name is not FACTS or not has_plain_geometry(tensor):
                others.append(read)
            elif id(tensor) not in self._tensors:
                self._tensors[id(tensor)] = tensor
                # a tensor that does not require grad is always a leaf
                if tensor.requires_grad:
                    self._leaves[id(tensor)] = tensor.is_leaf
        return others

    def conditions(self, placed: Sequence[torch.Tensor], constant: Constant) -> list[str]:
        """Write the questions as Python source, without the geometry of ``compared``.

        ``placed``: tensors that must be where they are now. ``constant``: gives an object a name.
        """
        known = self._tensors
        by_place = dict.fromkeys(id(tensor) for tensor in placed if id(tensor) in known)
        elsewhere = [tensor for identity, tensor in known.items() if identity not in by_place]
        at_place = [known[identity] for identity in by_place]
        conditions = self._ask("tensors and their memory", at_place, constant)
        conditions += self._ask("tensors", elsewhere, constant)
        others = [tensor for tensor in placed if id(tensor) not in known]
        return conditions + _places(others, constant)

    def _ask(self, kind: Kind, tensors: list[torch.Tensor], constant: Constant) -> list[str]:
        """Write the questions to tensors of one kind of the native part."""
        if not tensors:
            return []

        def without_geometry(constant: Constant) -> list[str]:
            """Write what torch's guards in C++ do not ask: the history, and the memory."""
            places = tensors if kind == "tensors and their memory" else []
            return [*self._histories(tensors, constant), *_places(places, constant)]

        def in_python(constant: Constant) -> str:
            """Write all of it, as the native part asks it in one call."""
            check = f"{constant(geometry_of(tensors))}.check(*{constant(tensors)})"
            return " and ".join([check, *without_geometry(constant)])

        batch = native_batch(Question(kind, tensors))
        if batch is None:
            self.compared += tensors
            return without_geometry(constant)
        self.noted += tensors
        # made now, as it compares with the geometry of now
        compare = answer(in_python, "compare", "<guard of tensors>")
        return [Noted(batch, lambda: compare).condition(constant)]

    def _histories(self, tensors: Sequence[torch.Tensor], constant: Constant) -> list[str]:
        """Write the question which of the tensors are leaves, where the program has asked that."""
        leaves = [tensor for tensor in tensors if self._leaves.get(id(tensor)) is True]
        recorded = [tensor for tensor in tensors if self._leaves.get(id(tensor)) is False]
        return [
            f"{quantity}(map({constant(_is_leaf)}, {constant(some)}))"
            for quantity, some in (("all", leaves), ("not any", recorded))
            if some
        ]


def _places(tensors: Sequence[torch.Tensor], constant: Constant) -> list[str]:
    """Write the question whether tensors are where they are now. An address stands for the memory:
    a tensor may have been given other memory since."""
    if not tensors:
        return []
    pointers = constant([tensor.data_ptr() for tensor in tensors])
    return [f"list(map({constant(_data_ptr)}, {constant(list(tensors))})) == {pointers}"]
