"""Custom Functions while samples are followed.

The backward of a Function is code of a user, which gets the cotangents of the whole batch. Nothing is known of where it leaves the
samples, so a gradient that would pass there is refused. Two Functions of torch are known: that of checkpoints, and that of module hooks.
"""

from __future__ import annotations

from typing import Any

import torch

from ..autograd.function import FunctionClass, record, rule, run_forward
from ..checkpoint import CheckpointFunction, checkpoint
from ..seam.levels import Value
from ..session.tensor import SESSION
from ..tape.values import edge_of
from .batch_session import BatchSession


@rule(BatchSession)
def _followed(session: BatchSession, cls: FunctionClass, args: tuple[Any, ...]) -> tuple[Any, Any]:
    name = f"{cls.__module__}.{cls.__name__}"
    if name == "torch.utils.checkpoint.CheckpointFunction" or cls is CheckpointFunction:
        return _checkpointed(cls, args), None
    output, raw, ctx = record(SESSION, cls, args)
    ctx.forget_marks()
    states = [session.state(a) if isinstance(a, Value) and a._level is SESSION else None for a in args]
    outs = output if isinstance(output, tuple) else (output,)
    if name == "torch.nn.modules._functions.BackwardHookFunction":
        for o, state in zip(outs, states, strict=True):
            if state is not None:
                session.put(o, state)
    elif any(s is not None for s in states):
        for o, inside in zip(outs, raw, strict=True):  # forward has been followed
            if isinstance(o, Value) and isinstance(inside, Value):
                session.put(o, session.state(inside))
        session.refuse(
            [o for o in outs if isinstance(o, Value) and edge_of(o) is not None],
            f"per_sample: a gradient passes the custom Function {cls.__name__} in {session.where()}. It is not known whether its backward "
            "keeps the samples apart. Write it with functions of torch, or use per_sample_grads, which runs it for each sample alone.",
        )
    return output, ctx


def _checkpointed(cls: FunctionClass, args: tuple[Any, ...]) -> Any:
    """A reentrant checkpoint, as one that is not reentrant. Its backward pass would be one of its own, of the whole batch. As there,
    nothing is differentiated if no argument requires grad."""
    function, preserve, *given = args
    if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in given):
        return run_forward(cls, args)[0]
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=preserve)
