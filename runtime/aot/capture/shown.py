"""What a program sees of a tensor, beside what its calls do.

For ``isinstance`` a tensor that consists of others is an instance of its class.

    def f(x):
        return x * 2 if isinstance(x, TwoTensor) else x * 3
        # the first, in a graph as in eager mode

A trace has a value in place of ``x``. ``isinstance`` also asks an object for its ``__class__``, and
the value answers with the class of the tensor that it stands for. That holds for arguments, for
what is closed over and for results of calls. ``type(x)`` is the value's class.

In inference mode no value has a history. An argument that requires grad says so none the less.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...functionalize.functional_level import FunctionalLevel
from ...functionalize.functional_value import FunctionalValue
from ...seam.shells import VALUES
from ...tape import hooks
from ...tape.values import GradValue
from ...torch_private.pytrees import pytree
from ...trace.provenance import here
from .subclass_parts import composed

_set_class = object.__dict__["__class__"].__set__


def _whole(v: Any) -> object:
    """Return the tensor that consists of traced values, for which ``v`` stands."""
    while type(v) in VALUES:
        v = v._inner
    return v


class _Shown:
    """Of a value: it shows the class of what it stands for, and refuses to give its
    other attributes."""

    __class__ = property(lambda self: type(_whole(self)), lambda self, kind: _set_class(self, kind))

    def __getattr__(self, name: str) -> Any:
        whole = _whole(self)
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
    """A functional value of a tensor that consists of others."""


class ShownGradValue(_Shown, GradValue):
    """A value of a tape that stands for one."""


class WholeTensorsLevel(FunctionalLevel):
    """The functionalize level of a program, whose tensors may consist of others. ``applied``: how
    many custom Functions have run at this level."""

    __slots__ = ("applied",)
    leaves_parts = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.applied = 0

    def wrap(self, inner: torch.Tensor, place: Any = None, /) -> FunctionalValue:
        v = super().wrap(inner, place)
        if composed(inner):
            _set_class(v, ShownFunctionalValue)
        return v


def shown(value: object, inner: object) -> Any:
    """``value``, a value of a tape that holds ``inner``. It shows the class that ``inner``
    shows."""
    if type(inner) is ShownFunctionalValue:
        _set_class(value, ShownGradValue)
    return value


class _Recorded:
    """Of a value without history that stands for one with a history."""

    requires_grad = property(lambda self: True, lambda self, flag: self.requires_grad_(flag))


@contextmanager
def requiring_grad(values: Sequence[object]) -> Iterator[None]:
    """While entered, ``values`` say that they require grad, as the arguments of a custom Function
    do in its ``forward``."""
    kinds: list[tuple[Any, Any]] = [(v, type(v)) for v in values]
    for v, kind in kinds:
        _set_class(v, _with(_Recorded, kind))
    try:
        yield
    finally:
        for v, kind in reversed(kinds):
            _set_class(v, kind)


class _Flagged:
    """Of an argument that requires grad, and has no part in a history of the program. ``_is_leaf``:
    what the caller's tensor says. ``_registered``: the hooks for its gradient, which a call
    registers on the caller's tensor."""

    _is_leaf: bool
    _registered: hooks.Hooks
    is_leaf = property(lambda self: self._is_leaf)
    requires_grad = property(lambda self: True, lambda self, flag: self.requires_grad_(flag))

    def register_hook(self, hook: hooks.Hook) -> RemovableHandle:
        return hooks.register(self._registered, hook)


def registered(v: object) -> tuple[hooks.Hook, ...]:
    """Return the hooks that the program has registered on ``v``, an argument without part in a
    history of the program."""
    return tuple(v._registered.values()) if isinstance(v, _Flagged) else ()


@cache
def _with(mixin: Any, kind: Any) -> Any:
    return type(f"{mixin.__name__[1:]}{kind.__name__}", (mixin, kind), {})


def with_flags(
    function: Callable[..., object], flags: Sequence[tuple[int, bool]]
) -> Callable[..., Any]:
    """``function`` of values. ``flags``: which of them say that they require grad, and
    whether each is a leaf."""

    def flat(*leaves: object) -> Any:
        for i, is_leaf in flags:
            value: Any = leaves[i]
            kind: Any = type(value)
            _set_class(value, _with(_Flagged, kind))
            value._is_leaf, value._registered = is_leaf, OrderedDict()
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
