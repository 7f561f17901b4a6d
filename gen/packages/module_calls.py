"""Call modules of torch.nn as functions of their inputs and parameters.

    linear = ModuleCall(lambda: torch.nn.Linear(3, 2))
    linear.shapes                    # [[2, 3], [2]]
    linear(x, weight, bias)

So a row of the matrix can test the derivatives by the parameters too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import functional_call

__all__ = ["ModuleCall"]


class ModuleCall:
    """A module in evaluation mode, whose last arguments are its parameters."""

    def __init__(self, make: Callable[[], torch.nn.Module]) -> None:
        self._make = make
        self._modules: dict[torch.dtype, torch.nn.Module] = {}  # one for each dtype of parameters
        template = make()
        self.names = [name for name, _ in template.named_parameters()]
        self.shapes = [list(parameter.shape) for parameter in template.parameters()]

    def __call__(self, *arguments: Any) -> Any:
        """Return the results of the module for inputs and parameters."""
        cut = len(arguments) - len(self.names)
        parameters = dict(zip(self.names, arguments[cut:], strict=True))
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        dtype = next(each.dtype for each in tensors if each.is_floating_point())
        return functional_call(self._module(dtype), parameters, arguments[:cut])

    def _module(self, dtype: torch.dtype) -> torch.nn.Module:
        """Return the module whose buffers have this dtype."""
        if dtype not in self._modules:
            self._modules[dtype] = self._make().to(dtype).eval()
        return self._modules[dtype]
