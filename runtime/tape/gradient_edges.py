"""Makes gradient edges of tensors, and registers hooks on several gradients at once: the part of
``torch.autograd.graph`` about nodes.

Example: ``grad(loss, get_gradient_edge(x))`` needs no reference to ``x`` any more.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from ..seam.user_code import settled
from . import engine
from .graph_task import GraphTask
from .nodes import AccumulateGrad, Node
from .running import RUNNING
from .values import edge_of


class GradientEdge(NamedTuple):
    """Output ``output_nr`` of ``node``, where a gradient is computed. ``backward`` and ``grad``
    take it in place of a tensor."""

    node: Node
    output_nr: int
    # unused: torch's nodes may need a second owner, these do not
    ownership_token: Node | None = None


def get_gradient_edge(tensor: torch.Tensor) -> GradientEdge:
    """Return the edge to which the gradient of ``tensor`` goes, as
    ``torch.autograd.graph.get_gradient_edge``. ``grad(loss, get_gradient_edge(x))`` is
    ``grad(loss, x)``. Raise if the tensor does not require grad."""
    edge = edge_of(tensor)
    if edge is None:
        raise settled(
            RuntimeError(
                "It is not possible to get the gradient edge for a Tensor that "
                "does not require gradients"
            )
        )
    return GradientEdge(*edge)


class _Handles(RemovableHandle):
    """Removes several hooks at once."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        super().__init__(OrderedDict())
        self.handles = tuple(handles)

    def remove(self) -> None:
        """Remove all of the hooks."""
        for handle in self.handles:
            handle.remove()


def register_multi_grad_hook(
    tensors: Sequence[torch.Tensor],
    fn: Callable[..., object],
    *,
    mode: Literal["all", "any"] = "all",
) -> RemovableHandle:
    """Register ``fn`` on the gradients of ``tensors``, as
    ``torch.autograd.graph.register_multi_grad_hook``.

    ``"all"``: call ``fn(grads)`` when the backward pass has computed all gradients of ``tensors``
    that it computes; the others are None. ``"any"``: call ``fn(grad)`` with the first gradient.
    """
    if mode not in ("all", "any"):
        raise settled(ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}"))
    if mode == "any":
        hooked = [tensor for tensor in tensors if tensor.requires_grad]
        inner = _when_any(fn)
    else:
        hooked = list(tensors)
        inner = _when_all(list(map(_node_finder, hooked)), fn)
    return _Handles([tensor.register_hook(inner(index)) for index, tensor in enumerate(hooked)])


def _node_finder(tensor: torch.Tensor) -> Callable[[], Node | None]:
    """Return a function that returns the node of ``tensor``, None if it is gone. It refers to it
    weakly, because the node holds the hook that calls it."""
    edge = get_gradient_edge(tensor)
    if type(edge.node) is not AccumulateGrad:
        return weakref.ref(edge.node)
    leaf = weakref.ref(tensor)

    # a leaf's node may be freed and created again, so the question goes to the leaf
    def node_of_leaf() -> Node | None:
        """Return the node that the leaf has now, None if the leaf is gone or none any more."""
        variable = leaf()
        if variable is None:
            return None
        edge = edge_of(variable)
        if edge is None:
            return None
        return edge[0]

    return node_of_leaf


def _when_all(
    nodes: Sequence[Callable[[], Node | None]], fn: Callable[..., object]
) -> Callable[[int], Callable[[torch.Tensor | None], None]]:
    """Return a function of a position that returns the hook of the tensor there. The last hook that
    a pass calls calls ``fn`` with all gradients. ``nodes``: per tensor, what returns its node."""
    lock = threading.Lock()
    # By pass: the gradients that have come, and the positions of those that are to come. A hook may
    # run in several passes at once, on several threads.
    states: weakref.WeakKeyDictionary[GraphTask, tuple[list[object], set[int]]] = (
        weakref.WeakKeyDictionary()
    )

    def inner(index: int) -> Callable[[torch.Tensor | None], None]:
        """Return the hook of the tensor at position ``index``."""

        def hook(grad: object) -> None:
            """Note a gradient, and call ``fn`` if it is the last one of its pass."""
            task = _task()
            with lock:
                # only a pass that runs knows which of the nodes it will run
                if task not in states:
                    expected = set()
                    for position, node_of in enumerate(nodes):
                        node = node_of()
                        if node is not None and engine.will_execute(node):
                            expected.add(position)
                    states[task] = ([None] * len(nodes), expected)
                grads, missing = states[task]
                grads[index] = grad
                missing.discard(index)
                complete = not missing
            # without the lock: `fn` may start a pass that calls these hooks
            if complete:
                fn(grads)

        return hook

    return inner


def _when_any(fn: Callable[..., object]) -> Callable[[int], Callable[[torch.Tensor | None], None]]:
    """Return a function of a position that returns the hook of the tensor there. The first hook
    that a pass calls calls ``fn`` with its gradient."""
    lock = threading.Lock()
    # the passes that have called `fn`
    called: weakref.WeakSet[GraphTask] = weakref.WeakSet()

    def inner(index: int) -> Callable[[torch.Tensor | None], None]:
        """Return a hook, the same for each position."""

        def hook(grad: object) -> None:
            """Call ``fn`` with a gradient, if it is the first one of its pass."""
            task = _task()
            with lock:
                first = task not in called
                called.add(task)
            if first:
                fn(grad)

        return hook

    return inner


def _task() -> GraphTask:
    task: GraphTask | None = RUNNING.task
    if task is None:
        raise RuntimeError("a hook on several gradients can only be called by a backward pass")
    return task
