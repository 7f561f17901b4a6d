"""Custom Functions while samples are followed.

    class Square(torch.autograd.Function): ...      # forward: x * x, backward: 2 * x * g

``forward`` and ``backward`` are code of a user, which computes with the whole batch. Both are
followed: ``forward`` says where the samples lie in the outputs and in what it saves, and
``backward`` must return gradients with the samples where they lie in the inputs. A Function of
parameters is refused, as its backward adds up the samples.
"""

from __future__ import annotations

from typing import Any

import torch

from ..autograd.function import FunctionClass, definition_of, record, rule, run_forward
from ..autograd.function_node import FunctionNode, backward_of, defines
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


@rule(BatchSession)
def _followed(session: BatchSession, cls: FunctionClass, args: tuple[Any, ...]) -> tuple[Any, Any]:
    name = f"{cls.__module__}.{cls.__name__}"
    if name == "torch.utils.checkpoint.CheckpointFunction" or cls is CheckpointFunction:
        return _checkpointed(cls, args), None
    args = tuple(_parameter(session, a) for a in args)
    states = [_state(session, a) for a in args]
    if not any(s is not None for s in states):
        output, _, ctx = record(SESSION, cls, args)
        ctx.forget_marks()
        return output, ctx
    # the identity, whose inputs may be parameters
    hooks = name == BACKWARD_HOOK_FUNCTION
    output, raw, ctx = record(SESSION, cls if hooks else _class_with_places(cls), args)
    outs = output if isinstance(output, tuple) else (output,)
    found = states if hooks else [_state(session, o) for o in raw]
    ctx.followed = _Places(  # type: ignore[attr-defined]
        session, cls.__name__, states, found, [_state(session, t) for t in ctx.to_save or ()]
    )
    ctx.forget_marks()
    differentiable = [o for o in outs if isinstance(o, Value) and edge_of(o) is not None]
    if any(s is PARAMETERS for s in states) and not hooks:
        session.refuse(
            differentiable,
            (
                f"per_sample: a gradient passes the custom Function {cls.__name__} of parameters "
                f"in {session.where()}. Its backward adds up the samples. Write it with functions "
                "of torch, or use per_sample_grads, which runs it for each sample alone."
            ),
        )
    for o in differentiable:
        state = _state(session, o)
        if isinstance(state, Mixture):
            session.refuse([o], state.why)
    return output, ctx


def _state(session: BatchSession, a: Any) -> Any:
    return session.state(a) if isinstance(a, Value) and a._level is SESSION else None


def _parameter(session: BatchSession, a: Any) -> Any:
    """Return the value that stands for a parameter, for its leaf. ``apply`` is no function of
    torch, so it got the parameter itself."""
    if isinstance(a, Value) and a._level is SESSION and a.is_leaf and a.requires_grad:
        return next(
            (v for v in session.parameters.values() if v.shape == a.shape and aliases(v, a)), a
        )
    return a


class _Places:
    """The states of the inputs and outputs of a call, and of what it saved."""

    def __init__(
        self, session: BatchSession, name: str, given: list[Any], outs: list[Any], saved: list[Any]
    ) -> None:
        self.session, self.name, self.given, self.outs, self.saved = (
            session,
            name,
            given,
            outs,
            saved,
        )

    def put(self, tensors: Any, states: list[Any]) -> None:
        for t, state in zip(tensors, states, strict=True):
            if isinstance(t, Value) and state is not None and state is not PARAMETERS:
                self.session.put(t, state)

    def check(self, found: tuple[Any, ...]) -> None:
        """Raise if a gradient does not have the samples where the input has them."""
        for i, (g, place) in enumerate(zip(found, self.given, strict=False)):
            state = _state(self.session, g)
            if isinstance(place, Place) and state is not None and state != place:
                why = f" {state.why}" if isinstance(state, Mixture) else ""
                raise RuntimeError(
                    f"per_sample: the backward of the custom Function {self.name} mixes samples "
                    f"in the gradient of its input {i}.{why}"
                )


def _class_with_places(cls: FunctionClass) -> FunctionClass:
    """Return a subclass of a user's Function whose backward is followed."""
    found = _followed_classes.get(cls)
    if found is not None:
        return found
    original = backward_of(cls)

    def backward(ctx: Any, *gs: Any) -> Any:
        places, active = ctx.followed, current_stand_in()
        if active is None:  # the pass began after the block
            stand_in(places.session)
        try:
            places.put(gs, places.outs)
            result = original(ctx, *gs)
            places.check(result if isinstance(result, tuple) else (result,))
        finally:
            if active is None:
                step_down()
        return result

    name = "vjp" if defines(cls, "vjp") else "backward"
    meta: Any = type(cls)
    made: FunctionClass = meta(
        cls.__name__, (cls,), {name: staticmethod(backward), "__module__": cls.__module__}
    )

    def saved_tensors(ctx: Any) -> tuple[Any, ...]:
        tensors = FunctionNode.saved_tensors.__get__(ctx)
        if (places := getattr(ctx, "followed", None)) is not None:
            places.put(tensors, places.saved)
        return tensors  # type: ignore[no-any-return]

    definition_of(made).node_class.saved_tensors = property(saved_tensors)  # type: ignore[assignment, method-assign]
    _followed_classes[cls] = made
    return made


def _checkpointed(cls: FunctionClass, args: tuple[Any, ...]) -> Any:
    """Return a reentrant checkpoint, as one that is not reentrant. Its backward pass would be one
    of its own, of the whole batch. As there, nothing is differentiated if no argument requires
    grad."""
    function, preserve, *given = args
    if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in given):
        return run_forward(cls, args)[0]
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=preserve)
