"""Kernels for torch's Python dispatcher, which symbolic traces switch on, where its own differ from the C++ kernels.

``dropout(x, 0.5, train=False)`` is ``x`` itself for the C++ kernel. Torch's decomposition in Python returns a copy, and a write to the copy
would not reach ``x``. ``native_batch_norm`` does not count its writes to running statistics, and torch's decomposition does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import DispatchKey
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..seam.level_mode import LevelMode
from ..seam.levels import Value

_DROPOUT = torch.ops.aten.dropout.default
_BATCH_NORM = torch.ops.aten.native_batch_norm.default


@_DROPOUT.py_impl(DispatchKey.PythonTLSSnapshot)
def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As the C++ kernel where a level of ours sees the call. Other calls go on to torch's decomposition."""
    ours = isinstance(input, Value) or isinstance(_get_current_dispatch_mode(), LevelMode)
    if ours and (not train or p == 0 or any(type(n) is int and n == 0 for n in input.shape)):
        return input
    out: torch.Tensor = _DROPOUT.py_kernels[DispatchKey.Autograd](input, p, train)
    return out


@_BATCH_NORM.py_impl(DispatchKey.PythonTLSSnapshot)
def _batch_norm(*args: Any, **kwargs: Any) -> Any:
    """As without the Python dispatcher where a level of ours sees the call: torch's decomposition counts writes to running statistics."""
    if any(isinstance(a, Value) for a in args) or isinstance(_get_current_dispatch_mode(), LevelMode):
        with torch._C._DisablePythonDispatcher():
            return _BATCH_NORM(*args, **kwargs)
    return _BATCH_NORM.py_kernels[DispatchKey.Autograd](*args, **kwargs)
