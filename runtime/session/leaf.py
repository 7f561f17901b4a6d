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
_leaves: dict[int, tuple[weakref.ref[torch.Tensor], Tensor]] = {}


def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` as a value. A plain leaf that requires grad becomes a leaf of our tape,
    whose gradient is added to ``tensor.grad`` after the hooks of ``tensor`` have seen it. It is the
    same leaf every time, as long as ``tensor`` shows the same memory. Raise if torch's engine has
    recorded ``tensor``."""
    if isinstance(tensor, Value):
        return tensor
    if not tensor.requires_grad:
        return wrap(tensor)
    # an id may be that of a tensor which is gone, or whose `.data` was set since
    entry = _leaves.get(id(tensor))
    if entry is not None and entry[0]() is tensor and _shows(tensor, entry[1]._inner):
        return _share_hooks(entry[1], tensor)
    if tensor.grad_fn is not None:
        raise RuntimeError(OF_TORCH)
    leaf = wrap(tensor.detach(), requires_grad=True)
    # the callback refers to the id alone: with the tensor in it, that would live for ever
    number = id(tensor)
    source = weakref.ref(tensor, lambda _: _leaves.pop(number, None))
    leaf._deliver, leaf._stands_for = _delivery(source), source
    _leaves[number] = source, leaf
    return _share_hooks(leaf, tensor)


def _share_hooks(leaf: Tensor, tensor: torch.Tensor) -> Tensor:
    """Return ``leaf`` with the hooks and the ``grad_dtype`` of ``tensor``. They share the hooks, so
    that a hook which is registered later runs, too."""
    shared = tensor._backward_hooks
    if shared is None:
        tensor._backward_hooks = shared = OrderedDict()
    if leaf._hooks is not shared:
        leaf._backward_hooks = shared
    dtype = tensor.grad_dtype
    if dtype is not leaf.dtype_of_grad():
        leaf.grad_dtype = dtype
    return leaf


def follow_hooks(leaf: Tensor) -> None:
    """Let a leaf that stands for a tensor have its hooks, if that has got another dictionary of
    them since. Which hooks there are is asked when the gradient arrives, as torch does."""
    if leaf._stands_for is None:
        return
    tensor = leaf._stands_for()
    if tensor is not None and tensor._backward_hooks is not leaf._hooks:
        leaf._backward_hooks = tensor._backward_hooks


def plain_of(tensor: object) -> object:
    """Return the plain tensor whose leaf ``tensor`` is, if it is one; else ``tensor``."""
    if not isinstance(tensor, Tensor) or tensor._stands_for is None:
        return tensor
    source = tensor._stands_for()
    if source is None:
        return tensor
    return source


def _shows(tensor: torch.Tensor, inner: torch.Tensor) -> bool:
    """Return whether ``inner``, once detached from ``tensor``, still is what ``tensor`` shows.
    Assignment to ``tensor.data`` changes that."""
    if tensor.dtype is not inner.dtype:
        return False
    if tensor.layout is not torch.strided or tensor.is_nested:
        return extent(tensor) == extent(inner) and _places(tensor) == _places(inner)
    if (
        tensor.shape != inner.shape
        or tensor.data_ptr() != inner.data_ptr()
        or tensor.stride() != inner.stride()
    ):
        return False
    return tensor.is_neg() is inner.is_neg() and tensor.is_conj() is inner.is_conj()


def _places(tensor: torch.Tensor) -> object:
    """Return where the elements of a nested or a sparse tensor are. For a tensor that does not say
    it: something that equals nothing else."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return tensor.data_ptr()
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().data_ptr(), tensor._values().data_ptr()
    if tensor.is_mkldnn:
        return object()
    return tensor.values().data_ptr()


def _delivery(source: weakref.ref[torch.Tensor]) -> Callable[[torch.Tensor], None]:
    """Return a function that adds a plain gradient to that of the plain tensor. Nobody can ask for
    the gradient of a tensor that is gone."""

    def deliver(grad: torch.Tensor) -> None:
        """Add ``grad``, and call the hooks that wait for that."""
        tensor = source()
        if tensor is None:
            return
        if tensor.requires_grad:  # as torch, not where it was frozen after the forward pass
            old = tensor.grad
            # Python may not assign such a gradient, and torch's node calls the hooks
            if old is None and tensor.is_nested:
                with torch.enable_grad():
                    of_torch: Any = torch.ops.aten.alias.default(tensor).grad_fn
                of_torch.next_functions[0][0](grad)
                return
            if old is None:
                tensor.grad = grad
            elif torch.is_grad_enabled() or (old.is_sparse and not grad.is_sparse):
                # a recorded pass leaves the former gradient as it is
                tensor.grad = grad + old
            else:
                old.add_(grad)
        hooks.run_post_accumulate(tensor, tensor._post_accumulate_grad_hooks)

    return deliver
