"""Follow samples through custom Functions.

    class Square(torch.autograd.Function): ...      # forward: x * x, backward: 2 * x * g

``forward`` and ``backward`` are code of a user, which computes with the whole batch. Both are
followed: ``forward`` says where the samples lie in the outputs and in what it saves, and
``backward`` must return gradients with the samples where they lie in the inputs. A Function of
parameters is refused, as its backward adds up the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..autograd.function import FunctionClass, definition_of, rule, run_forward
from ..autograd.function_node import FunctionNode, backward_of, defines
from ..autograd.function_recording import record
from ..checkpoint import CheckpointFunction, checkpoint
from ..rules.samples.places import Place
from ..seam.levels import Value
from ..session.tensor import SESSION
from ..tape.running import current_stand_in, stand_in, step_down
from ..tape.values import edge_of
from ..tape.view_history import aliases
from ..torch_private.native_autograd import BACKWARD_HOOK_FUNCTION
from .batch_session import BatchSession
from .states import PARAMETERS, Mixture

# custom Functions, each with the one in its place that knows samples
_followed_classes: dict[FunctionClass, FunctionClass] = {}


_TORCH_CHECKPOINT = "torch.utils.checkpoint.CheckpointFunction"


@rule(BatchSession)
def _run_function(
    session: BatchSession, cls: FunctionClass, args: tuple[object, ...]
) -> tuple[object, object]:
    """Return the outputs of a custom Function, and its context. The samples are followed through
    both its passes."""
    name = f"{cls.__module__}.{cls.__name__}"
    if name == _TORCH_CHECKPOINT or cls is CheckpointFunction:
        return _run_checkpoint(cls, args), None
    # `apply` got the user's leaves, which stand for values on the tape
    args = tuple(_parameter(session, argument) for argument in args)
    states = _states(session, args)
    # no samples and no parameters: an ordinary call
    if all(state is None for state in states):
        output, _, ctx = record(SESSION, cls, args)
        ctx.forget_marks()
        return output, ctx
    # the Function of backward hooks is the identity, whose inputs may be parameters
    is_identity = name == BACKWARD_HOOK_FUNCTION
    if is_identity:
        output, _, ctx = record(SESSION, cls, args)
        of_outs = states
    else:
        output, raw, ctx = record(SESSION, _class_with_places(cls), args)
        of_outs = _states(session, raw)
    # what the backward reads, so that it can be followed, too
    saved = _states(session, ctx.to_save or ())
    ctx.followed = _Places(session, cls.__name__, states, of_outs, saved)  # type: ignore[attr-defined]
    ctx.forget_marks()
    differentiable = _differentiable(output)
    if not is_identity:
        _refuse_parameters(session, cls, states, differentiable)
    _refuse_mixtures(session, differentiable)
    return output, ctx


def _refuse_parameters(
    session: BatchSession, cls: FunctionClass, states: list[object], outs: list[object]
) -> None:
    """Put a refusal before the histories of the outputs if an input follows from parameters."""
    if not any(state is PARAMETERS for state in states):
        return
    session.refuse(
        outs,
        f"per_sample: a gradient passes the custom Function {cls.__name__} of parameters "
        f"in {session.where()}. Its backward adds up the samples. Write it with functions "
        "of torch, or use per_sample_grads, which runs it for each sample alone.",
    )


def _differentiable(output: object) -> list[object]:
    """Return the results with a history, of one output or a tuple."""
    results: tuple[object, ...] = (output,)
    if isinstance(output, tuple):
        results = output
    return [
        result for result in results if isinstance(result, Value) and edge_of(result) is not None
    ]


def _states(session: BatchSession, tensors: Iterable[object]) -> list[object]:
    return list(map(session.state_of, tensors))


def _refuse_mixtures(session: BatchSession, outs: list[object]) -> None:
    """Put a refusal before the history that the Function gave to each mixture."""
    for output in outs:
        state = session.state_of(output)
        if isinstance(state, Mixture):
            session.refuse([output], state.why)


def _parameter(session: BatchSession, argument: object) -> object:
    """Return the value that stands for a parameter, for its leaf. ``apply`` is no function of
    torch, so it got the parameter itself."""
    if not isinstance(argument, Value) or argument._level is not SESSION:
        return argument
    if not argument.is_leaf or not argument.requires_grad:
        return argument
    # two views of one tensor have different shapes, and may be two parameters
    for parameter in session.parameters.values():
        if parameter.shape == argument.shape and aliases(parameter, argument):
            return parameter
    return argument


@dataclass(frozen=True, slots=True)
class _Places:
    """The states of the inputs and outputs of a call, and of what it saved. ``name``: of the
    Function."""

    session: BatchSession
    name: str
    inputs: list[Any]
    outs: list[Any]
    saved: list[Any]

    def put(self, tensors: Any, states: Sequence[object]) -> None:
        """Give tensors their states, except those of parameters, which stay those of the tape."""
        for tensor, state in zip(tensors, states, strict=True):
            if isinstance(tensor, Value) and state is not None and state is not PARAMETERS:
                self.session.put(tensor, state)

    def check(self, grads: tuple[object, ...]) -> None:
        """Raise if a gradient does not have the samples where the input has them."""
        for index, (gradient, place) in enumerate(zip(grads, self.inputs, strict=False)):
            state = self.session.state_of(gradient)
            # a gradient of constants is the same for all samples
            if not isinstance(place, Place) or state is None or state == place:
                continue
            why = ""
            if isinstance(state, Mixture):
                why = f" {state.why}"
            raise RuntimeError(
                f"per_sample: the backward of the custom Function {self.name} mixes samples "
                f"in the gradient of its input {index}.{why}"
            )


def _class_with_places(cls: FunctionClass) -> FunctionClass:
    """Return a subclass of a user's Function whose backward is followed."""
    earlier = _followed_classes.get(cls)
    if earlier is not None:
        return earlier
    original = backward_of(cls)

    def backward(ctx: Any, *gs: object) -> Any:
        """Run the user's backward with the samples in its gradients, and check those it returns."""
        places, active = ctx.followed, current_stand_in()
        if active is None:  # the pass began after the block
            stand_in(places.session)
        try:
            places.put(gs, places.outs)
            result = original(ctx, *gs)
            grads = result
            if not isinstance(result, tuple):
                grads = (result,)
            places.check(grads)
        finally:
            if active is None:
                step_down()
        return result

    # the subclass must override the method that the user's class has
    name = "vjp" if defines(cls, "vjp") else "backward"
    meta: Any = type(cls)
    followed: FunctionClass = meta(
        cls.__name__, (cls,), {name: staticmethod(backward), "__module__": cls.__module__}
    )

    def saved_tensors(ctx: object) -> tuple[torch.Tensor, ...]:
        """Return the saved tensors, with the samples where they lay in the forward pass."""
        tensors = FunctionNode.saved_tensors.__get__(ctx)
        places = getattr(ctx, "followed", None)
        if places is not None:
            places.put(tensors, places.saved)
        return tensors  # type: ignore[no-any-return]

    definition_of(followed).node_class.saved_tensors = property(saved_tensors)  # type: ignore[assignment, method-assign]
    _followed_classes[cls] = followed
    return followed


def _run_checkpoint(cls: FunctionClass, args: tuple[Any, ...]) -> object:
    """Return a reentrant checkpoint, run as one that is not reentrant.

    A reentrant one begins a backward pass of its own, of the whole batch. As there, nothing is
    differentiated if no argument requires grad.
    """
    function, preserve, *inputs = args
    tensors = [argument for argument in inputs if isinstance(argument, torch.Tensor)]
    if not any(tensor.requires_grad for tensor in tensors):
        return run_forward(cls, args)[0]
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)
