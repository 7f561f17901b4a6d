"""``ExpandedWeight``: a parameter that stands for one copy of itself per sample, without copies in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ..seam.levels import Value

Rule = TypeVar("Rule")
HANDLED: dict[Callable[..., Any], Any] = {}
Fallback = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
"""``fallback(func, args, kwargs)`` runs a function that has no rule."""


class UnhandledFunction(RuntimeError):
    """Raised if a function without a per-sample rule gets an ExpandedWeight."""


def implements_per_sample_grads(torch_function: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Register an object whose ``apply(kwarg_names, func, *args)`` runs if ``torch_function`` gets an ExpandedWeight.

    ``args`` are the positional arguments, followed by the values of ``kwarg_names``. ``layer`` is the short way.
    """

    def decorate(rule: Rule) -> Rule:
        HANDLED[torch_function] = rule
        return rule

    return decorate


class ExpandedWeight(torch.Tensor):
    """``orig_weight``, expanded over ``batch_size`` samples. The loss is the ``"sum"`` or ``"mean"`` of the samples' losses.

    A function with a rule computes with the original, and its backward adds per-sample gradients to ``orig_weight.grad_sample``.
    ``fallback(func, args, kwargs)`` runs any other function. Without it, such a function is an error.
    """

    orig_weight: Any
    batch_size: int
    loss_reduction: str
    allow_smaller_batches: bool
    batch_first: bool
    fallback: Fallback | None

    def __new__(
        cls, orig_weight: torch.Tensor, batch_size: int, loss_reduction: str = "sum", *, fallback: Fallback | None = None
    ) -> ExpandedWeight:
        if not isinstance(orig_weight, torch.Tensor):
            raise RuntimeError(f"Can only make Expanded Weights of Tensors, got {type(orig_weight).__name__}")
        if not orig_weight.requires_grad:
            raise RuntimeError("Can only build ExpandedWeights objects of tensors that require_grad")
        if loss_reduction not in ("sum", "mean"):
            raise RuntimeError(f"Expected loss_reduction argument to be sum or mean, got {loss_reduction}")
        data = orig_weight.detach()
        while isinstance(data, Value):  # several levels, while a program is captured
            data = data._inner
        return torch.Tensor._make_subclass(cls, data)

    def __init__(
        self, orig_weight: torch.Tensor, batch_size: int, loss_reduction: str = "sum", *, fallback: Fallback | None = None
    ) -> None:
        self.orig_weight = orig_weight
        self.batch_size = batch_size
        self.loss_reduction = loss_reduction
        self.allow_smaller_batches = False
        self.batch_first = True
        self.fallback = fallback

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in HANDLED:
            return HANDLED[func].apply(tuple(kwargs), func, *args, *kwargs.values())
        name = getattr(func, "__name__", repr(func))
        if name == "__get__" or name in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*(_original(a) for a in args), **kwargs)
        weights = [a for a in (*args, *kwargs.values()) if isinstance(a, ExpandedWeight)]
        fallbacks = [w.fallback for w in weights if w.fallback is not None]
        if fallbacks and len(fallbacks) == len(weights):
            return fallbacks[0](func, args, kwargs)
        raise UnhandledFunction(
            f"Expanded Weights encountered but cannot handle function {name}. Give it a rule (docs/expanded_weights.md shows how), or ask "
            "for the slower general way with call_for_per_sample_grads(..., fallback=True)."
        )


# Methods that return facts of a tensor, and no tensor. They are called on the original weight.
_FACTS = frozenset(
    (
        *("dim", "ndimension", "size", "stride", "numel", "nelement", "storage_offset", "element_size", "__len__", "__repr__"),
        *("is_floating_point", "is_complex", "is_contiguous"),
    )
)


def _original(a: Any) -> Any:
    return a.orig_weight if isinstance(a, ExpandedWeight) else a
