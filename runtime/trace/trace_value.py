"""Defines the value of a trace, which stands for a node of its graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from ..seam.levels import Value
from ..seam.user_code import noted
from ..torch_private.mode_stacks import without_modes
from ..torch_private.native_autograd import increment_version
from .provenance import here
from .symbols import SYMBOLIC


class TracedValue(Value):
    """The tensor of a node. It has no storage of its own, so nothing can read its elements behind
    the graph's back."""

    _level: Any  # a Trace
    _node: fx.Node
    # set for constants of the program's text: their elements may be read
    _literal: torch.Tensor | None = None

    @property
    def _version(self) -> int:  # type: ignore[override]
        # views are shells of their own; what they stand for shares one counter
        return self._inner._version

    def count_write(self) -> None:
        """Count a write that the dispatcher does not."""
        increment_version([self._inner])

    def tolist(self) -> Any:
        """Return the elements of a constant of the program's text, or symbols for those of another
        tensor. Raise if the trace has none."""
        if self._literal is not None:
            with without_modes():
                return self._literal.tolist()
        if self._level.reads == "symbol":
            if not self.dim():
                return self.item()
            return [part.tolist() for part in self.unbind()]
        raise escape("tolist()")

    def numpy(self, *, force: bool = False) -> Any:
        """Return an array of a constant of the program's text, which nobody can write to. Raise for
        any other tensor."""
        if self._literal is not None:
            with without_modes():  # else the trace would see the detach() within
                array = self._literal.numpy(force=force).copy()
            array.flags.writeable = False  # no write to it would be in the graph
            return array
        raise escape("numpy()")

    def _text(self) -> str:
        return f"TracedValue({self._node.name}: {self.dtype}{list(self.shape)})"


def escape(how: str) -> RuntimeError:
    """Return the error for a program that asks for elements, by ``how``."""
    return noted(
        RuntimeError(
            f"{how} asks for the elements of a tensor while the program is being traced. "
            "The graph would keep today's value for ever. Use tensor operations instead "
            "(torch.where for a choice), pass the number as an argument of its own, "
            f"or leave this part out of what is traced.{here()}"
        )
    )


def literal_of(argument: object) -> Any:
    """Return the elements of a constant of the program's text, and any other argument as it is."""
    if isinstance(argument, TracedValue):
        return argument._literal
    return argument


def literals_in(args: Iterable[object]) -> list[object]:
    """List :func:`literal_of` of arguments, some of which may be lists."""
    literals: list[Any] = []
    for argument in args:
        if isinstance(argument, (list, tuple)):
            literals.append(list(map(literal_of, argument)))
        else:
            literals.append(literal_of(argument))
    return literals


def follows_from_arguments(argument: object) -> bool:
    """Return whether ``argument`` may be another one for other arguments of the program."""
    return isinstance(argument, SYMBOLIC) or (
        isinstance(argument, TracedValue) and argument._literal is None
    )


def differs_from_inner(t: TracedValue) -> bool:
    """Return whether the inner tensor of ``t`` has got other sizes or strides."""
    if t.shape != t._inner.shape:
        return True
    return t.layout is torch.strided and t.stride() != t._inner.stride()
