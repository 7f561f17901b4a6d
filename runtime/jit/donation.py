"""Arguments whose memory a call takes.

    step = jit(step, donate="state")
    state = step(state, batch)          # the old state is empty from now on

The graph frees such a tensor after its last use, although the caller still has it. So a step that
returns a new state needs no memory for two of them.

A call goes through here twice. :func:`donate_arguments` finds the tensors before the program is
chosen. :func:`take` empties them when the program is known, just before its graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..aot.calls.arguments import Call
from ..aot.capture import opened
from ..aot.capture.boundary import Made
from ..aot.capture.joint import Joint
from ..seam.ambient import Ambient
from ..seam.levels import Value
from ..session.tensor import unwrap


class _Donated(Ambient):
    """``tensors``: those that the caller of this thread donates."""

    tensors: Sequence[torch.Tensor] = ()


_DONATED = _Donated()
# An attribute of the tensors that a call has emptied. A user may fill one again, then donate it.
_TAKEN = "_memory_is_taken"


def donate_arguments(
    run: Callable[..., object], names: Sequence[str], donated: Sequence[int | str]
) -> Callable[..., Any]:
    """Return ``run`` with donation: its calls take the memory of the arguments ``donated``.

    ``names`` are those of the positional parameters, none if the signature is unknown. ``donated``
    are names of parameters or positions, which may be negative. An argument may be a tree: all
    tensors in it are donated. A call raises ``ValueError`` if one of them cannot be donated.
    """
    # A position becomes its name where that is known, as the argument may come by keyword.
    donated_keys = {
        names[key] if isinstance(key, int) and -len(names) <= key < len(names) else key
        for key in donated
    }

    def call(*args: object, **kwargs: object) -> Any:
        arguments: Mapping[Any, Any] = {  # by position and by name
            **dict(enumerate(args)),
            **dict(zip(names, args, strict=False)),
            **kwargs,
        }
        donated_arguments = [arguments[key] for key in donated_keys if key in arguments]
        leaves = [leaf for tree in donated_arguments for leaf in opened.flatten(tree)[0]]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        # The level of the session has number 0. A value of another one belongs to a transform or
        # to the capture of a program around this one, which may need it after this call.
        if any(isinstance(tensor, Value) and tensor._level.number for tensor in tensors):
            return run(*args, **kwargs)
        for tensor in tensors:
            _refuse_unfit(tensor)
        # Calls may nest, so what an outer one donates is put back.
        before, _DONATED.tensors = _DONATED.tensors, tensors
        try:
            return run(*args, **kwargs)
        finally:
            _DONATED.tensors = before

    return call


def _refuse_unfit(tensor: torch.Tensor) -> None:
    """Raise ``ValueError`` if the memory of ``tensor`` was taken before, or is not its own to give.

    A subclass may hold other tensors, a view shares its memory with its base, and a
    backward pass may need a tensor that requires grad.
    """
    if getattr(tensor, _TAKEN, False) and not tensor.numel():
        raise ValueError(
            "a donated argument has been donated before, and is empty. "
            "Donate what the last call has returned."
        )
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not is_plain or tensor.requires_grad or tensor._is_view():
        raise ValueError(
            f"a donated argument has a {_describe_unfit(tensor)}. "
            "Donate plain tensors without history that own their memory."
        )


def _describe_unfit(tensor: torch.Tensor) -> str:
    """Return what keeps ``tensor`` from being donated, for the error of :func:`_refuse_unfit`."""
    if type(tensor) is not torch.Tensor:
        return type(tensor).__name__
    if tensor.layout is not torch.strided:
        return f"tensor of layout {tensor.layout}"
    if tensor.requires_grad:
        return "tensor that requires grad"
    return "view of another tensor"


def take(call: Call, joint: Joint) -> None:
    """Take the memory of the tensors that are donated to this call.

    The graph gets other tensors with that memory in ``call.plain``. The caller's tensors have no
    elements from now on. ``joint`` is the program that is about to run. ``RuntimeError`` if it
    still needs the caller's tensors, because it closes over one, writes to it or returns it; then
    nothing is taken.
    """
    donated_ids = set(map(id, _DONATED.tensors))
    donated = {
        index: tensor for index, tensor in enumerate(call.plain) if id(tensor) in donated_ids
    }
    if any(id(unwrap(tensor)) in donated_ids for tensor in joint.closed_over):
        raise RuntimeError(
            "the program also closes over a tensor that is donated. "
            "Let it use the argument, or donate a clone."
        )
    boundary = joint.boundary
    writes = any(boundary.inputs[index].written for index in donated)
    returned = {output.number for output in boundary.outputs if output.made is Made.INPUT}
    if writes or returned & donated.keys():
        raise RuntimeError(
            "the program writes to an argument that is donated, or returns it or a view of it. "
            "Donate what it only reads."
        )
    for index, tensor in donated.items():
        call.plain[index] = tensor.detach()
    # In a second loop, because one tensor may be given twice: it is detached for each place first.
    for tensor in donated.values():
        tensor.data = tensor.new_empty(0)
        setattr(tensor, _TAKEN, True)
