"""Open the inputs of ``autograd.functional``, call the function, and pull and push through it.

    opened = open_inputs(x, "inputs", "vjp", create_graph=False)    # (a new leaf,)
    pull((x.sin(),), opened, (v,), False)                           # (v * x.cos(),)

The errors are those of ``strict=True``. A Jacobian-vector product is the derivative of the
vector-Jacobian product by its cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..seam.levels import Value
from ..session.backward import grad
from ..session.leaf import as_leaf
from ..session.tensor import Tensor

Tensors = torch.Tensor | tuple[torch.Tensor, ...] | None
"""A tensor or several. None: no vector ``v`` is given."""

STRICT = "strict=True refuses that; without it the derivative is zero."
_NO_GRAPH = "Output {} of the user-provided function does not require gradients. " + STRICT
OUTPUT_INDEPENDENT = (
    "The output of the user-provided function is independent of input {}. " + STRICT
)
JACOBIAN_CONSTANT = (
    "The jacobian of the user-provided function is independent of input {}. strict=True with "
    "create_graph=True refuses that, for the derivative of the result would be zero."
)
HESSIAN_CONSTANT = JACOBIAN_CONSTANT.replace("jacobian", "hessian")
JACOBIAN_INDEPENDENT = (
    "While computing the hessian, found that the jacobian of the user-provided function with "
    f"respect to input {{}} is independent of the input. {STRICT}"
)
NEEDS_V = "The vector v can only be None if {} a single Tensor with a single element."


class StrictErrors(NamedTuple):
    """The messages for gradients that ``strict=True`` refuses. None: no error."""

    none: str | None = None  # for an input that no gradient arrives at
    constant: str | None = None  # for a gradient without a history

    @classmethod
    def of(cls, strict: bool, create_graph: bool, none: str, constant: str) -> StrictErrors:
        """Return the errors of a call. Only with ``create_graph`` a gradient has a history."""
        if not strict:
            return cls()
        if not create_graph:
            return cls(none)
        return cls(none, constant)


_NO_ERRORS = StrictErrors()


def value_of(tensor: torch.Tensor) -> Tensor:
    """Return ``tensor`` as a value of level zero, whose methods take part in a history."""
    value: Tensor = as_leaf(tensor)  # type: ignore[assignment]
    return value


def tensors_in(argument: Tensors, what: str, function: str) -> tuple[torch.Tensor, ...]:
    """Return ``argument`` as a tuple of tensors. Raise if there is anything else in it."""
    each: tuple[Any, ...] = (argument,)
    if isinstance(argument, tuple):
        each = argument
    for index, tensor in enumerate(each):
        if not isinstance(tensor, torch.Tensor):
            which = f"the given {what}"
            if argument is each:
                which = f"the value at index {index}"
            raise TypeError(
                f"The {what} given to {function} must be either a Tensor or a tuple of Tensors "
                f"but {which} has type {type(tensor)}."
            )
    return each


def open_inputs(
    argument: Tensors, what: str, function: str, create_graph: bool, track: bool = True
) -> tuple[torch.Tensor, ...]:
    """Return the tensors to differentiate by. With ``create_graph``: views, which have the history
    of the tensors. Else: new leaves, or constants unless ``track``.

    ``what`` and ``function``: what ``argument`` is, and whose, for the error.
    """
    # a new object in each case: the function may also close over the tensor itself, and that use
    # counts as a constant
    opened = []
    for tensor in tensors_in(argument, what, function):
        value: Any = value_of(tensor)
        if create_graph and value.requires_grad:
            opened.append(value.view_as(value))
        elif track:
            opened.append(value.detach().requires_grad_())
        else:
            opened.append(value.detach())
    return tuple(opened)


def call_function(
    func: Callable[..., Any], inputs: Sequence[object], function: str, strict: bool
) -> tuple[bool, tuple[Any, ...]]:
    """Return whether ``func`` returned a tuple, and its outputs. With ``strict``: ``RuntimeError``
    for an output without a history."""
    result = func(*inputs)
    outputs = tensors_in(result, "outputs of the user-provided function", function)
    for index, output in enumerate(outputs):
        if strict and not is_tracked(output):
            raise RuntimeError(_NO_GRAPH.format(index))
    return isinstance(result, tuple), outputs


def is_tracked(tensor: object) -> bool:
    """Return whether ``tensor`` has a history that a gradient can go back along."""
    return isinstance(tensor, Value) and tensor.requires_grad


def scalar_function(
    func: Callable[..., object], function: str, strict: bool
) -> Callable[..., torch.Tensor]:
    """Return ``func``, with an error unless its result is one tensor of one element."""

    def call_and_check(*inputs: object) -> Any:
        """Call ``func``, and return its one output."""
        is_tuple, outputs = call_function(func, inputs, function, strict)
        if is_tuple:
            raise RuntimeError(f"The function given to {function} should return a single Tensor")
        if outputs[0].numel() != 1:
            raise RuntimeError(
                f"The Tensor returned by the function given to {function} should "
                "contain a single element"
            )
        return outputs[0]

    return call_and_check


def direction(
    v: Tensors, function: str, create_graph: bool, like: Sequence[torch.Tensor], is_tuple: bool
) -> tuple[torch.Tensor, ...]:
    """Return ``v`` as a tuple of tensors of the shapes of ``like``. Raise if it has others.

    ``is_tuple``: whether what ``v`` is to fit is a tuple, so that ``v`` must be one.
    """
    vs = open_inputs(v, "v", function, create_graph, track=False)
    if is_tuple:
        if len(vs) != len(like):
            raise RuntimeError(
                f"v is a tuple of invalid length: should be {len(like)} but got {len(vs)}."
            )
    elif len(vs) != 1:
        raise RuntimeError("The given v should contain a single Tensor.")
    for index, (expected, vector) in enumerate(zip(like, vs, strict=True)):
        if expected.shape != vector.shape:
            entry = f"Entry {index} in " if is_tuple else ""
            raise RuntimeError(
                f"{entry}v has invalid size: should be {expected.shape} but got {vector.shape}."
            )
    return vs


def input_direction(
    v: Tensors, function: str, create_graph: bool, inputs: Tensors, opened: Sequence[torch.Tensor]
) -> tuple[object, ...]:
    """Return ``v`` in the space of the inputs: 1 for None, if there is one input of one element."""
    if v is not None:
        return direction(v, function, create_graph, opened, isinstance(inputs, tuple))
    if len(opened) != 1 or opened[0].numel() != 1:
        raise RuntimeError(NEEDS_V.format("the input to the user-provided function is"))
    return (torch.ones_like(opened[0].detach()),)


def pull(
    outs: Sequence[object],
    inputs: Sequence[object],
    cotangents: Sequence[object] | None,
    create_graph: bool,
) -> tuple[object, ...]:
    """Return gradients of ``inputs``, None where none arrives. Outputs that are None or have no
    history are left out."""
    tracked = [index for index, output in enumerate(outs) if is_tracked(output)]
    if not tracked:
        return (None,) * len(inputs)
    # `grad` refuses an output without a history, where a function of several may have one
    grad_outputs = None
    if cotangents is not None:
        grad_outputs = [cotangents[position] for position in tracked]
    # the graph is retained: `_rows` pulls through it once per row
    grads: tuple[Any, ...] = grad(
        [outs[position] for position in tracked],
        inputs,
        grad_outputs,
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return grads


def fill_missing(
    grads: Sequence[object], like: Sequence[Any], errors: StrictErrors = _NO_ERRORS
) -> tuple[object, ...]:
    """Return ``grads`` with zeros in place of None. Raise the error for one that ``errors``
    names."""
    for index, gradient in enumerate(grads):
        if gradient is None and errors.none is not None:
            raise RuntimeError(errors.none.format(index))
        if gradient is not None and errors.constant is not None and not is_tracked(gradient):
            raise RuntimeError(errors.constant.format(index))
    filled = []
    for gradient, x in zip(grads, like, strict=True):
        filled.append(torch.zeros_like(x.detach()) if gradient is None else gradient)
    return tuple(filled)


def push_forward(
    outs: Sequence[Any],
    inputs: Sequence[object],
    v: Sequence[object],
    create_graph: bool,
    strict: bool,
    none: str,
    constant: str,
) -> tuple[object, ...]:
    """Return the Jacobian of ``outs`` times ``v``: the derivative of the vector-Jacobian product by
    its cotangent, in which it is linear.

    ``none`` and ``constant``: with ``strict``, the errors for an input without a gradient and for a
    product that does not depend on the inputs.
    """
    # the product is linear in the cotangents, so its derivative is the same at any of them
    zeros = [torch.zeros_like(value_of(output).detach()) for output in outs]
    cotangents = [value_of(zero).start_leaf() for zero in zeros]
    pulled = pull(outs, inputs, cotangents, True)
    if strict:
        # only for its error: the second pull leaves a missing gradient out by itself
        fill_missing(pulled, inputs, StrictErrors(none))
    pushed = pull(pulled, cotangents, v, create_graph)
    return fill_missing(pushed, outs, StrictErrors.of(strict, create_graph, constant, constant))


def as_result(tensors: Sequence[Any], is_tuple: bool, create_graph: bool) -> Any:
    """Return ``tensors`` to the user: detached without ``create_graph``, and as a tuple only if the
    argument was one (``is_tuple``)."""
    results = tuple(tensors)
    if not create_graph:
        results = tuple(tensor.detach() for tensor in results)
    if is_tuple:
        return results
    return results[0]


def gradient_with_history(
    out: object, inputs: Sequence[object], strict: bool
) -> tuple[object, ...]:
    """Return the gradients of ``inputs`` with their history, which a second derivative goes back
    along."""
    grads = pull((out,), inputs, None, True)
    errors = StrictErrors.of(strict, True, OUTPUT_INDEPENDENT, JACOBIAN_INDEPENDENT)
    return fill_missing(grads, inputs, errors)
