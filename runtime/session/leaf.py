"""Plain torch tensors that require grad, as leaves of our tape. The gradient is added where
torch would add it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ..rules.record import extent
from ..seam.levels import Value
from ..tape import hooks
from .tensor import Tensor, wrap

OF_TORCH = (
    "a tensor recorded by torch's own autograd is used in a computation that this package "
    "differentiates; the gradient cannot cross. Make the inputs of that computation with "
    "runtime.wrap(x, requires_grad=True), or detach this tensor."
)
# by id of a plain tensor: its leaf
_known: dict[int, tuple[weakref.ref[torch.Tensor], Tensor]] = {}


def as_leaf(t: torch.Tensor) -> torch.Tensor:
    """``t`` as a value. A plain leaf that requires grad becomes a leaf of our tape, whose gradient
    is added to ``t.grad`` after the hooks of ``t`` have seen it. It is the same leaf every time, as
    long as ``t`` shows the same memory."""
    if isinstance(t, Value):
        return t
    if not t.requires_grad:
        return wrap(t)
    known = _known.get(id(t))
    if known is not None and known[0]() is t and _shows(t, known[1]._inner):
        return _following(known[1], t)
    if t.grad_fn is not None:
        raise RuntimeError(OF_TORCH)
    leaf = wrap(t.detach(), requires_grad=True)
    number = id(t)
    source = weakref.ref(t, lambda _: _known.pop(number, None))
    leaf._deliver, leaf._stands_for = _delivery(source), source
    _known[number] = source, leaf
    return _following(leaf, t)


def _following(leaf: Tensor, t: torch.Tensor) -> Tensor:
    """``leaf`` with the hooks and the ``grad_dtype`` of ``t``. They share the hooks, so that a hook
    which is registered later runs, too."""
    seeing = t._backward_hooks
    if seeing is None:
        t._backward_hooks = seeing = OrderedDict()
    if leaf._hooks is not seeing:
        leaf._backward_hooks = seeing
    dtype = t.grad_dtype
    if dtype is not leaf.dtype_of_grad():
        leaf.grad_dtype = dtype
    return leaf


def follow_hooks(leaf: Tensor) -> None:
    """Let a leaf that stands for a tensor have its hooks, if that has got another dictionary of
    them since. Which hooks there are is asked when the gradient arrives, as torch does."""
    t = None if leaf._stands_for is None else leaf._stands_for()
    if t is not None and t._backward_hooks is not leaf._hooks:
        leaf._backward_hooks = t._backward_hooks


def plain_of(t: object) -> Any:
    """Return the plain tensor whose leaf ``t`` is, if it is one; else ``t``."""
    if not isinstance(t, Tensor) or t._stands_for is None:
        return t
    source = t._stands_for()
    return t if source is None else source


def _shows(t: torch.Tensor, inner: torch.Tensor) -> bool:
    """Return whether ``inner``, once detached from ``t``, still is what ``t`` shows. Assignment to
    ``t.data`` changes that."""
    if t.dtype is not inner.dtype:
        return False
    if t.layout is not torch.strided or t.is_nested:
        return extent(t) == extent(inner) and _places(t) == _places(inner)
    if t.shape != inner.shape or t.data_ptr() != inner.data_ptr() or t.stride() != inner.stride():
        return False
    return t.is_neg() is inner.is_neg() and t.is_conj() is inner.is_conj()


def _places(t: torch.Tensor) -> object:
    """Where the elements of a nested or a sparse tensor are. Equal to nothing else for a tensor
    that does not tell."""
    t = t.detach()
    if t.is_nested:
        return t.data_ptr()
    if t.layout is torch.sparse_coo:
        return t._indices().data_ptr(), t._values().data_ptr()
    if t.is_mkldnn:
        return object()
    return t.values().data_ptr()


def _delivery(source: weakref.ref[torch.Tensor]) -> Callable[[torch.Tensor], None]:
    """Return what adds a plain gradient to that of the plain tensor. Nobody can ask for the
    gradient of a tensor that is gone."""

    def deliver(g: torch.Tensor) -> None:
        t = source()
        if t is None:
            return
        if t.requires_grad:  # as torch, not where it was frozen after the forward pass
            old = t.grad
            # Python may not assign such a gradient, and torch's node calls the hooks
            if old is None and t.is_nested:
                with torch.enable_grad():
                    of_torch: Any = torch.ops.aten.alias.default(t).grad_fn
                of_torch.next_functions[0][0](g)
                return
            if old is None:
                t.grad = g
            elif torch.is_grad_enabled() or (old.is_sparse and not g.is_sparse):
                # a recorded pass leaves the former gradient as it is
                t.grad = g + old
            else:
                old.add_(g)
        hooks.run_post_accumulate(t, t._post_accumulate_grad_hooks)

    return deliver
