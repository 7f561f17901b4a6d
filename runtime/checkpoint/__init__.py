"""Compute tensors again instead of saving them, as ``torch.utils.checkpoint``.

``checkpoint`` has the public functions, ``frame`` the runs of one call, ``selective`` the policies
op by op. The package imports ``autograd`` and what lies below. Start with ``checkpoint.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ..seam.ambient import Ambient
from ..trace.regions import running_traces
from .frame import CheckpointError, Frame, GraphExecGroup
from .op_log import OpLog
from .reentrant import CheckpointFunction, check_backward_validity, detach_variable
from .selective import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)
from .state import DefaultDeviceType, Surroundings, get_device_states, set_device_states
from .traced import traced

__all__ = [
    "SAC_IGNORED_OPS",
    "CheckpointError",
    "CheckpointFunction",
    "CheckpointPolicy",
    "DefaultDeviceType",
    "GraphExecGroup",
    "SelectiveCheckpointContext",
    "check_backward_validity",
    "checkpoint",
    "checkpoint_sequential",
    "create_selective_checkpoint_contexts",
    "detach_variable",
    "get_device_states",
    "noop_context_fn",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
    "set_device_states",
]


class _Policy(Ambient):
    """Settings of this thread that override the arguments of :func:`checkpoint`. None
    overrides nothing."""

    early_stop: bool | None = None
    debug: bool | None = None


POLICY = _Policy()


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Generator[None]:
    """As ``torch.utils.checkpoint.set_checkpoint_early_stop``: overrides ``early_stop`` of the
    calls inside the block."""
    before, POLICY.early_stop = POLICY.early_stop, enable
    try:
        yield
    finally:
        POLICY.early_stop = before


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Generator[None]:
    """As ``torch.utils.checkpoint.set_checkpoint_debug_enabled``: overrides ``debug`` of the calls
    inside the block. None: does not."""
    before, POLICY.debug = POLICY.debug, enabled
    try:
        yield
    finally:
        POLICY.debug = before


def noop_context_fn() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), nullcontext()


def _warn(name: str) -> None:
    """Warn a caller that did not pass ``use_reentrant``."""
    warnings.warn(
        (
            f"{name}: the use_reentrant parameter should be passed explicitly. True, which "
            "is taken now, runs a backward pass within the backward pass; False has fewer limits."
        ),
        stacklevel=3,
    )


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[
        [], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
    ] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """``function(*args, **kwargs)``, without saving its intermediate tensors: the backward pass
    runs the function again. As ``torch.utils.checkpoint.checkpoint``.

    ``use_reentrant=False`` records the graph, and the second run computes the tensors that it
    saved. ``True`` records nothing in the first run. The second run has a backward pass of its own
    inside the outer one, so ``grad()`` and ``backward(inputs=...)`` are errors.
    ``preserve_rng_state=True``: both runs draw the same random numbers. ``context_fn()`` returns a
    context for each run. ``determinism_check``: ``"default"`` compares shape, dtype and device of
    the tensors that both runs save, ``"none"`` does not. ``debug`` logs both runs for the error
    message. ``early_stop`` stops the second run after the last tensor that is needed. Raises
    :class:`CheckpointError` if the runs differ.

    Inside a function that is compiled (``runtime.aot``) the call marks its part of the graph. The
    compiled backward computes the values of this part again. Random numbers are drawn once.
    """
    if use_reentrant is None:
        _warn("torch.utils.checkpoint")
        use_reentrant = True
    preserve_rng_state = kwargs.pop("preserve_rng_state", True)
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug:
            raise ValueError(
                "Passing `context_fn` or `debug` is only supported when use_reentrant=False."
            )
        if running_traces():
            return traced(function, args, {}, nullcontext())
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    if determinism_check not in ("default", "none"):
        raise ValueError(
            f"determinism_check should be one of ['default', 'none'], but got {determinism_check}"
        )
    debug = debug if POLICY.debug is None else POLICY.debug
    if debug and context_fn is not noop_context_fn:
        raise ValueError("debug=True is incompatible with non-default context_fn")
    first, again = context_fn()
    if running_traces():
        return traced(function, args, kwargs, first)
    if not torch.is_grad_enabled():
        with first:
            return function(*args, **kwargs)
    log = OpLog() if debug else None
    frame = Frame(
        function,
        args,
        kwargs,
        Surroundings((*args, *kwargs.values()), preserve_rng_state),
        again,
        check=determinism_check == "default",
        early_stop=early_stop if POLICY.early_stop is None else POLICY.early_stop,
        log=log,
    )
    with frame.recording(), first, log or nullcontext():
        return function(*args, **kwargs)


def checkpoint_sequential(
    functions: torch.nn.Sequential | Sequence[Callable[[Any], Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    """As ``torch.utils.checkpoint.checkpoint_sequential``: run ``functions`` one after the other,
    in ``segments`` of equal length. All segments but the last are checkpointed.
    ``preserve_rng_state``: as for :func:`checkpoint`."""
    if use_reentrant is None:
        _warn("torch.utils.checkpoint.checkpoint_sequential")
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    layers: list[Callable[[Any], Any]] = (
        list(functions.children())
        if isinstance(functions, torch.nn.Sequential)
        else list(functions)
    )
    if not 1 <= segments <= len(layers):
        raise ValueError(
            "segments must be between 1 and the number of functions, "
            f"{len(layers)}, but got {segments}"
        )

    def run(some: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
        def segment(x: Any) -> Any:
            for layer in some:
                x = layer(x)
            return x

        return segment

    length = len(layers) // segments
    last = length * (segments - 1)
    for start in range(0, last, length):
        input = checkpoint(
            run(layers[start : start + length]),
            input,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve,
        )
    return run(layers[last:])(input)
