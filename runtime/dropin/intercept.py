"""Intercept calls of torch's own autograd with tensors of this package, while the drop-in
is not installed, and its own checkpoint.

    class Square(torch.autograd.Function): ...
    runtime.func.grad(lambda x: Square.apply(x).sum())(x)   # runs Square's backward

Torch's engine does not know our tapes. It would run ``forward`` and record nothing, so gradients
would silently be zero. ``import runtime`` therefore replaces functions of torch:

- ``Function.apply`` forwards a call that has our values among its arguments, or that a program
  makes which is captured, to :mod:`runtime.autograd.function`.
- The entry of the engine refuses a backward pass whose outputs or inputs are our values.
- What surrounds a function that is checkpointed is ours, if an argument is a value of ours or a
  program is captured. Torch's runs the function again for a pass of torch's engine alone.
- A trace of torch's, such as that of ``torch.func.linearize``, refuses a call with a value of ours
  that is no input of it, and to begin inside of a program that is captured. Its graph would lack
  calls, and hold their results as constants.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

import torch

from ..autograd import function, function_node
from ..seam.call_types import Keywords
from ..seam.level_mode import LevelMode, entering
from ..seam.levels import Value
from ..seam.shells import VALUES
from ..seam.surgery import now
from ..seam.transforms_of_torch import WRAPPING, DualLevelOfTorch
from ..seam.user_code import noted
from ..session.tensor import Tensor
from ..torch_private.dispatcher import OpOverload
from ..torch_private.functorch_state import are_transforms_active, is_functorch_wrapped
from ..torch_private.mode_stacks import TorchDispatchMode, current_dispatch_modes
from ..trace.provenance import here

_Function: Any = torch.autograd.function.Function
_graph: Any = torch.autograd.graph
# with the class of a call it gives the function; up to torch 2.13 it is Python's, and then C's
_record = _Function.__dict__["apply"].__get__
_run_backward = _graph._engine_run_backward
_checkpoint: Any = sys.modules["torch.utils.checkpoint"]  # which torch imports
_transforms: Any = sys.modules["torch._functorch.eager_transforms"]  # which torch imports
# what torch.utils.checkpoint itself calls: another function has its arguments by name
_SURROUNDINGS = "_checkpoint_without_reentrant_generator"
_BY_NAME = hasattr(_checkpoint, f"{_SURROUNDINGS}_impl")
_SURROUNDINGS += "_impl" * _BY_NAME
_checkpointed = getattr(_checkpoint, _SURROUNDINGS)
_ProxyMode: Any = sys.modules["torch.fx.experimental.proxy_tensor"].ProxyTorchDispatchMode
_traced, _entered = _ProxyMode.__torch_dispatch__, _ProxyMode.__enter__
_forward_ad: Any = vars(torch.autograd.forward_ad)


@functools.wraps(_Function.apply)
def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the custom Function ``cls`` of torch: by this package if it computes with its values,
    else by torch."""
    args = tuple(map(now, args))
    kwargs = {name: now(argument) for name, argument in kwargs.items()}
    arguments = (*args, *kwargs.values())
    if VALUES.isdisjoint(map(type, arguments)) and not _has_tensor_of_capture(arguments):
        return _record(None, cls)(*args, **kwargs)
    # A transform of torch's own that runs inside of a level comes first, as at an ATen call. It
    # applies another class to what it has around.
    if are_transforms_active() and any(
        isinstance(argument, torch.Tensor) and is_functorch_wrapped(argument)
        for argument in arguments
    ):
        return _record(None, cls)(*args, **kwargs)
    return _apply_ours(cls, args, kwargs)


def _has_tensor_of_capture(arguments: Iterable[object]) -> bool:
    """Return whether a tensor is among ``arguments`` while a program is captured. It has tensors
    from outside for its own."""
    return entering() is not None and any(
        isinstance(argument, torch.Tensor) for argument in arguments
    )


def _apply_ours(cls: type, args: tuple[Any, ...], kwargs: Keywords) -> object:
    """Apply a custom Function by this package, and torch's checkpoint by ours."""
    if cls is not _checkpoint.CheckpointFunction:
        return function.apply(cls, args, kwargs)
    # its backward pass makes leaves of what requires grad, which values of a tape do not show there
    from ..checkpoint import checkpoint

    run, preserve, *arguments = args
    return checkpoint(run, *arguments, use_reentrant=True, preserve_rng_state=preserve)


@functools.wraps(_run_backward)
def _backward(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[torch.Tensor] = (),
    *args: object,
    **kwargs: object,
) -> object:
    """Run a backward pass of torch's engine. Raise if it begins or ends at a value of ours."""
    for tensor in (*outputs, *inputs):
        if isinstance(tensor, Value):
            _refuse(tensor)
    return _run_backward(outputs, gradients, keep_graph, create_graph, inputs, *args, **kwargs)


def _surroundings(
    function: Callable[..., object],
    preserve_rng_state: bool = True,
    context_fn: Any = _checkpoint.noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    *args: object,
    **kwargs: object,
) -> Iterator[None]:
    """Return a generator that stops once, where the function runs, as torch's before 2.14."""
    options = (preserve_rng_state, context_fn, determinism_check, debug, early_stop)
    ours = _surroundings_of_values(function, args, kwargs, *options)
    return ours or _checkpointed(function, *options, *args, **kwargs)


def _surroundings_by_name(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    **options: Any,
) -> Iterator[None]:
    """Return a generator that stops once, where the function runs, as torch's from 2.14 on."""
    ours = _surroundings_of_values(function, args, kwargs, **options)
    return ours or _checkpointed(function, args, kwargs, **options)


def _surroundings_of_values(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    preserve_rng_state: bool = True,
    context_fn: Any = _checkpoint.noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
) -> Iterator[None] | None:
    """Return the generator of this package, if the function computes with its values."""
    # here, since traces import sympy
    from ..checkpoint.checkpoint import noop_context_fn, surroundings
    from ..trace.regions import running_traces

    if not running_traces() and not any(
        type(argument) in VALUES for argument in (*args, *kwargs.values())
    ):
        return None

    # the default of torch's function, which this package compares with its own
    if context_fn is _checkpoint.noop_context_fn:
        context_fn = noop_context_fn

    # what set_checkpoint_early_stop of torch says
    if _checkpoint._enable_checkpoint_early_stop is not None:
        early_stop = _checkpoint._enable_checkpoint_early_stop

    def surround() -> Iterator[None]:
        """Run what is between the two steps of the generator as a checkpoint."""
        with surroundings(
            function,
            args,
            kwargs,
            preserve_rng_state=preserve_rng_state,
            context_fn=context_fn,
            determinism_check=determinism_check,
            debug=debug,
            early_stop=early_stop,
            respect_saved_tensors_hooks=respect_saved_tensors_hooks,
        ):
            yield

    return surround()


def _trace(
    self: TorchDispatchMode,
    func: OpOverload,
    types: Sequence[type],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
) -> object:
    """Run a call in a trace of torch. Raise if it has a value that the trace does not know."""
    result = _traced(self, func, types, args, kwargs)
    if result is NotImplemented and not VALUES.isdisjoint(types):
        _refuse_trace(f"meets {func} of a runtime tensor that is no input of it")
    return result


def _enter_trace(self: TorchDispatchMode) -> object:
    """Enter a trace of torch. Raise inside of a program that is captured here."""
    # torch puts the modes of its traces below those of users: ours would see the calls first
    for mode in current_dispatch_modes():
        if isinstance(mode, LevelMode):
            _refuse_trace(f"begins inside of {mode.level.what}, where it would see no calls")
    return _entered(self)


def _refuse_trace(why: str) -> NoReturn:
    """Raise for a trace of torch, which would lack calls."""
    raise noted(
        RuntimeError(
            f"a trace of torch's, that of make_fx or torch.func.linearize, {why}. Call "
            "runtime.func.linearize or runtime.aot.make_fx, or run the program under "
            f"runtime.dropin.{here()}"
        )
    )


def _refuse(tensor: Value) -> NoReturn:
    """Raise: torch's engine gets a tensor of this package."""
    where = "of the session" if isinstance(tensor, Tensor) else f"a value of {tensor._level.what}"
    raise RuntimeError(
        f"torch's engine was asked for gradients of a runtime tensor ({where}). "
        "It does not know the tensor's history. Call runtime.autograd.backward "
        "or runtime.autograd.grad, or run the program under runtime.dropin."
    )


def _replace(
    module: ModuleType, name: str, theirs: Callable[..., object], ours: Callable[..., object]
) -> None:
    """Set ``module.name`` to ``ours``, unless somebody else has replaced ``theirs`` before."""
    if vars(module).get(name) is theirs:
        setattr(module, name, ours)


def _count_transform(change: Callable[[], int], by: int) -> Callable[[], int]:
    """Return ``change``, which enters (``by`` = 1) or leaves (-1) a transform that
    differentiates, with a count of these."""

    @functools.wraps(change)
    def change_and_count() -> int:
        number = change()
        WRAPPING.depth += by
        return number

    return change_and_count


def _count_transforms() -> None:
    """Count the differentiating transforms of torch that a thread is inside of."""
    for way, by in (("increment", 1), ("decrement", -1)):
        for kind in ("grad", "jvp"):
            name = f"_{kind}_{way}_nesting"
            setattr(_transforms, name, _count_transform(getattr(_transforms, name), by))


def intercept_torch_autograd() -> None:
    """Replace ``Function.apply``, the entry of torch's engine and what surrounds a function that
    is checkpointed, and count torch's transforms. ``import runtime`` calls this once."""
    # so subclasses of torch's Function work as subclasses of ours
    function_node.INTERFACES.update(cls for cls in _Function.__mro__ if cls is not object)
    _Function.apply = classmethod(_apply)
    # the drop-in answers `_current_level` by the class of the module, and this dictionary goes on
    # to say what torch's own level is
    DualLevelOfTorch.variables = _forward_ad
    for name in ("torch.autograd", "torch.autograd.graph"):
        _replace(sys.modules[name], "_engine_run_backward", _run_backward, _backward)
    _ProxyMode.__torch_dispatch__, _ProxyMode.__enter__ = _trace, _enter_trace
    ours = _surroundings_by_name if _BY_NAME else _surroundings
    _replace(_checkpoint, _SURROUNDINGS, _checkpointed, ours)
    _count_transforms()
