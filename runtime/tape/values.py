"""Defines the values of a grad level, and returns their edges: where the gradient of a value
goes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..rules.ops import DIFFERENTIABLE
from ..seam.levels import Level, Value
from ..seam.locks import lock_of
from ..seam.user_code import settled
from . import hooks
from .node_protocol import Hooks
from .nodes import AccumulateGrad, Edge, Input, Node, Sink

_grad_enabled = torch.is_grad_enabled


def edge_of(value: Any) -> Edge | None:
    """Return the edge to which the gradient of ``value`` goes, None if ``value`` does not require
    grad."""
    # a view takes its new history when somebody asks, not when its base is written to
    view = value._view
    if view is not None and view.generation != view.base._generation:
        view.refresh(value)
    edge: Edge | None = value._edge
    if edge is not None:
        return edge
    if value._req:
        node = value._accumulator() if value._accumulator is not None else None
        if node is None:
            node = accumulator_of(value)
        return node, 0
    if view is not None and _grad_enabled() and value._follows_base():
        return Sink(value._level, value._inner), 0
    return None


# two threads that build graphs from one parameter must not create two nodes for it
_creation_lock = lock_of(sys.modules[__name__], "_creation_lock")


def accumulator_of(value: Any) -> AccumulateGrad:
    """Return the ``AccumulateGrad`` node of a leaf. It is created when a graph first needs it. All
    threads get the same one."""
    with _creation_lock:
        node = value._accumulator() if value._accumulator is not None else None
        if node is None:
            node = AccumulateGrad(value._level, value)
            value._accumulator = weakref.ref(node)
    return node


class GradValue(Value):
    """A value of a grad level."""

    # A class attribute: whether the values of the class hold nested tensors.
    _nested: bool = False
    _level: Level
    # The node and the number of the output that it comes from.
    _edge: Edge | None = None
    # Whether it is a leaf that requires grad.
    _req: bool = False
    _accumulator: Any = None
    # Counts writes that changed its history, so that its views notice them.
    _generation: int = 0
    _retains: bool = False
    _grad: Any = None  # of a value that retains it
    _lifted_by: int  # see ``runtime.tape.lift``

    def _follows_base(self) -> bool:
        """Return whether this is a view without history that requires grad because its base does.
        It was taken without grad mode, or before the base required grad. As in torch it is a leaf,
        and its gradient is discarded."""
        view = self._view
        return (
            self._level.follows_bases
            and view is not None
            and self.dtype in DIFFERENTIABLE
            and edge_of(view.base) is not None
        )

    @property
    def requires_grad(self) -> bool:
        """Return whether a gradient of this tensor can be computed."""
        return edge_of(self) is not None or self._follows_base()

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not self.is_leaf:
            raise settled(
                RuntimeError("you can only change requires_grad flags of leaf variables.")
            )
        self._set_flag(value)  # as in torch, which allows it in a transform

    @property
    def grad_fn(self) -> object:  # type: ignore[override]
        """Return the node of the call that this tensor is a result of, None for a leaf."""
        edge = edge_of(self)
        if edge is None or isinstance(edge[0], (AccumulateGrad, Input)):
            return None
        return edge[0]

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        """Return whether this tensor is no result of a recorded call."""
        return self.grad_fn is None

    def tolist(self) -> Any:
        """Return the elements as numbers in nested lists."""
        return self._inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return an array, as ``torch.Tensor.numpy``. Raise if the tensor requires grad, unless
        ``force``."""
        if not force and edge_of(self) is not None:
            raise settled(
                RuntimeError(
                    "Can't call numpy() on Tensor that requires grad. "
                    "Use tensor.detach().numpy() instead."
                )
            )
        return self._inner.numpy(force=force)

    @property
    def output_nr(self) -> int:  # type: ignore[override]
        """Return the number of the node's output that this tensor is, 0 without a node."""
        edge = edge_of(self)
        if edge is None:
            return 0
        return edge[1]

    @property
    def data(self) -> Any:
        """Return a tensor of the same memory, without history and with its own version counter."""
        return self._level.wrap(self._inner.data)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        tape: Any = self._level
        tape.refuse_data()

    def start_leaf(self) -> torch.Tensor:
        """Begin a history. For code of the runtime, in a transform too."""
        # an `Input`, because nothing at this level has a `.grad` for an `AccumulateGrad` to write
        if edge_of(self) is None:
            node = Input(self._level, self._inner)
            node.value = weakref.ref(self)
            self._edge = (node, 0)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Begin a history, as ``torch.Tensor.requires_grad_``. Raise at a level where no backward
        pass could reach the new leaf, or if the flag of a result is to be removed."""
        tape: Any = self._level
        if not tape.starts_leaves:
            self._refuse_leaf()
        return self._set_flag(requires_grad)

    def _set_flag(self, requires_grad: bool) -> object:
        """Begin a history, or raise if there is one that would have to be removed."""
        if requires_grad:
            self.start_leaf()
        elif edge_of(self) is not None:
            advice = "detach() gives a tensor of the same values that has no history."
            if self.is_leaf:  # which torch allows
                raise RuntimeError(
                    f"requires_grad_(False): a leaf inside {self._level.what} keeps its flag. "
                    f"{advice}"
                )
            raise settled(
                RuntimeError(
                    f"requires_grad_(False): only the flag of a leaf can be changed. {advice}"
                )
            )
        return self

    @property
    def retains_grad(self) -> bool:  # type: ignore[override]
        """Return whether this is no leaf, and a backward pass writes its ``.grad`` all the
        same."""
        return self._retains

    def retain_grad(self) -> None:
        """Let backward passes write the gradient of this tensor, no leaf, to its ``.grad``. Raise
        in a transform."""
        level: Any = self._level
        level.retain_grad_of(self)

    def register_hook(self, hook: Callable[[torch.Tensor], object]) -> RemovableHandle:
        """Call ``hook(grad)`` when the gradient of this tensor is known. It may return a
        replacement. As ``torch.Tensor.register_hook``."""
        edge = edge_of(self)
        if edge is None:
            raise settled(
                RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
            )
        return hooks.register(self._own_hooks(*edge), hook)

    @property
    def _backward_hooks(self) -> Any:
        edge = edge_of(self)
        if edge is None:
            return None
        return (edge[0].tensor_hooks or {}).get(edge[1])

    @_backward_hooks.setter
    def _backward_hooks(self, new: object) -> None:
        if not new and not self._backward_hooks:  # as a tensor is unpickled
            return
        raise RuntimeError(
            f"a program assigns _backward_hooks of a tensor inside {self._level.what}. "
            "Let it call register_hook()."
        )

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call ``hook(tensor)`` after ``.grad`` of this leaf has changed. Raise at a level whose
        leaves have no ``.grad``: the hook would never be called."""
        level: Any = self._level
        return level.after_accumulating(self, hook)  # type: ignore[no-any-return]

    def _own_hooks(self, node: Node, index: int) -> Hooks:
        return node.hooks_of(index)

    def _text(self) -> str:
        return f"GradValue(level={self._level.number}, {self._inner!r})"
