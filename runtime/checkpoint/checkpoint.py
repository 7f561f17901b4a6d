"""Checkpoint a function, in one of three ways: by frames (:mod:`.frame`), which is the
default, as a region of a program that is captured (:mod:`.captured`), or reentrant.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from .. import autograd
from ..autograd.function import Function
from ..facts.lock import probe
from ..seam.ambient import Ambient
from ..seam.call_types import Keywords
from ..seam.levels import Value
from ..tape.running import RUNNING
from ..trace.regions import running_traces
from .captured import captured
from .frame import Frame
from .op_log import OpLog
from .selective import HOOKS_ARE_AN_OPTION, respect_hooks
from .state import Surroundings

# --- reentrant ------------------------------------------------------------------------------------
#
# A custom Function. The first run records no graph. The second has a backward pass of its own
# inside the outer one.


def _leaf(x: torch.Tensor) -> torch.Tensor:
    """Return a leaf that shares the data of ``x`` and its flag."""
    leaf = x.detach()
    # code of the runtime does not call the user's methods of a value
    if x.requires_grad and isinstance(leaf, Value):
        leaf.start_leaf()
    elif x.requires_grad:
        leaf.requires_grad_()
    return leaf


def detach_variable(inputs: tuple[object, ...]) -> tuple[Any, ...]:
    """Return leaves that share the data of the tensors among ``inputs``, as
    ``torch.utils.checkpoint.detach_variable``."""
    if not isinstance(inputs, tuple):
        raise RuntimeError(
            "Only tuple of tensors is supported. Got Unsupported input type: "
            f"{type(inputs).__name__}"
        )
    return tuple(_leaf(x) if isinstance(x, torch.Tensor) else x for x in inputs)


def check_backward_validity(inputs: Iterable[object]) -> None:
    """Warn if no tensor among ``inputs`` requires grad."""
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        warnings.warn(
            "None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2
        )


class CheckpointFunction(Function):
    """A Function whose backward pass runs a function again. ``apply(function, preserve_rng_state,
    *args)`` returns the outputs of ``function(*args)``."""

    @staticmethod
    def forward(
        ctx: Any, run_function: Callable[..., object], preserve_rng_state: bool, *args: object
    ) -> object:
        """Run the function without a graph, and save its arguments."""
        check_backward_validity(args)
        ctx.run_function = run_function
        ctx.surroundings = Surroundings(args, preserve_rng_state)
        # tensors are saved by the tape, which checks that nobody writes to them
        ctx.inputs = tuple(
            None if isinstance(argument, torch.Tensor) else argument for argument in args
        )
        ctx.tensor_positions = tuple(
            index for index, argument in enumerate(args) if isinstance(argument, torch.Tensor)
        )
        ctx.save_for_backward(*(args[position] for position in ctx.tensor_positions))
        return run_function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: object) -> object:
        """Run the function again with a graph, and a backward pass through it. Gradients of what it
        closes over are added to ``.grad`` there."""
        if RUNNING.task is None or RUNNING.task.captured is not None:
            raise RuntimeError(
                "When use_reentrant=True, torch.utils.checkpoint is incompatible "
                "with .grad() or passing an `inputs` parameter to .backward(). "
                "use_reentrant=False has no such limit."
            )
        inputs = list(ctx.inputs)
        for index, tensor in zip(ctx.tensor_positions, ctx.saved_tensors, strict=True):
            inputs[index] = tensor
        # the second run is a graph of its own, which ends at these leaves
        leaves = detach_variable(tuple(inputs))
        with ctx.surroundings.restored(), torch.enable_grad():
            outputs = ctx.run_function(*leaves)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        _run_backward(outputs, grads)
        gradients = (value.grad if isinstance(value, torch.Tensor) else None for value in leaves)
        # the first two arguments of forward are no tensors
        return (None, None, *gradients)


def _run_backward(outputs: Sequence[object], grads: Sequence[object]) -> None:
    """Run the backward pass of the outputs that have a history."""
    roots: list[torch.Tensor] = []
    cotangents: list[object] = []
    for output, gradient in zip(outputs, grads, strict=True):
        if isinstance(output, torch.Tensor) and output.requires_grad:
            roots.append(output)
            cotangents.append(gradient)
    if not roots:
        raise RuntimeError(
            "none of output has requires_grad=True, this checkpoint() is not necessary"
        )
    autograd.backward(roots, cotangents)


Contexts = Callable[[], tuple[AbstractContextManager[object], AbstractContextManager[object]]]

# --- the public functions -------------------------------------------------------------------------


class _Policy(Ambient):
    """Settings of this thread that override the arguments of :func:`checkpoint`. None
    overrides nothing."""

    early_stop: bool | None = None
    debug: bool | None = None


POLICY = _Policy()


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Generator[None]:
    """Override ``early_stop`` of the calls inside the block, as
    ``torch.utils.checkpoint.set_checkpoint_early_stop``."""
    before, POLICY.early_stop = POLICY.early_stop, enable
    try:
        yield
    finally:
        POLICY.early_stop = before


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Generator[None]:
    """Override ``debug`` of the calls inside the block, as
    ``torch.utils.checkpoint.set_checkpoint_debug_enabled``. None overrides nothing."""
    before, POLICY.debug = POLICY.debug, enabled
    try:
        yield
    finally:
        POLICY.debug = before


def noop_context_fn() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return two contexts that do nothing, the default of ``context_fn``."""
    return nullcontext(), nullcontext()


def _warn(name: str, stacklevel: int) -> None:
    """Warn a caller, so many frames up, that did not pass ``use_reentrant``."""
    warnings.warn(
        (
            f"{name}: the use_reentrant parameter should be passed explicitly. True, which "
            "is taken now, runs a backward pass within the backward pass; False has fewer limits."
        ),
        stacklevel=stacklevel,
    )


_RESPECT = "respect_saved_tensors_hooks"
# the options that a reentrant checkpoint refuses
_NOT_REENTRANT = (
    f"`context_fn`, `debug`, or `{_RESPECT}`" if HOOKS_ARE_AN_OPTION else "`context_fn` or `debug`"
)


# Whether checkpoint makes a decorator if it gets no function.
_DECORATES = {"TypeError": False, "1.0": True}[probe("checkpoint", "without a function")]


class _Checkpointed:
    """A function that is checkpointed in each call, as a function or as a method of a class."""

    def __init__(self, function: Callable[..., object], options: dict[str, Any]) -> None:
        self.function = function
        self.options = options
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return _run(self.function, args, kwargs, **self.options)

    def __get__(self, instance: object, owner: object = None) -> _Checkpointed:
        """Return the method of ``instance``, checkpointed with the same options."""
        bind = getattr(self.function, "__get__", None)
        if instance is None or bind is None:
            return self
        return _Checkpointed(bind(instance, owner), self.options)


def checkpoint(
    function: Callable[..., object] | None = None,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Contexts = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """Return ``function(*args, **kwargs)``, without saving its intermediate tensors: the backward
    pass runs the function again. The semantics are those of ``torch.utils.checkpoint.checkpoint``.

    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> y = checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False)
    >>> y.sum().backward()                      # computes x.exp() again
    >>> torch.equal(x.grad, x.detach().exp() * x.detach().exp().cos())
    True

    ``use_reentrant=False`` records the graph, and the second run computes the tensors that it
    saved. ``True`` records nothing in the first run. The second run has a backward pass of its own
    inside the outer one, so ``grad()`` and ``backward(inputs=...)`` are errors.
    ``preserve_rng_state=True``: both runs draw the same random numbers. ``context_fn()`` returns a
    context for each run. ``determinism_check``: ``"default"`` compares shape, dtype and device of
    the tensors that both runs save, ``"none"`` does not. ``debug`` logs both runs for the error
    message. ``early_stop`` stops the second run after the last tensor that is needed. Raises
    :class:`CheckpointError` if the runs differ.

    ``respect_saved_tensors_hooks``, where torch has that option: ``True`` lets hooks for saved
    tensors see what a policy of ``context_fn`` saves, ``False`` does not. Without it they do not,
    and a ``FutureWarning`` says so.

    Without a function it returns a decorator with the options, where torch's does.

    Inside a function that is compiled (``runtime.aot``) the call marks its part of the graph. The
    compiled backward computes the values of this part again. Random numbers are drawn once. What
    the function writes to older tensors, such as the statistics of batch norm, it writes twice.
    """
    options = {
        "use_reentrant": use_reentrant,
        "preserve_rng_state": kwargs.pop("preserve_rng_state", True),
        "context_fn": context_fn,
        "determinism_check": determinism_check,
        "debug": debug,
        "early_stop": early_stop,
        _RESPECT: kwargs.pop(_RESPECT, None) if HOOKS_ARE_AN_OPTION else None,
    }
    # where torch has no decorator, a call without a function is an error
    if function is not None or args or not _DECORATES:
        return _run(function, args, kwargs, **options)
    _refuse_keywords(kwargs)
    return functools.partial(_Checkpointed, options=options)


def _refuse_keywords(kwargs: dict[str, object]) -> None:
    """Raise ``ValueError`` for keywords that are no options, as torch does."""
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))


def _run(
    function: Any,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    use_reentrant: bool | None,
    preserve_rng_state: bool,
    **options: Any,
) -> Any:
    """Run ``function`` as :func:`checkpoint` does.

    ``options``: those of a checkpoint that is not reentrant.
    """
    if use_reentrant is None:
        # the caller is above _warn, _run and checkpoint
        _warn("torch.utils.checkpoint", 4)
        use_reentrant = True
    if not use_reentrant:
        with surroundings(function, args, kwargs, preserve_rng_state=preserve_rng_state, **options):
            return function(*args, **kwargs)
    _refuse_keywords(kwargs)
    has_contexts = options["context_fn"] is not noop_context_fn
    if has_contexts or options["debug"] or options[_RESPECT] is not None:
        raise ValueError(f"Passing {_NOT_REENTRANT} is only supported when use_reentrant=False.")
    # a graph has one way for both: the calls of the function are marked
    if running_traces():
        first, again = noop_context_fn()
        with captured(function, args, {}, first, again, stops=False) as run:
            results = function(*args)
        run.follow(results)
        return results
    return CheckpointFunction.apply(function, preserve_rng_state, *args)


@contextmanager
def surroundings(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Keywords,
    *,
    preserve_rng_state: bool,
    context_fn: Contexts,
    determinism_check: str,
    debug: bool,
    early_stop: bool,
    respect_saved_tensors_hooks: bool | None = None,
) -> Generator[None]:
    """Let the call of ``function`` with these arguments, in this block, be a checkpoint that is not
    reentrant. For the options see :func:`checkpoint`."""
    if determinism_check not in ("default", "none"):
        raise ValueError(
            f"determinism_check should be one of ['default', 'none'], but got {determinism_check}"
        )
    if POLICY.debug is not None:
        debug = POLICY.debug
    if POLICY.early_stop is not None:
        early_stop = POLICY.early_stop
    if debug and context_fn is not noop_context_fn:
        raise ValueError("debug=True is incompatible with non-default context_fn")
    first, again = context_fn()
    respect_hooks(first, respect_saved_tensors_hooks)
    # in a graph, or without a backward pass, there is no frame
    if running_traces():
        with captured(function, args, kwargs, first, again, stops=early_stop):
            yield
        return
    if not torch.is_grad_enabled():
        with first:
            yield
        return
    log = None
    if debug:
        log = OpLog()
    frame = Frame(
        function,
        args,
        kwargs,
        Surroundings((*args, *kwargs.values()), preserve_rng_state),
        again,
        check=determinism_check == "default",
        early_stop=early_stop,
        log=log,
    )
    with frame.recording(), first, log or nullcontext():
        yield


def checkpoint_sequential(
    functions: torch.nn.Sequential | Sequence[Callable[[Any], object]],
    segments: int,
    input: object,
    use_reentrant: bool | None = None,
    **kwargs: object,
) -> Any:
    """Run ``functions`` one after the other, in ``segments`` of equal length, as
    ``torch.utils.checkpoint.checkpoint_sequential``. All segments but the last are checkpointed.
    ``preserve_rng_state``: as for :func:`checkpoint`."""
    if use_reentrant is None:
        _warn("torch.utils.checkpoint.checkpoint_sequential", 3)
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    _refuse_keywords(kwargs)
    layers: list[Callable[[object], object]]
    if isinstance(functions, torch.nn.Sequential):
        layers = list(functions.children())
    else:
        layers = list(functions)
    if not 1 <= segments <= len(layers):
        raise ValueError(
            "segments must be between 1 and the number of functions, "
            f"{len(layers)}, but got {segments}"
        )

    def run(some: list[Callable[[object], object]]) -> Callable[[object], object]:
        """Return the function that runs the layers ``some`` one after the other."""

        def segment(x: object) -> object:
            """Run the layers of one segment."""
            for layer in some:
                x = layer(x)
            return x

        return segment

    # the backward pass begins with the last segment, so that may as well stay in memory
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
