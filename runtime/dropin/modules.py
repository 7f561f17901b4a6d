"""Functions of ``torch.nn`` whose kernels make tensors without the runtime: padding of sequences,
lazy parameters. And what encoders ask before they call a kernel for a whole layer."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..seam.levels import Value
from ..session.nested_values import Nested
from ..session.tensor import unwrap
from ..torch_private.native_functions import pad_packed_sequence, pad_sequence
from ..torch_private.native_tensors import make_subclass
from .patches import Patches

_asks = torch.overrides.has_torch_function
_Uninitialized: Any = UninitializedParameter.__mro__[1]  # the mixin, which torch's stubs leave out


def _placed(rows: torch.Tensor, places: torch.Tensor, padding: float) -> torch.Tensor:
    """``rows[places]``, with ``padding`` where a place is negative."""
    missing = (places < 0).view(*places.shape, *(1,) * (rows.dim() - 1))
    return rows[places.clamp(min=0)].masked_fill(missing, padding)


def _padded(
    sequences: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> object:
    """``pad_sequence``. Torch's kernel writes into a buffer of its own, so there would be no
    gradient. Here the kernel pads row numbers, and one indexing op takes the rows."""
    if not any(isinstance(s, Value) for s in sequences) or any(s.dim() == 0 for s in sequences):
        return pad_sequence(sequences, batch_first, padding_value, padding_side)
    ends = torch.tensor(list(map(len, sequences))).cumsum(0).tolist()
    numbers = [
        torch.arange(end - len(s), end, device=s.device)
        for s, end in zip(sequences, ends, strict=True)
    ]
    return _placed(
        torch.cat(list(sequences)),
        pad_sequence(list(map(unwrap, numbers)), batch_first, -1, padding_side),
        padding_value,
    )


def _padded_packed(
    data: Any, batch_sizes: Any, batch_first: bool, padding_value: float, total_length: int
) -> object:
    """``_pad_packed_sequence``, in the same way as :func:`_padded`."""
    numbers = torch.arange(len(data), device=data.device).unsqueeze(1)
    places, lengths = pad_packed_sequence(
        unwrap(numbers), unwrap(batch_sizes), batch_first, -1, total_length
    )
    return _placed(data, places.squeeze(-1), padding_value), lengths


def _uninitialized(cls: Any, requires_grad: bool, device: Any, dtype: Any) -> Any:
    return make_subclass(cls, unwrap(torch.empty(0, device=device, dtype=dtype)), requires_grad)


def _new_parameter(
    cls: object, requires_grad: bool = True, device: object = None, dtype: object = None
) -> object:
    return _uninitialized(cls, requires_grad, device, dtype)


def _new_buffer(
    cls: object,
    requires_grad: bool = False,
    device: object = None,
    dtype: object = None,
    persistent: bool = True,
) -> Any:
    made = _uninitialized(cls, requires_grad, device, dtype)
    made.persistent = persistent
    made._is_buffer = True
    return made


def _materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Turn the lazy object into a runtime tensor of that shape, in place. A lazy parameter
    becomes a parameter."""
    like = tensor.data
    made: Any = torch.empty(
        shape,
        device=device or like.device,
        dtype=dtype or like.dtype,
        requires_grad=tensor.requires_grad,
    )
    if isinstance(tensor, UninitializedParameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    torch.utils.swap_tensors(tensor, made)


def _has_torch_function(args: Any) -> bool:
    """As ``torch.overrides.has_torch_function``. Nested tensors of the session do not count: theirs
    only refuses transforms. Encoders of ``torch.nn`` ask before they take their fast path, which
    leaves out what is padded."""
    return _asks(tuple(argument for argument in args if not isinstance(argument, Nested)))


def patch_modules(patches: Patches) -> None:
    patches.set(torch.overrides, "has_torch_function", _has_torch_function)
    patches.set(torch._C._nn, "pad_sequence", _padded)
    patches.set(torch._VF, "_pad_packed_sequence", _padded_packed)
    patches.set(UninitializedParameter, "__new__", staticmethod(_new_parameter))
    patches.set(UninitializedBuffer, "__new__", staticmethod(_new_buffer))
    patches.set(_Uninitialized, "materialize", _materialize)
