"""Checkpointing as a custom Function. The first run records no graph. The second has a backward
pass of its own inside the outer one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from .. import autograd
from ..autograd.function import Function
from ..tape.running import RUNNING
from .state import Surroundings


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """As ``torch.utils.checkpoint.detach_variable``: leaves that share the data of the tensors
    among ``inputs``."""
    if not isinstance(inputs, tuple):
        raise RuntimeError(
            "Only tuple of tensors is supported. Got Unsupported input type: "
            f"{type(inputs).__name__}"
        )
    return tuple(
        x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        for x in inputs
    )


def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warn if no tensor among ``inputs`` requires grad."""
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        warnings.warn(
            "None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2
        )


class CheckpointFunction(Function):
    """``apply(function, preserve_rng_state, *args)``: the outputs of ``function(*args)``. The
    backward pass runs the function again."""

    @staticmethod
    def forward(ctx: Any, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        check_backward_validity(args)
        ctx.run_function = run_function
        ctx.surroundings = Surroundings(args, preserve_rng_state)
        ctx.inputs = tuple(None if isinstance(a, torch.Tensor) else a for a in args)
        ctx.tensor_positions = tuple(i for i, a in enumerate(args) if isinstance(a, torch.Tensor))
        ctx.save_for_backward(*(args[i] for i in ctx.tensor_positions))
        return run_function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if RUNNING.task is None or RUNNING.task.captured is not None:
            raise RuntimeError(
                "When use_reentrant=True, torch.utils.checkpoint is incompatible "
                "with .grad() or passing an `inputs` parameter to .backward(). "
                "use_reentrant=False has no such limit."
            )
        inputs = list(ctx.inputs)
        for i, t in zip(ctx.tensor_positions, ctx.saved_tensors, strict=True):
            inputs[i] = t
        leaves = detach_variable(tuple(inputs))
        with ctx.surroundings.restored(), torch.enable_grad():
            outputs = ctx.run_function(*leaves)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        pairs = [
            (o, g)
            for o, g in zip(outputs, grads, strict=True)
            if isinstance(o, torch.Tensor) and o.requires_grad
        ]
        if not pairs:
            raise RuntimeError(
                "none of output has requires_grad=True, this checkpoint() is not necessary"
            )
        autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *(x.grad if isinstance(x, torch.Tensor) else None for x in leaves))
