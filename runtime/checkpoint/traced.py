"""Checkpoints in a program that is being traced: a region of the graph, whose calls say whether the
partition is to save their results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx

from ..trace.regions import region
from .selective import (
    OFFLOADED,
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    Policy,
    SelectiveCheckpointContext,
    policy_of_context,
    runs_again,
)


def traced(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    first: AbstractContextManager[Any],
) -> Any:
    """``function(*args, **kwargs)`` as a region. ``first``: the context of the first run; that of a
    policy is asked for each call."""
    policy = policy_of_context(first)
    with region(lambda n: _wish(policy, n)), nullcontext() if policy is not None else first:
        return function(*args, **kwargs)


def _wish(policy: Policy | None, n: fx.Node) -> CheckpointPolicy:
    func: Any = n.target
    if policy is None:
        return CheckpointPolicy.MUST_RECOMPUTE
    if not isinstance(func, torch._ops.OpOverload) or func in SAC_IGNORED_OPS or runs_again(func):
        return CheckpointPolicy.PREFER_RECOMPUTE
    args, kwargs = fx.map_arg((n.args, n.kwargs), lambda a: a.meta.get("val"))
    wish = policy(
        SelectiveCheckpointContext(is_recompute=False, op_output=n.meta.get("val")),
        func,
        *args,
        **kwargs,
    )
    if wish in OFFLOADED:
        raise RuntimeError(
            f"a checkpoint policy asks for {wish} of {func}. "
            "A compiled function has no offloading; use MUST_SAVE."
        )
    if isinstance(wish, CheckpointPolicy):
        return wish
    return CheckpointPolicy.MUST_SAVE if wish else CheckpointPolicy.PREFER_RECOMPUTE
