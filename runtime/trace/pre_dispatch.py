"""Traces programs before dispatch: composite ops stay whole, and the grad mode and autocast that a
program switches are calls of the graph.

    with torch.no_grad():
        y = torch.nn.functional.linear(x, w)

becomes ``_set_grad_enabled(False)``, ``linear``, ``_set_grad_enabled(True)``. The calls reach
the level at the dispatch key ``PreDispatch``, above autograd and autocast, where ATen has
decomposed nothing yet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import fx

from ..seam.call_types import Arguments, Kernel, Keywords
from ..seam.dispatch import innermost
from ..seam.level_mode import LevelMode
from ..seam.levels import Level, Value
from ..seam.locks import lock_of
from ..torch_private.dispatcher import DispatchKey, OpOverload, has_kernel_for_key
from ..torch_private.global_settings import enter_autocast, exit_autocast
from ..torch_private.mode_stacks import (
    current_dispatch_mode,
    number_of_dispatch_modes,
    number_of_modes_before_dispatch,
    pop_mode_before_dispatch,
    set_mode_before_dispatch,
    without_innermost_mode,
)
from ..torch_private.native_autograd import set_grad_enabled
from ..torch_private.pytrees import pytree
from ..torch_private.symbolic_shapes import SchemaCheckMode
from .composite_kernels import symbolic
from .provenance import here
from .trace_level import Trace

Autocast = tuple[bool, torch.dtype]  # enabled, dtype
_TURN = lock_of(sys.modules[__name__], "_TURN", threading.RLock)
# whose autocast a program may switch
_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@contextmanager
def suspended() -> Iterator[object]:
    """Hide all calls inside from a trace before dispatch, if there is one. The context yields its
    mode, or another one that torch has there."""
    around = _pop_mode()
    try:
        yield around
    finally:
        if around is not None:
            set_mode_before_dispatch(around)


def _pop_mode() -> object:
    """Take the mode before dispatch off. None if there is none."""
    if not number_of_modes_before_dispatch():
        return None
    return pop_mode_before_dispatch()


def note_modes() -> None:
    """Let a trace before dispatch, if there is one, write down grad mode and autocast. Called
    before a call that no mode sees."""
    with suspended() as mode:
        if isinstance(mode, PreDispatchMode):
            mode.trace.switch_to_now()


class PreDispatchMode(LevelMode, SchemaCheckMode):
    """The mode of a level, see :class:`LevelMode`, at the key ``PreDispatch``.

    Torch takes three classes of modes there. This one says that it is a ``SchemaCheckMode``,
    because nothing in torch asks for one. The slot for it belongs to the process, so threads take
    turns, and an outer trace leaves the slot meanwhile.
    """

    def __init__(self, level: PreDispatchTrace) -> None:
        LevelMode.__init__(self, level)
        self.trace = level
        self.__dict__["_dispatch_key"] = DispatchKey.PreDispatch
        self.around: list[Any] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Handle a call as :meth:`LevelMode.__torch_dispatch__` does, with two differences for
        calls of an inner level.

        They are decomposed as the dispatcher would do it before the inner level sees them: it might
        draw in another way. And the mode of the inner level sees them first. It sees ordinary calls
        only, so it would see this one after the trace.
        """
        inner = self._mode_of_inner_level()
        level = innermost(args, kwargs)
        if inner is not None:
            level = inner.level
        decomposes = (
            level is not None
            and level.number > self.level.number
            and func not in getattr(level, "whole", ())
        )
        if decomposes and _is_composite(func):
            with self:
                return _decompose(func, args, kwargs or {})
        if inner is not None:
            with without_innermost_mode() as mode, self:
                return mode.__torch_dispatch__(func, types, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _mode_of_inner_level(self) -> LevelMode | None:
        """Return the innermost mode, if it is that of a level inside the trace."""
        if not number_of_dispatch_modes():
            return None
        mode = current_dispatch_mode()
        if isinstance(mode, LevelMode) and mode.level.number > self.level.number:
            return mode
        return None

    def handled_inside(
        self, level: Level, func: object, types: object, args: object, kwargs: object
    ) -> object:
        """Run the call of an inner level, and see the calls that its rule makes."""
        with self:
            return Value.__torch_dispatch__(func, types, args, kwargs)

    def __enter__(self) -> Any:
        turn = _TURN  # a fork in between assigns another one
        turn.__enter__()
        self.around.append((turn, _pop_mode()))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        turn, around = self.around.pop()
        if around is not None:
            set_mode_before_dispatch(around)
        turn.__exit__(None, None, None)


class PreDispatchTrace(Trace):
    """A trace that sees calls before autograd does.

    Before each call it compares grad mode and autocast with those of the call before, and writes
    down what changed."""

    __slots__ = ("autocast", "first", "grad_mode", "regions")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.composites = True
        self.mode = PreDispatchMode(self)
        self.grad_mode = torch.is_grad_enabled()
        self.first = self.grad_mode
        self.autocast: dict[str, Autocast] = {device: _autocast(device) for device in _DEVICES}
        self.regions: dict[str, list[tuple[fx.Node, Autocast]]] = {
            device: [] for device in _DEVICES
        }

    def record(self, func: object, args: object, kwargs: object) -> Any:
        """Write down grad mode and autocast if they have changed, and then the call."""
        # A rule of an inner level may call this level itself, not through the mode. The mode is on
        # then, and would see the call again.
        with suspended():
            self.switch_to_now()
            return super().record(func, args, kwargs)

    def switch_to_now(self) -> None:
        """Write down the calls that lead to the grad mode and autocast of now."""
        self.switch(torch.is_grad_enabled(), {device: _autocast(device) for device in _DEVICES})

    def switch(self, grad_mode: bool, autocast: dict[str, Autocast]) -> None:
        """Write down the calls that lead to this grad mode and autocast."""
        if grad_mode is not self.grad_mode:
            self._node(set_grad_enabled, grad_mode)
            self.grad_mode = grad_mode
        for device, now in autocast.items():
            regions = self.regions[device]
            # Leave regions while that leads to the setting of now, or to one further out that has
            # it. The calls of a graph must nest, as the blocks of a program do.
            while regions and now != self.autocast[device]:
                if now not in [around for _, around in regions]:
                    break
                node, self.autocast[device] = regions.pop()
                self._node(exit_autocast, node)
            if now != self.autocast[device]:
                enabled, dtype = now
                regions.append(
                    (
                        self._node(enter_autocast, device, dtype, enabled, False),
                        self.autocast[device],
                    )
                )
                self.autocast[device] = now

    def finish(self) -> None:
        """Leave the modes as they were at the start."""
        start = dict(self.autocast)
        for device, regions in self.regions.items():
            if regions:
                start[device] = regions[0][1]
        self.switch(self.first, start)

    def _node(self, func: Kernel, *args: Any) -> fx.Node:
        """Write down a call that switches a mode, which has no result that is a tensor."""
        node = self.graph.call_function(func, args)
        node.meta["val"] = None
        if self.provenance is not None:
            self.provenance.note(node)
        return node


@cache
def _is_composite(func: OpOverload) -> bool:
    """Return whether the dispatcher decomposes ``func`` before a level sees it."""
    return bool(has_kernel_for_key(func.name(), DispatchKey.CompositeImplicitAutograd))


def _decompose(func: Any, args: Any, kwargs: dict[str, object]) -> object:
    """Run the call by ATen's kernel of a composite op. It takes no symbols for sizes, for which
    torch has decompositions in Python. Those of recurrent layers leave out the dropout."""
    if not any(map(symbolic, pytree.tree_leaves((args, kwargs)))):
        return func._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
    arguments = dict(
        zip((argument.name for argument in func._schema.arguments), args, strict=False)
    )
    if arguments.get("num_layers", 1) > 1 and arguments["dropout"] and arguments["train"]:
        raise RuntimeError(
            f"{func} with dropout in a transform, in a trace before dispatch of any size: "
            "torch's decomposition leaves out the dropout. Trace it for one size, "
            f"or not before dispatch.{here()}"
        )
    return func.decompose(*args, **kwargs)


def _autocast(device: str) -> Autocast:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
