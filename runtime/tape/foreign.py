"""Refuses a backward pass that would lose the gradient of a plain tensor which requires grad by
torch's own engine, and which a call took together with tensors of the session.

Torch records such a call before it reaches us. The native side of our result then has torch's mark,
and every op passes it on. Our engine does not know those plain tensors, so a backward pass for all
leaves would lose their gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..seam.levels import Value
from ..seam.scope import is_floating
from ..torch_private.mode_stacks import unseen_by_classes, unseen_by_handlers
from ..torch_private.native_tensors import TensorBase

recorded_by_torch: Any = TensorBase.requires_grad.__get__  # type: ignore[attr-defined]
_mark: Any = TensorBase.requires_grad.__set__  # type: ignore[attr-defined]

_MESSAGE = (
    "{what} a plain torch tensor that requires grad by torch's own engine, whose gradient this "
    "package's engine cannot deliver. Make that tensor one of the session, x = runtime.wrap(x, "
    "requires_grad=True), or all of the program's by `python -m runtime`; detach() it if it needs "
    "no gradient; or name what does: backward(inputs=[...]) or runtime.autograd.grad(...)."
)


def _has_mark(tensor: object) -> bool:
    """Return :func:`recorded_by_torch` of a value of any class. A user's class is not asked: it
    would answer with what the session knows."""
    if not isinstance(tensor, Value):
        return False
    with unseen_by_classes():
        return bool(recorded_by_torch(tensor))


def refuse_lost_gradients(outputs: Iterable[object]) -> None:
    """Raise if an output has torch's mark. Called before a pass in which all leaves get
    their gradients."""
    for index, output in enumerate(outputs):
        if _has_mark(output):
            raise RuntimeError(
                _MESSAGE.format(what=f"element {index} of tensors was computed from")
            )


def refuse_plain_inputs(inputs: Iterable[object]) -> None:
    """Raise if an input of a pass is a plain tensor that requires grad: none of its
    history is ours."""
    for index, tensor in enumerate(inputs):
        if (
            isinstance(tensor, torch.Tensor)
            and not isinstance(tensor, Value)
            and tensor.requires_grad
        ):
            raise RuntimeError(_MESSAGE.format(what=f"input {index} is"))


def pass_mark_on(args: Iterable[object], output: object) -> None:
    """Set torch's mark on ``output`` if one of ``args`` has it. For a custom Function or a
    transform, whose computation torch does not see."""
    if not torch.is_grad_enabled():
        return
    if not any(map(_has_mark, args)):
        return
    outputs: Iterable[object] = (output,)
    if isinstance(output, tuple):
        outputs = output
    for result in outputs:
        if isinstance(result, Value) and _lacks_mark(result):
            with unseen_by_handlers():  # a capture would take it for the program's
                _mark(result, True)


def _lacks_mark(value: Value) -> bool:
    """Return whether torch could have marked ``value``, and has not."""
    return is_floating(value) and not recorded_by_torch(value)
