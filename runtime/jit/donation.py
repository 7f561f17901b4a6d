"""Arguments whose memory a call takes.

    step = jit(step, donate="state")
    state = step(state, batch)          # the old state is empty from now on

The graph frees such a tensor after its last use, although the caller still has it. So a step that
returns a new state needs no memory for two of them.
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
_TAKEN = "_memory_is_taken"  # an attribute of tensors


def donating(
    run: Callable[..., object], names: Sequence[str], donated: Sequence[int | str]
) -> Callable[..., Any]:
    """``run``, to whose calls the arguments ``donated``, names or positions, are donated.
    ``names``: of its positional parameters."""
    wanted = {
        names[x] if isinstance(x, int) and -len(names) <= x < len(names) else x for x in donated
    }

    def call(*args: object, **kwargs: object) -> Any:
        known: Mapping[Any, Any] = {
            **dict(enumerate(args)),
            **dict(zip(names, args, strict=False)),
            **kwargs,
        }
        given = [known[x] for x in wanted if x in known]
        leaves = [x for argument in given for x in opened.flatten(argument)[0]]
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if any(isinstance(t, Value) and t._level.number for t in tensors):
            # in a transform, or in another program, which keeps what it needs
            return run(*args, **kwargs)
        for t in tensors:
            _refuse_unfit(t)
        before, _DONATED.tensors = _DONATED.tensors, tensors
        try:
            return run(*args, **kwargs)
        finally:
            _DONATED.tensors = before

    return call


def _refuse_unfit(t: torch.Tensor) -> None:
    """Raise ``ValueError`` if the memory of ``t`` was taken before, or is not its own to give."""
    if getattr(t, _TAKEN, False) and not t.numel():
        raise ValueError(
            "a donated argument has been donated before, and is empty. "
            "Donate what the last call has returned."
        )
    is_plain = type(t) is torch.Tensor and t.layout is torch.strided
    if not is_plain or t.requires_grad or t._is_view():
        raise ValueError(
            f"a donated argument has a {_kind(t)}. "
            "Donate plain tensors without history that own their memory."
        )


def _kind(t: torch.Tensor) -> str:
    """Return what ``t`` is that cannot be donated, for an error."""
    if type(t) is not torch.Tensor:
        return type(t).__name__
    if t.layout is not torch.strided:
        return f"tensor of layout {t.layout}"
    return "tensor that requires grad" if t.requires_grad else "view of another tensor"


def take(call: Call, joint: Joint) -> None:
    """Take the memory of the tensors that are donated to this call. The caller's have no
    elements from now on."""
    donated = set(map(id, _DONATED.tensors))
    ours = {i: t for i, t in enumerate(call.plain) if id(t) in donated}
    numbers = ours.keys()
    if any(id(unwrap(t)) in donated for t in joint.closed_over):
        raise RuntimeError(
            "the program also closes over a tensor that is donated. "
            "Let it use the argument, or donate a clone."
        )
    boundary = joint.boundary
    writes = any(boundary.inputs[i].written for i in numbers)
    returned = {o.number for o in boundary.outputs if o.made is Made.INPUT}
    if writes or returned & numbers:
        raise RuntimeError(
            "the program writes to an argument that is donated, or returns it or a view of it. "
            "Donate what it only reads."
        )
    for i, t in ours.items():
        call.plain[i] = t.detach()
    for t in ours.values():  # after the loop before: one tensor may be given twice
        t.data = t.new_empty(0)
        setattr(t, _TAKEN, True)
