"""Compile the forward pass of a module: ``aot_module(mod, compiler)`` is used like ``mod``."""

from __future__ import annotations

from typing import Any

import torch

from .compiled_function import aot_function


class AOTModule(torch.nn.Module):
    """Run ``orig_module`` with a compiled forward pass.

    Parameters and buffers are those of ``orig_module``.
    """

    def __init__(self, orig_module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.orig_module = orig_module
        self._compiled = aot_function(orig_module, *args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Call ``orig_module`` by its compiled programs, and return its results."""
        return self._compiled(*args, **kwargs)


def aot_module(mod: torch.nn.Module, *args: object, **kwargs: object) -> AOTModule:
    """Return ``mod`` with a compiled forward pass, as ``functorch.compile.aot_module`` does.

    The other arguments are those of ``aot_function``.

    >>> model = aot_module(torch.nn.Linear(2, 1), nop)
    >>> model(torch.ones(3, 2)).shape
    torch.Size([3, 1])

    Gradients arrive at the parameters of ``mod``, and its buffers change, as without the compiler.
    ``TypeError`` if ``mod`` is no module.
    """
    if not isinstance(mod, torch.nn.Module):
        raise TypeError(
            f"aot_module takes a module, not {type(mod).__name__}; for a function use aot_function"
        )
    return AOTModule(mod, *args, **kwargs)
