"""Refuses what users may not do with a tensor of the session, in torch's words.

Example: ``x.grad = g`` raises if ``g`` has another shape than ``x``. The errors are ``settled``: if
a program is captured here, each later call of it raises the same.
"""

from __future__ import annotations

import torch

from ..rules.record import extent
from ..seam.level_mode import entering
from ..seam.levels import Value
from ..seam.scope import is_floating
from ..seam.user_code import settled
from ..tape.values import GradValue

NOT_A_LEAF = (
    "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. "
    "A backward pass writes to leaves alone: call .retain_grad() on this tensor before the pass, "
    "or look at the leaf that it was computed from."
)


def refuse_in_capture(what: str) -> None:
    """Raise if a capture is running. Only ops enter a graph, so this would happen at the capture
    and in no later call."""
    if entering() is not None:
        raise settled(
            RuntimeError(
                f"the program {what} a tensor that it closes over. A compiled program would do so "
                "when it is captured, and in no later call. Do that before or after the call."
            )
        )


def refuse_unfit_flag(tensor: Value) -> None:
    """Raise unless the leaf ``tensor`` can require grad: it has a dtype of real or complex numbers,
    and no inference tensor begins a history outside of inference mode."""
    if not is_floating(tensor):
        raise settled(RuntimeError("only Tensors of floating point dtype can require gradients"))
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise settled(
            RuntimeError(
                "Setting requires_grad=True on inference tensor outside "
                "InferenceMode is not allowed."
            )
        )


def refuse_unfit_gradient(tensor: Value, dtype: torch.dtype | None, value: object) -> None:
    """Raise unless ``value`` can be assigned to ``tensor.grad``.

    It must be another tensor of the same shape, on a device of the same type, and of ``dtype``,
    unless that is None.
    """
    if not isinstance(value, torch.Tensor):
        raise settled(
            TypeError(
                "assigned grad expected to be a Tensor or None but got grad of type "
                f"{type(value).__name__}"
            )
        )
    if value is tensor:
        raise settled(RuntimeError("can't assign Variable as its own grad"))
    if dtype is not None and value.dtype is not dtype:
        raise settled(
            RuntimeError(
                f"attempting to assign a gradient with dtype '{value.dtype}' to a tensor with "
                f"grad_dtype '{dtype}'. Convert it, or set grad_dtype first."
            )
        )
    if value.device.type != tensor.device.type:
        raise settled(
            RuntimeError(
                f"attempting to assign a gradient with device type '{value.device.type}' "
                f"to a tensor with device type '{tensor.device.type}'. "
                "Move the gradient with .to(tensor.device)."
            )
        )
    sizes = [extent(value), extent(tensor)]
    if sizes[0] != sizes[1]:
        # the extent of a nested tensor is no torch.Size
        got, own = (list(size) if isinstance(size, torch.Size) else size for size in sizes)
        raise settled(
            RuntimeError(
                f"attempting to assign a gradient of size '{got}' to a tensor of size "
                f"'{own}'. A gradient has the shape of its tensor."
            )
        )


def refuse_unfit_grad_dtype(tensor: GradValue, dtype: object) -> None:
    """Raise unless ``dtype`` can be assigned to ``tensor.grad_dtype``: it is a dtype or None, the
    tensor is a leaf, and a gradient that it has is of this dtype."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise settled(
            RuntimeError(
                f"grad_dtype must be a torch.dtype or None, but got {type(dtype).__name__}"
            )
        )
    if not tensor.is_leaf:
        raise settled(RuntimeError("grad_dtype can only be set on leaf tensors."))
    gradient = tensor._grad
    if gradient is not None and dtype is not None and gradient.dtype is not dtype:
        raise settled(
            RuntimeError(
                f"Cannot set grad_dtype to '{dtype}' because there is already a gradient with "
                f"dtype '{gradient.dtype}'. Convert it or set .grad to None first."
            )
        )


def refuse_unfit_data(tensor: Value, new: torch.Tensor) -> None:
    """Raise unless ``new`` can become the data of ``tensor``, a tensor of the session."""
    if isinstance(new, Value) and new._level is not tensor._level:
        raise settled(
            RuntimeError(
                f"the data of a tensor cannot be set to a value of {new._level.what}. "
                "Use copy_() to write its numbers."
            )
        )
    if tensor.requires_grad and not is_floating(new):
        raise settled(
            RuntimeError(
                "data set to a tensor that requires gradients must be floating point or "
                "complex dtype"
            )
        )
    # a dense tensor takes data of any shape, as in torch
    if (new.is_nested or tensor.is_nested) and extent(new) != extent(tensor):
        raise settled(
            RuntimeError("the data of a nested tensor can only be set to data of the same sizes")
        )
