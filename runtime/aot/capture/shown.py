"""Let a value show its program the class and the flags of the tensor that it stands for.

For ``isinstance`` a tensor that consists of others is an instance of its class.

    def f(x):
        return x * 2 if isinstance(x, TwoTensor) else x * 3
        # the first, in a graph as in eager mode

A trace has a value in place of ``x``. ``isinstance`` also asks an object for its ``__class__``, and
the value answers with the class of the tensor that it stands for. That holds for arguments, for
what is closed over and for results of calls. ``type(x)`` is the value's class.

Under ``inference_mode`` nothing is recorded, but ``requires_grad`` of an argument still reads True,
as in eager mode.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from ...functionalize.functional_level import FunctionalLevel
from ...functionalize.functional_value import FunctionalValue
from ...seam.levels import Value
from ...seam.shells import VALUES
from ...tape import hooks
from ...tape.values import GradValue
from ...torch_private.pytrees import pytree
from ...trace.provenance import here
from .subclass_parts import composed

# it sets the class of an object also where `__class__` is a property of its class
_set_class = object.__dict__["__class__"].__set__


def _whole_tensor(value: object) -> object:
    """Return the tensor that consists of traced values, for which ``value`` stands."""
    while isinstance(value, Value) and type(value) in VALUES:
        value = value._inner
    return value


class _Shown:
    """Show the class of the tensor that a value stands for, and refuse its other attributes."""

    __class__ = property(
        lambda self: type(_whole_tensor(self)), lambda self, kind: _set_class(self, kind)
    )

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse an attribute that the whole tensor has."""
        whole = _whole_tensor(self)
        # protocols such as copying ask for names with two underscores, and expect this error
        if name.startswith("__") or not hasattr(whole, name):
            raise AttributeError(
                f"{type(whole).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        raise RuntimeError(
            f"the program asks a {type(whole).__name__} for its attribute {name!r}. A graph has "
            "calls of ops on the whole tensor, which would miss what is done to a part or by "
            f"a method. Take the attribute before the call, and pass it as an argument.{here()}"
        )


class ShownFunctionalValue(_Shown, FunctionalValue):
    """Stand for a tensor that consists of others, at the functionalize level."""


class ShownGradValue(_Shown, GradValue):
    """Stand for a tensor that consists of others, at a tape."""


class WholeTensorsLevel(FunctionalLevel):
    """Functionalize a program whose tensors may consist of others.

    ``applied``: how many custom Functions have run at this level.
    """

    __slots__ = ("applied",)
    leaves_parts = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.applied = 0

    def wrap(self, inner: torch.Tensor, place: Any = None, /) -> FunctionalValue:
        """Return ``inner`` as a value, which shows the class of a composed tensor."""
        value = super().wrap(inner, place)
        if composed(inner):
            _set_class(value, ShownFunctionalValue)
        return value


def shown(value: object, inner: object) -> Any:
    """Return ``value``, a value of a tape that holds ``inner``, and let it show the class that
    ``inner`` shows."""
    if type(inner) is ShownFunctionalValue:
        _set_class(value, ShownGradValue)
    return value


class _Recorded:
    """Show that a value requires grad which has no history and stands for one that has."""

    requires_grad = property(lambda self: True, lambda self, flag: self.requires_grad_(flag))


@contextmanager
def requiring_grad(values: Sequence[object]) -> Iterator[None]:
    """Let ``values`` say, in the block, that they require grad.

    The arguments of a custom Function do so in its ``forward``.
    """
    kinds: list[tuple[object, type]] = [(value, type(value)) for value in values]
    for value, kind in kinds:
        _set_class(value, _with(_Recorded, kind))
    try:
        yield
    finally:
        for value, kind in reversed(kinds):
            _set_class(value, kind)


class _Flagged:
    """Show that an argument requires grad which is in no history of the program."""

    # what the caller's tensor says
    _is_leaf: bool
    # the hooks for its gradient, which a call registers on the caller's tensor
    _registered: hooks.Hooks
    is_leaf = property(lambda self: self._is_leaf)
    requires_grad = property(lambda self: True, lambda self, flag: self.requires_grad_(flag))

    def register_hook(self, hook: hooks.Hook) -> RemovableHandle:
        """Note ``hook`` for the calls."""
        return hooks.register(self._registered, hook)


def registered(value: object) -> tuple[hooks.Hook, ...]:
    """Return the hooks that the program has registered on ``value``, an argument in no history."""
    if not isinstance(value, _Flagged):
        return ()
    return tuple(value._registered.values())


@cache
def _with(mixin: type, kind: type) -> type:
    """Return ``kind`` with what ``mixin`` shows: one class for each pair, not for each value."""
    return type(f"{mixin.__name__[1:]}{kind.__name__}", (mixin, kind), {})


def with_flags(
    function: Callable[..., object], flags: Sequence[tuple[int, bool]]
) -> Callable[..., object]:
    """Return ``function``, at values some of which say that they require grad.

    ``flags``: the numbers of these values, each with whether it is a leaf.
    """

    def flat(*leaves: object) -> object:
        """Set the flags, and call ``function``."""
        for index, is_leaf in flags:
            value: Any = leaves[index]
            kind: Any = type(value)
            _set_class(value, _with(_Flagged, kind))
            value._is_leaf, value._registered = is_leaf, OrderedDict()
            # the flag is only shown: a recorded call would need a history that is not there
            if issubclass(kind, GradValue):
                value._level.refuses_recording = True
        return function(*leaves)

    return flat


def refuse_recording(args: Iterable[object]) -> None:
    """Refuse a call with grad mode on an argument that torch's own autograd has recorded."""
    if any(isinstance(argument, _Flagged) for argument in pytree.tree_leaves(args)):
        raise RuntimeError(
            "the program is called under no_grad, and computes inside enable_grad() with "
            "an argument that torch's own autograd has recorded; the gradient cannot cross. "
            "Pass its detach(), or make the inputs of that computation with runtime.wrap(x, "
            f"requires_grad=True).{here()}"
        )
