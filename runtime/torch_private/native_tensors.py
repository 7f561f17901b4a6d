"""How tensors are made, marked, printed, pickled and exchanged in C++."""

from __future__ import annotations

from typing import Any

import torch
import torch._tensor_str
import torch._utils

TensorBase = torch._C.TensorBase
"""The class of tensors in C++. Its attributes are those that no class in Python has replaced."""
other_name_of_grad: Any = torch._C.TensorBase._grad
"""The attribute for the gradient under its other name."""
use_count = torch._C.TensorBase._use_count  # type: ignore[attr-defined]
"""How many owners a tensor has in C++."""
make_subclass = torch.Tensor._make_subclass
"""Make an instance of a class that shares the memory of a tensor."""
make_wrapper_subclass: Any = torch.Tensor._make_wrapper_subclass
"""Make an instance of a class that has sizes and no memory."""
set_conj = torch._C._set_conj
"""Mark a tensor as the conjugate of its elements, or not."""
set_neg = torch._C._set_neg
"""Mark a tensor as the negative of its elements, or not."""
close_memory = torch._C._set_throw_on_mutable_data_ptr
"""Let a tensor refuse whoever asks where its memory is in order to write."""
storage_use_count = torch._C._storage_Use_Count
"""How many owners a storage has in C++."""
swap_contents = torch._C._swap_tensor_impl
"""Exchange what two tensors are in C++. The objects in Python stay."""
printed: Any = torch._tensor_str._str
"""The text of a tensor."""
with_suffixes: Any = torch._tensor_str._add_suffixes
"""A text of elements with what stands behind them, such as the dtype."""
set_state: Any = torch._utils._set_obj_state
"""Give an object the attributes and slots that a pickle has of it."""
rebuild_wrapper_subclass = torch._utils._rebuild_wrapper_subclass
"""What a pickle names to load an instance without memory."""
set_tensor_metadata: Any = torch._utils.set_tensor_metadata
"""Give a tensor that was loaded the marks of a conjugate or a negative."""
mkldnn_layout = torch._mkldnn  # type: ignore[attr-defined]
"""The layout of tensors of oneDNN."""
FLAT_PARAMETERS = "torch.distributed.fsdp._flat_param"
"""The module of parameters of which each process holds a part. Its import is slow."""


def as_installed(native: Any) -> Any:
    """Look up what is at the place of a native method of tensors. It is another under the drop-in.

    Only ``make_subclass`` and ``make_wrapper_subclass`` need it.
    """
    return getattr(torch.Tensor, native.__name__)


def rebuild_parameter() -> Any:
    """Look up what a pickle names to load a parameter. It is another under the drop-in."""
    return torch._utils._rebuild_parameter


def rebuild_parameter_with_state() -> Any:
    """Look up what a pickle names to load a parameter that has attributes, as above."""
    return torch._utils._rebuild_parameter_with_state


def rebuild_with_attributes() -> Any:
    """Look up what a pickle names to load any tensor that has attributes, as above."""
    return torch._tensor._rebuild_from_type_v2
