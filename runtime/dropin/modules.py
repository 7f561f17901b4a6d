"""Replace functions of ``torch.nn`` whose kernels make tensors without the runtime: padding of
sequences, lazy parameters. And what encoders ask before they call a kernel for a whole layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..seam.call_types import Arguments
from ..seam.levels import Value
from ..session.nested_values import Nested
from ..session.tensor import unwrap
from ..torch_private.native_functions import pad_packed_sequence, pad_sequence
from ..torch_private.native_tensors import make_subclass
from .patches import Patches

_asks = torch.overrides.has_torch_function
_Uninitialized: Any = UninitializedParameter.__mro__[1]  # the mixin, which torch's stubs leave out


def _take_rows(rows: torch.Tensor, places: torch.Tensor, padding: float) -> torch.Tensor:
    """Return ``rows[places]``, with ``padding`` where a place is negative."""
    missing = (places < 0).view(*places.shape, *(1,) * (rows.dim() - 1))
    return rows[places.clamp(min=0)].masked_fill(missing, padding)


def _pad_sequence(
    sequences: Sequence[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> object:
    """Do ``pad_sequence``. Torch's kernel writes into a buffer of its own, so there would be no
    gradient. Here the kernel pads row numbers, and one indexing op takes the rows."""
    are_values = any(isinstance(sequence, Value) for sequence in sequences)
    if not are_values or any(sequence.dim() == 0 for sequence in sequences):
        return pad_sequence(sequences, batch_first, padding_value, padding_side)
    # each row of a sequence has its number in the concatenation of all of them
    ends = torch.tensor(list(map(len, sequences))).cumsum(0).tolist()
    numbers = [
        torch.arange(end - len(sequence), end, device=sequence.device)
        for sequence, end in zip(sequences, ends, strict=True)
    ]
    return _take_rows(
        torch.cat(list(sequences)),
        pad_sequence(list(map(unwrap, numbers)), batch_first, -1, padding_side),
        padding_value,
    )


def _pad_packed_sequence(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> object:
    """Do torch's ``_pad_packed_sequence``, in the same way as :func:`_pad_sequence`."""
    numbers = torch.arange(len(data), device=data.device).unsqueeze(1)
    places, lengths = pad_packed_sequence(
        unwrap(numbers), unwrap(batch_sizes), batch_first, -1, total_length
    )
    return _take_rows(data, places.squeeze(-1), padding_value), lengths


def _make_uninitialized(
    cls: Any, requires_grad: bool, device: Any, dtype: torch.dtype | None
) -> Any:
    """Return a lazy object of the class ``cls``: empty, and without a shape yet."""
    return make_subclass(cls, unwrap(torch.empty(0, device=device, dtype=dtype)), requires_grad)


def _new_parameter(
    cls: object, requires_grad: bool = True, device: object = None, dtype: torch.dtype | None = None
) -> object:
    """Return a lazy parameter, for ``UninitializedParameter.__new__``."""
    return _make_uninitialized(cls, requires_grad, device, dtype)


def _new_buffer(
    cls: object,
    requires_grad: bool = False,
    device: object = None,
    dtype: torch.dtype | None = None,
    persistent: bool = True,
) -> object:
    """Return a lazy buffer, for ``UninitializedBuffer.__new__``."""
    buffer = _make_uninitialized(cls, requires_grad, device, dtype)
    buffer.persistent = persistent
    buffer._is_buffer = True
    return buffer


def _materialize(
    tensor: torch.Tensor,
    shape: Sequence[int],
    device: str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Turn the lazy object into a runtime tensor of that shape, in place. A lazy parameter
    becomes a parameter."""
    like = tensor.data
    tensor_of_shape: Any = torch.empty(
        shape,
        device=device or like.device,
        dtype=dtype or like.dtype,
        requires_grad=tensor.requires_grad,
    )
    if isinstance(tensor, UninitializedParameter):
        tensor_of_shape = torch.nn.Parameter(tensor_of_shape, tensor.requires_grad)
    # in place: modules and optimizers refer to the lazy object
    tensor_of_shape.__dict__.update(tensor.__dict__)
    torch.utils.swap_tensors(tensor, tensor_of_shape)


def _has_torch_function(args: Arguments) -> bool:
    """Return ``torch.overrides.has_torch_function``, without nested tensors of the session: theirs
    only refuses transforms. Encoders of ``torch.nn`` ask before they take their fast path, which
    leaves out what is padded."""
    return _asks(tuple(argument for argument in args if not isinstance(argument, Nested)))


def patch_modules(patches: Patches) -> None:
    """Replace the functions, until ``patches`` are undone."""
    patches.set(torch.overrides, "has_torch_function", _has_torch_function)
    patches.set(torch._C._nn, "pad_sequence", _pad_sequence)
    patches.set(torch._VF, "_pad_packed_sequence", _pad_packed_sequence)
    patches.set(UninitializedParameter, "__new__", staticmethod(_new_parameter))
    patches.set(UninitializedBuffer, "__new__", staticmethod(_new_buffer))
    patches.set(_Uninitialized, "materialize", _materialize)
