"""Adds up gradients, in the engine's buffers and in the ``.grad`` of leaves.

A sum is written into the memory of an earlier gradient if nothing else refers to that memory. A
leaf takes its first gradient without a copy under the same condition.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch

from ..rules.tensors.sparse import in_layout
from ..seam.dispatch import run_elementwise
from ..seam.levels import Level
from ..seam.memory import storage_of
from ..seam.shells import VALUES
from ..seam.user_code import settled
from ..torch_private.native_autograd import is_grad_layout_enforced
from ..torch_private.native_tensors import storage_use_count
from . import hooks
from .leaf_protocol import Leaf
from .running import RUNNING

# elements: from this size on, adding in place saves more than the check of other references costs
_LARGE = 4096
_STRIDED = torch.strided


def add(buffer: list[Any], index: int, g: torch.Tensor, create_graph: bool) -> None:
    """Add ``g`` to ``buffer[index]``, which may be None.

    A large sum is written into the gradient that came first, if only the buffer refers to it. A
    pass that is recorded (``create_graph``) never does that.
    """
    old = buffer[index]
    if old is None:
        buffer[index] = g
    elif type(old) in VALUES:
        buffer[index] = _sum_of_values(old, g)
    elif old.is_sparse and not g.is_sparse:
        buffer[index] = g + old  # torch adds a dense tensor to a sparse one in this order alone
    # three references: from the buffer, the name here, the argument of getrefcount
    elif (
        not create_graph
        and old.numel() >= _LARGE
        and sys.getrefcount(old) <= 3
        and _own(old)
        and type(g) is torch.Tensor
    ):
        old.add_(g)
    else:
        buffer[index] = old + g


def _sum_of_values(old: torch.Tensor, g: torch.Tensor) -> object:
    """Return ``old + g`` at a level."""
    task = RUNNING.task
    # the level may ask the task whether this sum is the engine's, or a node's
    task.sums = True
    try:
        if old.is_sparse and not g.is_sparse:
            return g + old
        return run_elementwise(operator.add, (old, g))
    finally:
        task.sums = False


def _own(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is a plain dense tensor with memory that no other tensor refers
    to."""
    if (
        type(tensor) is not torch.Tensor
        or tensor.layout is not torch.strided
        or tensor.is_nested
        or not dense(tensor.shape, tensor.stride())
    ):
        return False
    # from the tensor and from the storage object made here
    return bool(storage_use_count(storage_of(tensor)._cdata) <= 2)


def _references_to_base(view: torch.Tensor) -> int:
    base: Any = view._base
    return sys.getrefcount(base)


# the count if nothing else refers to the base; versions of torch differ
_UNHELD = _references_to_base(torch.ones(1).view(1))


def _alone(view: torch.Tensor) -> bool:
    """Return whether ``view`` shows all of its memory, and only ``view`` refers to its base.
    Example: the gradient of a weight, which a matrix product returns transposed."""
    storage = storage_of(view)
    # three references to the memory: from the two tensors and from the storage object
    if (
        storage.nbytes() != view.numel() * view.element_size()
        or storage_use_count(storage._cdata) > 3
    ):
        return False
    return _references_to_base(view) <= _UNHELD


def dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor of this shape and strides fills its memory: no two elements share a
    place, and there are no gaps."""
    expected = 1
    extents = zip(strides, shape, strict=True)
    # from the innermost dimension: each stride is the product of the sizes inside of it
    for step, size in sorted(extents):
        if size != 1 and step != expected:
            return False
        expected *= max(size, 1)
    return True


def into_leaf(
    level: Level,
    variable: Leaf,
    grads: list[Any],
    index: int,
    create_graph: bool,
    has_reference: bool = False,
) -> None:
    """Add ``grads[index]`` to the ``.grad`` of a leaf, one backward pass at a time.

    The gradient is removed from the list. If nothing else refers to it, it becomes ``.grad``
    without a copy. Otherwise it is copied, with the strides of the leaf if the leaf is dense, else
    contiguous. ``has_reference``: the engine has one more reference to the gradient, for the hooks
    after the node. Raise if the leaf has been written to since and has a history now.
    """
    if not variable._req:
        _refuse_moved(variable)
        # as in torch, also of a leaf that no longer requires grad
        hooks.run_post_accumulate(variable, variable._post_accumulate)
        return
    # `setdefault` gives two threads the same lock. A hook below may run a pass to this leaf again.
    with variable._lock or variable.__dict__.setdefault("_lock", threading.RLock()):
        g = grads[index]
        grads[index] = None
        old = variable._grad
        # the pass ran on values only to get tangents, and .grad stores none
        if create_graph and not torch.is_grad_enabled():
            create_graph, g = False, g._inner.detach()
        if variable._inner.layout is not _STRIDED:
            g = in_layout(g, variable._inner)
        # Two references: the name here and the argument of getrefcount. The question has no
        # function of its own, because a frame of Dynamo would add one more reference.
        sole = sys.getrefcount(g) <= (3 if has_reference else 2)
        if variable._deliver is not None:
            if create_graph:
                variable._deliver(laid_out(g, variable)._inner)
            else:
                variable._deliver(_as_gradient(g, variable, sole))
        elif create_graph:
            variable._grad = _next_grad(old, g, variable)
        elif old is None:
            variable._grad = level.wrap(_as_gradient(g, variable, sole))
        else:
            _add_to_grad(level, variable, g)
        if variable._post_accumulate:
            hooks.run_post_accumulate(variable, variable._post_accumulate)


def _refuse_moved(variable: Leaf) -> None:
    """Raise if ``variable`` is no leaf any more."""
    if variable._edge is not None:
        raise settled(
            RuntimeError(
                "leaf variable has been moved into the graph interior. "
                "It was frozen after its use, and then written to. "
                "Write to it under torch.no_grad(), or after the backward pass."
            )
        )


def _next_grad(old: torch.Tensor | None, g: torch.Tensor, variable: Leaf) -> object:
    """Return what ``.grad`` becomes in a pass that is recorded: ``old + g``, or ``g`` laid out as
    ``variable`` if there was none."""
    if old is None:
        return laid_out(g, variable)
    if old.is_sparse and not g.is_sparse:
        return g + old  # in this order, see `add`
    return old + g


def _add_to_grad(level: Level, variable: Leaf, g: torch.Tensor) -> None:
    """Add ``g`` to the ``.grad`` that a leaf has, in place if the layouts allow it."""
    old: Any = variable._grad
    inner = old._inner if old._level is level else old
    if inner.is_sparse and not g.is_sparse:
        variable._grad = level.wrap(g + inner)
    else:
        inner.add_(g)


def _as_gradient(g: torch.Tensor, variable: Leaf, sole: bool) -> Any:
    """Return ``g`` itself if it has the layout that the gradient of ``variable`` needs and this is
    the ``sole`` reference to it, else a copy."""
    # whether the leaf may take the memory of `g`
    mine = sole and type(g) not in VALUES
    inner = variable._inner
    if mine and not (
        g.layout is inner.layout is _STRIDED and g.is_contiguous() and inner.is_contiguous()
    ):
        mine = has_required_layout(g, inner)
    if mine and g._base is not None:
        mine = _alone(g)
        if mine:
            g = g.data  # no longer a view
    if mine:
        return g
    return laid_out(g, variable)


def has_required_layout(g: torch.Tensor, variable: Any) -> bool:
    """Return whether ``g`` may become the gradient of ``variable`` without a copy: it has torch's
    «default gradient layout», or torch does not enforce that."""
    layout = g.layout
    # where elements share memory, an in-place op on the gradient would write each
    # place several times
    if layout is torch.sparse_coo:
        return bool(g._indices().is_contiguous() and g._values().is_contiguous())
    if layout is not torch.strided or not is_grad_layout_enforced():
        return True
    contiguous: bool = g.is_contiguous()
    if (
        variable.layout is not torch.strided
        or variable.is_nested
        or (contiguous and variable.is_contiguous())
    ):
        return contiguous
    strides = variable.stride()
    if not dense(variable.shape, strides):
        return contiguous
    return _have_same_places(g.shape, g.stride(), strides)


def _have_same_places(shape: Sequence[int], first: Sequence[int], second: Sequence[int]) -> bool:
    """Return whether two strides are the same for a tensor of this shape. That of a dimension with
    one element is never used."""
    return all(size == 1 or a == b for size, a, b in zip(shape, first, second, strict=True))


def laid_out(g: torch.Tensor, variable: Any) -> Any:
    """Return a copy of ``g``, with the strides of ``variable`` if that is dense, else contiguous.
    A gradient that is not strided keeps its layout."""
    if g.layout is not torch.strided:
        return g.clone()
    if variable.layout is torch.strided and not (variable.is_contiguous() or variable.is_nested):
        strides = variable.stride()
        if dense(variable.shape, strides):
            return g.new_empty_strided(g.shape, strides).copy_(g)
    return g.clone(memory_format=torch.contiguous_format)
