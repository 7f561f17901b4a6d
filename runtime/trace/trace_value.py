"""The value of a trace."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..seam.levels import Value
from ..seam.user_code import noted
from ..torch_private.mode_stacks import without_modes
from ..torch_private.native_autograd import increment_version
from .provenance import here


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
        increment_version([self._inner])

    def tolist(self) -> Any:
        if self._literal is not None:
            with without_modes():
                return self._literal.tolist()
        if self._level.reads == "symbol":
            return [t.tolist() for t in self.unbind()] if self.dim() else self.item()
        raise escape("tolist()")

    def numpy(self, *, force: bool = False) -> Any:
        if self._literal is not None:
            with without_modes():  # else the trace would see the detach() within
                array = self._literal.numpy(force=force).copy()
            array.flags.writeable = False  # no write to it would be in the graph
            return array
        raise escape("numpy()")

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
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
