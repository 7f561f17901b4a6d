"""Lets a level see calls without any of its values: factories, random draws, computations on
closed-over tensors.

Example: ``vmap(lambda x: x + torch.rand(3), randomness="different")(xs)`` must draw other numbers
for each element, and the call of ``rand`` has no argument that is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..seam.call_types import Keywords
from ..torch_private.dispatcher import OpOverload
from ..torch_private.mode_stacks import (
    TorchDispatchMode,
    current_dispatch_modes,
    dispatch_mode_at,
    number_of_dispatch_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
)
from .call_types import Arguments
from .dispatch import hand_over, innermost
from .levels import Level
from .nested_views import reopen_for
from .shells import VALUES
from .surgery import now
from .transforms_of_torch import (
    of_returned_transform,
    refuse_value_of_torch,
    transform_of_torch,
)
from .user_code import unwatched

_ZEROS_WITHOUT_MEMORY = torch.ops.aten._efficientzerotensor.default


class EnteringMode(TorchDispatchMode):
    """A mode that exchanges tensors from outside of a program for values of a level, by
    :meth:`value`. ``found`` lists those tensors, in the order in which the program met them."""

    found: list[torch.Tensor]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every call passes through a wrapper that costs more than the dispatch

    def value(self, tensor: object) -> Any:
        """Return ``tensor``, or its value if it is a tensor from outside."""
        raise NotImplementedError

    def overtakes(self, address: int) -> bool:
        """Answer as :meth:`.levels.Level.overtakes`."""
        return False

    def note_elements(self, tensor: torch.Tensor) -> None:
        """Do what :meth:`.levels.Level.note_elements` does."""

    def exchange(self, tensor: torch.Tensor, value: object) -> None:
        """Let ``value`` stand for ``tensor`` from now on, which has been met."""
        raise RuntimeError(
            "requires_grad_() of a tensor from outside in a branch or loop that is captured. "
            "Do that outside of it."
        )


def entering_mode() -> EnteringMode | None:
    """Return the innermost active :class:`EnteringMode`."""
    if number_of_dispatch_modes():
        for mode in reversed(current_dispatch_modes()):
            if isinstance(mode, EnteringMode):
                return mode
    return None


def entering() -> Callable[[Any], Any] | None:
    """Return the method ``value`` of the innermost active :class:`EnteringMode`. What acts on
    tensors before the dispatcher sees them (a custom Function, a recurrent layer) asks for it,
    because the mode sees dispatched calls alone."""
    mode = entering_mode()
    if mode is None:
        return None
    return mode.value


def entered(tensor: Any) -> Any:
    """Return ``tensor``, or its value if it is a tensor from outside of a program that is captured.

    A transform calls this before it makes a value of its own level of an argument, because the
    calls of that level would not show the tensor to the program. Zeros without memory, which the
    dispatcher would not recognize in a value, become zeros with memory.
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if transform_of_torch():
        refuse_value_of_torch(tensor)
    tensor = of_returned_transform(now(tensor))
    if number_of_dispatch_modes() and (mode := entering_mode()) is not None:
        tensor = mode.value(tensor)
    if tensor._is_zerotensor():
        return tensor.clone()
    return tensor


class LevelMode(TorchDispatchMode):
    """While entered, every ATen call without a value of an inner level goes to ``level.call``.

    ``level.call`` runs with the mode off, so its own calls go to outer levels. It re-enters the
    mode around calls that this level must see itself.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every call passes through a wrapper that costs more than the dispatch

    def __init__(self, level: Level) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.level = level

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        return unwatched(self._handle, func, types, args, kwargs)

    def _handle(
        self, func: Any, types: Sequence[type], args: Any, kwargs: dict[str, object]
    ) -> object:
        """Hand a call over to the level, or to the inner level that has a value among the
        arguments."""
        level = self.level
        inner_level = innermost(args, kwargs)
        if inner_level is not None and inner_level.number > level.number:
            return self.handled_inside(inner_level, func, types, args, kwargs)
        if level.leaves(types, args, kwargs):
            return NotImplemented
        reopen_for(func, args)
        # The tangent of a number, in torch's forward mode: torch reads the number that is in it,
        # which a value of a level does not have.
        if func is _ZEROS_WITHOUT_MEMORY and not args[0]:
            return func(*args, **kwargs or {})
        return hand_over(level, func, args, kwargs or {})

    def handled_inside(
        self,
        level: Level,
        func: OpOverload,
        types: Sequence[type],
        args: Any,
        kwargs: dict[str, object],
    ) -> object:
        """Run a call that ``level``, an inner one, handles. The calls that its rule makes come to
        this mode again."""
        if level.leaves(types, args, kwargs):
            return NotImplemented
        # `with self` takes ten times as long: it also notes that a mode is on, which is known here
        push_dispatch_mode(self)
        try:
            reopen_for(func, args)
            return hand_over(level, func, args, kwargs or {})
        finally:
            pop_dispatch_mode(None)


def call_below(func: Any, types: Any, args: Sequence[object], kwargs: dict[str, object]) -> Any:
    """Call ``func(*args, **kwargs)`` in a mode that was called with these ``types``, and has
    exchanged tensors for values. The next mode is called without the dispatcher if it is a level's
    and no tensor is of a user's class."""
    count = number_of_dispatch_modes()
    mode = None
    if count:
        mode = dispatch_mode_at(count - 1)
    # exactly this class: a subclass handles calls in its own way
    if type(mode) is not LevelMode or not VALUES.issuperset(types):
        return func(*args, **kwargs)
    inner_level = innermost(args, kwargs)
    # the mode is on for the calls of an inner level
    if inner_level is not None and inner_level.number > mode.level.number:
        reopen_for(func, args)
        return hand_over(inner_level, func, args, kwargs)
    pop_dispatch_mode(None)
    try:
        return mode.__torch_dispatch__(func, types, args, kwargs)
    finally:
        push_dispatch_mode(mode)


def hand_over_directly(
    level: Level, func: OpOverload, args: Sequence[object], kwargs: dict[str, object]
) -> Any:
    """Run a functional call whose innermost level is ``level``, without the dispatcher, if no mode
    but that of ``level`` or of an outer level comes first. Else NotImplemented."""
    count = number_of_dispatch_modes()
    if not count:
        return hand_over(level, func, args, kwargs)
    mode = dispatch_mode_at(count - 1)
    if type(mode) is not LevelMode or mode.level.number > level.number:
        return NotImplemented
    if level.leaves_classes and not _are_values(args, kwargs):
        return NotImplemented
    if mode.level is not level:
        return hand_over(level, func, args, kwargs)
    pop_dispatch_mode(None)
    try:
        return hand_over(level, func, args, kwargs)
    finally:
        push_dispatch_mode(mode)


def _are_values(args: Arguments, kwargs: Mapping[str, object]) -> bool:
    """Return whether the tensors among the arguments are values or plain tensors, so that no class
    of a user's handles the call."""
    arguments = (*args, *kwargs.values()) if kwargs else args
    for argument in arguments:
        items = argument if type(argument) is list or type(argument) is tuple else (argument,)
        for item in items:
            kind = type(item)
            if kind not in VALUES and kind is not torch.Tensor and isinstance(item, torch.Tensor):
                return False
    return True
