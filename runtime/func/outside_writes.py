"""Undo what a function has written to tensors from outside, so that it can run again.

Example: ``def f(x): total.add_(1.0); return x * total``. ``jacfwd(f, chunk_size=1)`` runs ``f`` for
each column. Without :class:`OutsideWrites`, ``total`` would grow in each run, and the columns would
belong to different functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from ..errors import InplaceError, called_from
from ..rules.ops import FUNCTIONAL, Op, op_of
from ..seam.call_types import Arguments, Keywords
from ..seam.keys import VIEWS, reopen_keys
from ..seam.levels import Level, Value
from ..torch_private.dispatcher import OpOverload, is_excluded, set_excluded
from ..torch_private.mode_stacks import TorchDispatchMode, number_of_dispatch_modes, without_modes
from ..torch_private.pytrees import pytree
from ..trace.outside import OutsideMemory, address, written_by
from . import trees


class OutsideWrites(TorchDispatchMode):
    """A mode that copies memory from outside before the first write to it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every call passes through a wrapper that costs more than the dispatch

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # the addresses of the storages that calls in the mode have made
        self.own: set[int] = set()
        self.memory = OutsideMemory()
        # A write that changed a history as well, so that it cannot be undone. It is a text: the op
        # and the line.
        self.lasting = ""
        self.start = Level().number  # the levels of the runs have higher ones
        # a program that is captured has its own view of what is in memory
        self.inside_modes = number_of_dispatch_modes() > 0

    def noting(self, func: Callable[..., object]) -> Callable[..., object]:
        """Return ``func``, to be run in this mode."""

        @wraps(func)
        def run_noting_writes(*args: object, **kwargs: object) -> object:
            with self:
                return func(*args, **kwargs)

        return run_noting_writes

    def undo(self, what: str) -> None:
        """Put back what the function has written over. ``what`` is going to run it again.
        ``InplaceError`` if that is impossible."""
        if self.lasting:
            raise InplaceError(
                f"{what} runs the function several times, and {self.lasting} writes to a tensor "
                "from outside, whose history or program would show each run. Return the new value "
                "instead."
            )
        with without_modes():
            self.memory.restore()
        self.memory = OutsideMemory()
        self.own.clear()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Run a call, after a copy of what it writes to from outside."""
        kwargs = kwargs or {}
        op = op_of(func)
        # tensors that the call writes to and the run has not made
        outside = [
            self._below(tensor)
            for tensor in _strided_tensors(written_by(op, args, kwargs))
            if address(tensor) not in self.own
        ]
        if outside and not self.inside_modes:
            self._save(outside, op, args, kwargs)
        before = is_excluded(VIEWS)
        reopen_keys(func)
        set_excluded(VIEWS, True)  # the dispatcher has already counted a write to a plain tensor
        try:
            result = func(*args, **kwargs)
        finally:
            set_excluded(VIEWS, before)
        # asked after the call, so that a call that fails is not counted
        lasts = any(self.inside_modes or _changes_history(tensor) for tensor in outside)
        if lasts and not self.lasting:
            self.lasting = f"{func}{called_from()}"
        # storages that appear in the results alone are the run's own, and need no copy
        if op.kind is FUNCTIONAL:
            self.own |= _addresses(result) - _addresses((args, kwargs))
        return result

    def _below(self, tensor: object) -> Any:
        """Return the tensor that existed before the run: ``tensor``, or the inner tensor of a value
        that levels of the run have made."""
        while isinstance(tensor, Value) and tensor._level.number > self.start:
            tensor = tensor._inner
        return tensor

    def _save(
        self, outside: list[torch.Tensor], op: Op, args: Arguments, kwargs: Mapping[str, object]
    ) -> None:
        """Copy the memory of the tensors in ``outside``, unless an earlier write has copied it."""
        with without_modes():  # a vmap in the run, which draws, has one
            for tensor in outside:
                if address(tensor) not in self.memory.tensors:
                    self.memory.hold(tensor)
            self.memory.before(op, *trees.map_tensors(self._below, (args, kwargs)))


def _changes_history(tensor: torch.Tensor) -> bool:
    """Return whether a write to ``tensor``, a tensor from outside, is more than a write to
    memory."""
    if isinstance(tensor, Value) and tensor._level.number:
        return True
    return tensor.requires_grad and torch.is_grad_enabled()


def _addresses(tree: object) -> set[int]:
    """Return the addresses of the tensors in nested values."""
    return set(map(address, _strided_tensors(pytree.tree_leaves(tree))))


def _strided_tensors(each: Any) -> Iterator[torch.Tensor]:
    """Iterate over the tensors among ``each`` that have one storage."""
    return (
        tensor
        for tensor in each
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    )
