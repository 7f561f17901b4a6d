"""A kernel for torch's Python dispatcher, which symbolic traces switch on.

``dropout(x, 0.5, train=False)`` is ``x`` itself for the C++ kernel. Torch's decomposition in Python returns a copy, and a write to the copy
would not reach ``x``. No other decomposition there differs from its kernel in what it aliases.
"""

from __future__ import annotations

import torch
from torch._C import DispatchKey
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..seam.level_mode import LevelMode
from ..seam.levels import Value

_DROPOUT = torch.ops.aten.dropout.default


@_DROPOUT.py_impl(DispatchKey.PythonTLSSnapshot)
def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As the C++ kernel where a level of ours sees the call. Other calls go on to torch's decomposition."""
    ours = isinstance(input, Value) or isinstance(_get_current_dispatch_mode(), LevelMode)
    if ours and (not train or p == 0 or any(type(n) is int and n == 0 for n in input.shape)):
        return input
    out: torch.Tensor = _DROPOUT.py_kernels[DispatchKey.Autograd](input, p, train)
    return out
