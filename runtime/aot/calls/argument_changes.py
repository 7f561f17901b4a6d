"""Change the arguments of a call as the program does, besides what the graph writes itself.

def f(x, y, z):
    x.add_(1)               # written: the graph returns the new value, and the call copies it
    y.t_()                  # reshaped
    z.requires_grad_()      # begun
    return x * z
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...session.leaf import as_leaf
from ...session.tensor import Tensor, unwrap
from ..capture.aliasing import memory_of
from ..capture.boundary import Boundary, Input, Output, refuse_hooked_view, write
from ..capture.subclass_parts import flattened
from .arguments import Call, Target
from .graph_writes import count


class ArgumentChanges:
    """Carry out the changes of one program, by kind.

    An argument is a number among ``boundary.inputs``.
    """

    __slots__ = (
        "begun",
        "boundary",
        "copied",
        "counted",
        "hooked",
        "placed",
        "replaced",
        "reshaped",
        "written",
    )

    def __init__(self, boundary: Boundary, placed: Mapping[int, int]) -> None:
        self.boundary = boundary
        # the arguments that the graph writes to itself, see :mod:`..compilers.placing`
        self.placed = placed
        # the arguments whose new values the graph returns, in its order
        self.written = [(index, boundary.inputs[index]) for index in boundary.written]
        # the graph writes the others itself, and so nothing is left to copy
        self.copied = [
            (number, index, record)
            for number, (index, record) in enumerate(self.written)
            if index not in placed
        ]
        # most programs do none of these things, so each has a list that is usually empty
        self.begun: list[int] = []  # the arguments that become leaves
        self.reshaped: list[tuple[int, Input]] = []
        # the arguments without a write whose versions advance, by how much
        self.counted: dict[int, int] = {}
        # the arguments that get other memory, with the output that has it
        self.replaced: list[tuple[int, Input, Output]] = []
        # the arguments for which the program registers hooks
        self.hooked: list[tuple[int, Callable[[torch.Tensor], object]]] = []
        for index, record in enumerate(boundary.inputs):
            self._note(index, record)

    def _note(self, index: int, record: Input) -> None:
        """Note what a call does to argument ``index`` besides a write."""
        if record.replaced is not None:
            self.replaced.append((index, record, record.replaced))
        if record.begins:  # it is reshaped before that
            self.begun.append(index)
        elif record.reshaped:
            self.reshaped.append((index, record))
        # a write and `set_` advance the version themselves
        if record.counted > 0 and not record.written and record.replaced is None:
            self.counted[index] = record.counted
        self.hooked += [(index, hook) for hook in record.hooks]

    # --- the steps of a call, in their order ------------------------------------------------------

    def begin_leaves(self, call: Call) -> Sequence[Target | None]:
        """Carry out the program's ``requires_grad_()`` of arguments. Return where the gradients go,
        with those of these arguments."""
        if not self.begun:
            return call.targets
        leaves, targets = call.leaves, iter(call.targets)
        for index in self.begun:
            # a leaf that requires grad may not be reshaped
            self.boundary.inputs[index].reshape(leaves[index])
            leaves[index] = as_leaf(leaves[index].requires_grad_())
        return [
            leaves[index] if index in self.begun else next(targets)
            for index in self.boundary.differentiated
        ]

    def register_hooks(self, leaves: Sequence[Any]) -> None:
        """Register the hooks of the program on arguments.

        That comes before a write, which gives an argument another history.
        """
        for index, record in self.written:
            written = leaves[index]
            if record.tangent is None or not isinstance(written, Tensor):
                continue
            if written._view is not None:
                refuse_hooked_view(written, any(index == number for number, _ in self.hooked))
        for index, hook in self.hooked:
            leaves[index].register_hook(hook)

    def reshape(self, leaves: Sequence[torch.Tensor]) -> None:
        """Change the geometry of arguments. That advances their versions."""
        for index, record in self.reshaped:
            record.reshape(leaves[index])
        if self.counted:
            count(self.counted, leaves)

    def keep_old_values(
        self, saved: list[Any], at_risk: Sequence[int], leaves: Sequence[Any]
    ) -> None:
        """Copy those of ``saved`` that show arguments which are about to be written to.

        The backward needs the values from before. ``at_risk``: the places in ``saved`` where such
        a value may be.
        """
        written: set[object] = set()
        for index, _ in self.written:
            written.update(map(memory_of, flattened(unwrap(leaves[index]))))
        for place in at_risk:
            if memory_of(saved[place]) in written:
                saved[place] = saved[place].clone()

    def write(self, leaves: Sequence[Any], outs: Sequence[Any], recorded: bool) -> None:
        """Carry out the writes that the graph has not done itself.

        ``outs``: the results of the graph, new values first. ``recorded``: whether these have a
        history.
        """
        if self.placed:
            count(self.placed, leaves)
        if self.copied:  # new values have the new geometry
            write(
                [
                    (record, leaves[index], outs[number], recorded and record.tangent is not None)
                    for number, index, record in self.copied
                ]
            )

    def replace_memory(self, leaves: Sequence[object], results: Sequence[object]) -> None:
        """Give arguments the memory that ``set_`` gives them. ``results``: of the graph.

        That comes after the call has built what it returns, as this may be views of the memory
        that an argument had before.
        """
        if not self.replaced:
            return
        # all sources first: one may be a view of an argument whose memory is about to be replaced
        sources = [output.of(leaves, results) for _, _, output in self.replaced]
        for (index, record, _), source in zip(self.replaced, sources, strict=True):
            record.replace(leaves[index], source)
