"""Stand for one copy of a parameter per sample, without copies in memory: ``ExpandedWeight``.

The helpers of users' rules are here as well, because they take such parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from ..seam.call_types import Arguments, Keywords
from ..seam.levels import Value
from ..session.tensor import SESSION, unwrap
from ..torch_private.mode_stacks import unseen_by_classes
from ..torch_private.native_tensors import as_installed, make_subclass
from .delivery import Delivery, add_to_grad_sample

Rule = TypeVar("Rule")
_RULES: dict[Callable[..., Any], Any] = {}  # by function of torch, rules of users
_MIN_DIMS = {
    F.linear: 2,
    F.conv1d: 3,
    F.conv2d: 4,
    F.conv3d: 5,
    F.embedding: 2,
    F.layer_norm: 2,  # and more for a normalized_shape of several dimensions
    F.group_norm: 2,
    F.instance_norm: 3,
}
"""By layer, the least number of dimensions of its input: one more than a single sample has. These
layers alone take an ExpandedWeight without a rule, as in torch."""
_FACT_METHODS = frozenset(
    (
        *("dim", "ndimension", "size", "numel", "nelement", "__len__"),
        *("stride", "storage_offset", "element_size", "is_contiguous"),
        *("is_floating_point", "is_complex", "__repr__"),
    )
)
"""Names of methods of tensors that return no tensor. They are called on the original weight."""


def implements_per_sample_grads(torch_function: Callable[..., object]) -> Callable[[Rule], Rule]:
    """Return a decorator that registers the rule for ``torch_function``, as in torch.

    A rule is an object with ``apply(kwarg_names, func, *args)``, such as a subclass of
    ``torch.autograd.Function``. It runs if ``torch_function`` gets an ExpandedWeight, and returns
    the result. ``func`` is ``torch_function``. ``args`` are the positional arguments, followed by
    the values of ``kwarg_names``: :func:`standard_kwargs` splits them.
    """

    def decorate(rule: Rule) -> Rule:
        _RULES[torch_function] = rule
        return rule

    return decorate


class ExpandedWeight(torch.Tensor):
    """Stands for ``orig_weight``, expanded over ``batch_size`` samples, in a layer of
    ``torch.nn.functional``.

    The layer computes with the original. Its backward pass adds per-sample gradients, of shape
    (batch_size, *orig_weight.shape), to ``orig_weight.grad_sample``. Any other function is a
    ``RuntimeError``. ``call_for_per_sample_grads`` takes every function.

    ``loss_reduction`` says whether the loss is the ``"sum"`` or the ``"mean"`` of the samples'
    losses. ``RuntimeError`` for another word, and for a weight that is no tensor or does not
    require grad.
    """

    orig_weight: Any
    batch_size: int
    loss_reduction: str
    batch_first: bool  # a user may set it: the batch is dimension 0 of the input, else dimension 1

    def __new__(
        cls, orig_weight: torch.Tensor, batch_size: int, loss_reduction: str = "sum"
    ) -> ExpandedWeight:
        if not isinstance(orig_weight, torch.Tensor):
            raise RuntimeError(
                f"Can only make Expanded Weights of Tensors, got {type(orig_weight).__name__}"
            )
        if not orig_weight.requires_grad:
            raise RuntimeError(
                "Can only build ExpandedWeights objects of tensors that require_grad"
            )
        if loss_reduction not in ("sum", "mean"):
            raise RuntimeError(
                f"Expected loss_reduction argument to be sum or mean, got {loss_reduction}"
            )
        data = orig_weight.detach()
        while isinstance(data, Value):  # several levels, while a program is captured
            data = data._inner
        weight: ExpandedWeight = as_installed(make_subclass)(cls, data)
        return weight

    def __init__(
        self, orig_weight: torch.Tensor, batch_size: int, loss_reduction: str = "sum"
    ) -> None:
        self.orig_weight = orig_weight
        self.batch_size = batch_size
        self.loss_reduction = loss_reduction
        self.batch_first = True

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Any:
        """Run ``func`` by a rule of a user, as a layer, or as a method that returns a fact.

        ``RuntimeError`` for any other function.
        """
        kwargs = kwargs or {}
        if func in _RULES:
            return _RULES[func].apply(tuple(kwargs), func, *args, *kwargs.values())
        if func in _MIN_DIMS:
            return _run_layer(func, args, kwargs)
        name = getattr(func, "__name__", repr(func))
        if name == "requires_grad_":  # the drop-in calls it in its make_subclass
            with unseen_by_classes():
                return func(*args, **kwargs)
        if name == "__get__" or name in _FACT_METHODS:  # __get__: an attribute, such as shape
            with unseen_by_classes():
                return func(*(map(_original, args)), **kwargs)
        raise RuntimeError(
            f"Expanded Weights encountered but cannot handle function {name}. "
            "Use call_for_per_sample_grads or per_sample, which take every function, "
            "or give it a rule by implements_per_sample_grads."
        )


def _original(argument: object) -> object:
    """Return the original of an ExpandedWeight. Any other argument is returned as it is."""
    if isinstance(argument, ExpandedWeight):
        return argument.orig_weight
    return argument


def _run_layer(
    func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """Return the result of a layer that has ExpandedWeights among its arguments.

    The input of the layer is the batch: the first of ``args``, or ``input`` in ``kwargs``. What the
    first weight says of batch dimension and loss holds for all. ``RuntimeError`` for an input that
    is no batch of their size, and for a tensor that requires grad and is no ExpandedWeight.
    """
    if not args:
        kwargs = dict(kwargs)  # the caller's stay as they are
        args = (kwargs.pop("input"),)
    check_input(func, args[0])
    _refuse_single_sample(func, args, kwargs)
    check_batch_size(args, kwargs)
    for argument in (*args[1:], *kwargs.values()):
        unpack_expanded_weight_or_tensor(argument)  # for its error
    every = (*args, *kwargs.values())
    weights = [argument for argument in every if isinstance(argument, ExpandedWeight)]
    first = weights[0]
    params = {f"weight {index}": weight.orig_weight for index, weight in enumerate(weights)}
    with Delivery(params, _batch_dim(first), first.loss_reduction, length=None) as grads:
        return func(
            grads.batch(args[0]),
            *map(_original, args[1:]),
            **{name: _original(argument) for name, argument in kwargs.items()},
        )


def _batch_dim(weight: ExpandedWeight) -> int:
    """Return the dimension of a layer's input that is the batch."""
    if weight.batch_first:
        return 0
    return 1


def _refuse_single_sample(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords
) -> None:
    """Raise if the input of a layer has no batch dimension."""
    min_dims = _MIN_DIMS[func]
    if func is F.layer_norm:
        normalized_shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
        min_dims = 1 + len(normalized_shape)
    if args[0].dim() < min_dims:
        name = getattr(func, "__name__", repr(func))
        raise RuntimeError(
            "Expanded Weights need a batch dimension: "
            f"{name} got an input of {args[0].dim()} dimensions, a single sample"
        )


_MIXTURE_ERROR = (
    "Expanded Weights does not support a mixture of ExpandedWeight parameters and normal "
    "Parameters. Found a parameter that requires grad and is not an ExpandedWeight; "
    "make it one, or detach it."
)


def unpack_expanded_weight_or_tensor(
    maybe_expanded_weight: object, func: Callable[[Any], object] = lambda x: x
) -> Any:
    """Return ``func`` of the original of an ExpandedWeight, or of a tensor that needs no grad.

    None for anything else. ``RuntimeError`` for a tensor that requires grad.
    """
    if isinstance(maybe_expanded_weight, ExpandedWeight):
        return func(maybe_expanded_weight.orig_weight)
    if not isinstance(maybe_expanded_weight, torch.Tensor):
        return None
    if maybe_expanded_weight.requires_grad:
        raise RuntimeError(_MIXTURE_ERROR)
    return func(maybe_expanded_weight)


def check_input(func: Callable[..., object], value: object) -> None:
    """Raise ``RuntimeError`` unless ``value``, the first argument of the layer ``func``, is a
    tensor with a batch."""
    name = getattr(func, "__name__", repr(func))
    if isinstance(value, ExpandedWeight):
        raise RuntimeError(
            "Expanded Weights do not support inputs that are also ExpandedWeights. "
            f"Input of {name} must be a Tensor"
        )
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(
            "Expanded Weights requires a Tensor as the first input to get the batch dimension, "
            f"got {type(value)} in {name}"
        )
    if value.dim() == 0:
        raise RuntimeError(
            "Expanded Weights requires a batch dimension but got an input of size "
            f"0 dimensions in {name}"
        )
    if value.shape[0] == 0:
        raise RuntimeError(
            "0 is not a valid batch size for Expanded Weights but got an input of shape "
            f"{list(value.shape)} in {name}"
        )


def check_batch_size(args: Arguments, kwargs: Mapping[str, object]) -> None:
    """Raise ``RuntimeError`` unless each ExpandedWeight has the batch size of ``args[0]``."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, ExpandedWeight):
            size = args[0].shape[_batch_dim(argument)]
            if size != argument.batch_size:
                raise RuntimeError(
                    "Expected ExpandedWeights to have batch size matching input but got input "
                    f"batch size of {size} with ExpandedWeight of batch size {argument.batch_size}"
                )


# --- helpers of users' rules ----------------------------------------------------------------------
#
# They have the names of torch. They know the calling convention, check arguments, and store
# gradients.


def standard_kwargs(
    kwarg_names: Sequence[str], args: Sequence[object]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split the ``args`` of a rule into positional and keyword arguments.

    Its last values belong to ``kwarg_names``, in this order.
    """
    n_positional = len(args) - len(kwarg_names)
    kwargs = dict(zip(kwarg_names, args[n_positional:], strict=True))
    return tuple(args[:n_positional]), kwargs


def forward_helper(
    func: Callable[..., object],
    expanded_args: Sequence[object],
    expanded_kwargs: Mapping[str, object],
) -> Any:
    """Return the result of a layer on plain tensors: it has no history, as a rule computes the
    gradients.

    The first of ``expanded_args`` is the batch. ``RuntimeError`` if it is none of the weights'
    batch size.
    """
    check_input(func, expanded_args[0])
    check_batch_size(expanded_args, expanded_kwargs)
    args = [_to_plain(argument) for argument in expanded_args]
    kwargs = {name: _to_plain(argument) for name, argument in expanded_kwargs.items()}
    return func(*args, **kwargs)


def _to_plain(argument: object) -> Any:
    """Return the tensor without history that an argument holds.

    Any other argument is returned as it is. ``RuntimeError`` for a value of a transform.
    """
    if isinstance(argument, ExpandedWeight):
        return _to_plain(argument.orig_weight)
    if isinstance(argument, Value):
        if argument._level is not SESSION:
            raise RuntimeError(
                f"Expanded Weights are used inside {argument._level.what}; "
                "take per-sample gradients outside of it"
            )
        return unwrap(argument)
    if isinstance(argument, torch.Tensor):
        return argument.detach()
    return argument


def set_grad_sample_if_exists(
    maybe_expanded_weight: object, per_sample_grad_fn: Callable[[Any], torch.Tensor]
) -> None:
    """Add ``per_sample_grad_fn(weight)`` to ``weight.grad_sample``, where ``weight`` is the
    original of an ExpandedWeight.

    The function returns gradients of shape (batch, *weight.shape). If the loss is the mean of the
    samples' losses, they are multiplied by the batch size. So they belong to each sample's own
    loss. Nothing happens for another argument. ``RuntimeError`` for a tensor that requires grad.
    """
    weight = unpack_expanded_weight_or_tensor(maybe_expanded_weight)
    if not isinstance(maybe_expanded_weight, ExpandedWeight):
        return
    grad = per_sample_grad_fn(weight)
    if maybe_expanded_weight.loss_reduction == "mean":
        grad = grad * maybe_expanded_weight.batch_size
    add_to_grad_sample(weight, grad)


def sum_over_all_but_batch_and_last_n(tensor: torch.Tensor, n_dims: int) -> torch.Tensor:
    """Sum over all dimensions but the first and the last ``n_dims``.

    From shape (batch, *summed, *rest) to (batch, *rest), where ``rest`` has ``n_dims`` dimensions.
    """
    dims = tuple(range(1, tensor.dim() - n_dims))
    if not dims:
        return tensor
    return tensor.sum(dims)
