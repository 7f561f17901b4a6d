"""``ExpandedWeight``: a parameter that stands for one copy of itself per sample, without
copies in memory.

The helpers of users' rules are here as well, because they take such parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from ..seam.levels import Value
from ..session.tensor import SESSION, unwrap
from ..torch_private.mode_stacks import unseen_by_classes
from ..torch_private.native_tensors import as_installed, make_subclass
from .delivery import Delivery, add_to_grad_sample

Rule = TypeVar("Rule")
_RULES: dict[Callable[..., Any], Any] = {}  # by function of torch, rules of users
_LAYERS = {
    F.linear: 2,
    F.conv1d: 3,
    F.conv2d: 4,
    F.conv3d: 5,
    F.embedding: 2,
    F.layer_norm: 2,
    F.group_norm: 2,
    F.instance_norm: 3,
}
"""The functions that take an ExpandedWeight, as in torch, with the dimensions that a
batch has at least."""


def implements_per_sample_grads(torch_function: Callable[..., object]) -> Callable[[Rule], Rule]:
    """Register an object whose ``apply(kwarg_names, func, *args)`` runs if ``torch_function`` gets
    an ExpandedWeight, as in torch.

    ``args`` are the positional arguments, followed by the values of ``kwarg_names``.
    """

    def decorate(rule: Rule) -> Rule:
        _RULES[torch_function] = rule
        return rule

    return decorate


class ExpandedWeight(torch.Tensor):
    """``orig_weight``, expanded over ``batch_size`` samples. The loss is the ``"sum"`` or
    ``"mean"`` of the samples' losses.

    A layer of ``torch.nn.functional`` computes with the original, and its backward adds per-sample
    gradients to ``orig_weight.grad_sample``. Any other function is an error.
    ``call_for_per_sample_grads`` takes every function."""

    orig_weight: Any
    batch_size: int
    loss_reduction: str
    batch_first: bool

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
        made: ExpandedWeight = as_installed(make_subclass)(cls, data)
        return made

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
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RULES:
            return _RULES[func].apply(tuple(kwargs), func, *args, *kwargs.values())
        if func in _LAYERS:
            return _run_layer(func, args, kwargs)
        name = getattr(func, "__name__", repr(func))
        if name == "requires_grad_":  # while the tensor is made
            with unseen_by_classes():
                return func(*args, **kwargs)
        if name == "__get__" or name in _FACTS:
            with unseen_by_classes():
                return func(*(map(_original, args)), **kwargs)
        raise RuntimeError(
            f"Expanded Weights encountered but cannot handle function {name}. "
            "Use call_for_per_sample_grads or per_sample, which take every function, "
            "or give it a rule by implements_per_sample_grads."
        )


# Methods that return facts of a tensor, and no tensor. They are called on the original weight.
_FACTS = frozenset(
    (
        *(
            "dim",
            "ndimension",
            "size",
            "stride",
            "numel",
            "nelement",
            "storage_offset",
            "element_size",
            "__len__",
            "__repr__",
        ),
        *("is_floating_point", "is_complex", "is_contiguous"),
    )
)


def _original(a: object) -> object:
    if isinstance(a, ExpandedWeight):
        return a.orig_weight
    return a


def _run_layer(
    func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """Return a layer with ExpandedWeights. Its input is the batch."""
    if not args:
        kwargs = dict(kwargs)
        args = (kwargs.pop("input"),)
    check_input(func, args[0])
    _refuse_single_sample(func, args, kwargs)
    check_batch_size(args, kwargs)
    for a in (*args[1:], *kwargs.values()):
        unpack_expanded_weight_or_tensor(a)
    weights = [a for a in (*args, *kwargs.values()) if isinstance(a, ExpandedWeight)]
    first = weights[0]
    params = {f"weight {i}": w.orig_weight for i, w in enumerate(weights)}
    with Delivery(params, _batch_dim(first), first.loss_reduction, None) as grads:
        return func(
            grads.batch(args[0]),
            *map(_original, args[1:]),
            **{k: _original(a) for k, a in kwargs.items()},
        )


def _batch_dim(weight: ExpandedWeight) -> int:
    if weight.batch_first:
        return 0
    return 1


def _refuse_single_sample(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise if the input of a layer has no batch dimension."""
    least = _LAYERS[func]
    if func is F.layer_norm:
        normalized_shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
        least = 1 + len(normalized_shape)
    if args[0].dim() < least:
        name = getattr(func, "__name__", repr(func))
        raise RuntimeError(
            "Expanded Weights need a batch dimension: "
            f"{name} got an input of {args[0].dim()} dimensions, a single sample"
        )


MIXTURE = (
    "Expanded Weights does not support a mixture of ExpandedWeight parameters and normal "
    "Parameters. Found a parameter that requires grad and is not an ExpandedWeight; "
    "make it one, or detach it."
)


def unpack_expanded_weight_or_tensor(
    maybe_expanded_weight: object, func: Callable[[Any], object] = lambda x: x
) -> Any:
    """``func`` of the original of an ExpandedWeight, or of a tensor that needs no grad. None
    for anything else.

    A tensor that requires grad is a ``RuntimeError``.
    """
    if isinstance(maybe_expanded_weight, ExpandedWeight):
        return func(maybe_expanded_weight.orig_weight)
    if not isinstance(maybe_expanded_weight, torch.Tensor):
        return None
    if maybe_expanded_weight.requires_grad:
        raise RuntimeError(MIXTURE)
    return func(maybe_expanded_weight)


def check_input(func: Callable[..., object], x: object) -> None:
    """Raise unless the first argument of a layer is a tensor with a batch dimension."""
    name = getattr(func, "__name__", repr(func))
    if isinstance(x, ExpandedWeight):
        raise RuntimeError(
            "Expanded Weights do not support inputs that are also ExpandedWeights. "
            f"Input of {name} must be a Tensor"
        )
    if not isinstance(x, torch.Tensor):
        raise RuntimeError(
            "Expanded Weights requires a Tensor as the first input to get the batch dimension, "
            f"got {type(x)} in {name}"
        )
    if x.dim() == 0:
        raise RuntimeError(
            "Expanded Weights requires a batch dimension but got an input of size "
            f"0 dimensions in {name}"
        )
    if x.shape[0] == 0:
        raise RuntimeError(
            "0 is not a valid batch size for Expanded Weights but got an input of shape "
            f"{list(x.shape)} in {name}"
        )


def check_batch_size(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise unless the batch size of every ExpandedWeight is that of the first argument."""
    for a in (*args, *kwargs.values()):
        if isinstance(a, ExpandedWeight):
            size = args[0].shape[_batch_dim(a)]
            if size != a.batch_size:
                raise RuntimeError(
                    "Expected ExpandedWeights to have batch size matching input but got input "
                    f"batch size of {size} with ExpandedWeight of batch size {a.batch_size}"
                )


# --- helpers of users' rules ----------------------------------------------------------------------
#
# They have the names of torch. They know the calling convention, check arguments, and store
# gradients.


def standard_kwargs(
    kwarg_names: Sequence[str], args: Sequence[object]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split ``args`` into positional and keyword arguments. Its last values belong
    to ``kwarg_names``."""
    n = len(args) - len(kwarg_names)
    return tuple(args[:n]), dict(zip(kwarg_names, args[n:], strict=True))


def forward_helper(
    func: Callable[..., object], expanded_args: Sequence[object], expanded_kwargs: dict[str, Any]
) -> Any:
    """Check the arguments of a layer and run it on plain tensors."""
    check_input(func, expanded_args[0])
    check_batch_size(expanded_args, expanded_kwargs)
    return func(*map(plain, expanded_args), **{k: plain(a) for k, a in expanded_kwargs.items()})


def plain(a: object) -> Any:
    """Return the tensor without history that an argument holds. Any other argument is returned as
    it is."""
    if isinstance(a, ExpandedWeight):
        return plain(a.orig_weight)
    if isinstance(a, Value):
        if a._level is not SESSION:
            raise RuntimeError(
                f"Expanded Weights are used inside {a._level.what}; "
                "take per-sample gradients outside of it"
            )
        return unwrap(a)
    if isinstance(a, torch.Tensor):
        return a.detach()
    return a


def set_grad_sample_if_exists(
    maybe_expanded_weight: object, per_sample_grad_fn: Callable[[Any], torch.Tensor]
) -> None:
    """Add ``per_sample_grad_fn(plain weight)``, of shape (batch, *weight), to ``grad_sample`` of an
    ExpandedWeight's original.

    If the loss is the mean of the samples' losses, the gradients are multiplied by the batch size.
    So they belong to each sample's own loss.
    """
    unpacked = unpack_expanded_weight_or_tensor(maybe_expanded_weight)
    if not isinstance(maybe_expanded_weight, ExpandedWeight):
        return
    weight = maybe_expanded_weight.orig_weight
    grad = per_sample_grad_fn(unpacked)
    if maybe_expanded_weight.loss_reduction == "mean":
        grad = grad * maybe_expanded_weight.batch_size
    add_to_grad_sample(weight, grad)


def sum_over_all_but_batch_and_last_n(tensor: torch.Tensor, n_dims: int) -> torch.Tensor:
    """Sum over all dimensions but the first and the last ``n_dims``: (batch, *summed,
    *rest) -> (batch, *rest)."""
    dims = tuple(range(1, tensor.dim() - n_dims))
    if not dims:
        return tensor
    return tensor.sum(dims)
