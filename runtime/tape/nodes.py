"""Define what all nodes of the tape have, and the nodes at which its paths end.

Example: ``y = x.sin()`` makes a ``SinBackward0``, see ``op_nodes.py``. Its one edge leads to the
node of ``x``: an :class:`AccumulateGrad` if ``x`` is a leaf. Its ``apply`` maps the cotangent ``g``
of ``y`` to ``g * x.cos()``.

A node's ``edges`` lead to the nodes that made its inputs. A graph consists of nodes, edges and
saved inner tensors, never of values of its own level. So it has no reference cycles, and reference
counting frees it. A chain may have any length, because CPython frees nested tuples and slotted
objects through a queue instead of by recursion.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from ..rules.record import NestedMeta
from ..seam.levels import Level
from ..seam.user_code import settled
from . import anomaly, hooks
from .leaf_protocol import Leaf
from .metas import meta_of
from .node_protocol import Hook, Hooks

_sequence = itertools.count()  # later nodes have larger numbers, and a pass runs these first
LAST = 1 << 62  # sequence number of leaves: as soon as they are ready, they run

Edge = tuple["Node", int]


def next_number() -> int:
    """Return a number between those of earlier nodes and those of later ones. So a trace knows
    which call a node belongs to. No node gets this number itself."""
    return next(_sequence)


class Node:
    """One step of the backward pass: ``apply`` maps the cotangents of its outputs to
    those of its inputs."""

    namespace = ""  # of torch's C++ class, if it is part of the name
    # whether modes over torch's functions see no call that it makes: it runs no code of users
    unseen = False
    # whether it stands for several nodes, of which some do not run: then None is no cotangent,
    # rather than zero
    several = False
    __slots__ = (
        "__weakref__",
        "edges",
        "level",
        "metadata_",
        "metas",
        "post_hooks",
        "pre_hooks",
        "retained",
        "seq",
        "tensor_hooks",
    )

    def __init__(self, level: Level, edges: tuple[Edge | None, ...], metas: Any) -> None:
        self.seq = next(_sequence)
        self.level = level
        self.edges = edges
        self.metas = metas  # per output (shape, dtype), or None for an output that is not a tensor
        self.pre_hooks: Hooks | None = None
        self.tensor_hooks: dict[int, Hooks] | None = None  # by output number
        self.post_hooks: Hooks | None = None
        # by output number: the tensor whose .grad is written, weakly, since it refers to this node
        self.retained: dict[int, weakref.ref[Any]] | None = None
        if anomaly.STATE.enabled:
            anomaly.remember(self)

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Return one cotangent per edge from the cotangents of the outputs. None stands for zero.

        ``wanted``: per edge, whether its cotangent is needed; None: all are. ``create_graph``: the
        pass is recorded, so cotangents are values of the level.
        """
        raise NotImplementedError

    def leaves(self) -> Sequence[Leaf] | None:
        """Return the leaves to which the edges lead, if each leads to one without hooks. Otherwise
        None. The engine then writes ``.grad`` without ``AccumulateGrad`` nodes."""
        return None

    def release(self) -> None:
        """Drop saved tensors."""

    def name(self) -> str:
        """Return the name that torch prints, ``MulBackward0``."""
        return self.namespace + type(self).__name__

    def inputs(self) -> Sequence[int | None]:
        """Return the inputs as users see them: for each differentiable argument of the op its edge
        number, None if it needs no gradient."""
        return range(len(self.edges))

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Return (node, output number) for each input, as torch's ``next_functions``. (None, 0) for
        one that needs no gradient."""
        functions: list[tuple[Node | None, int]] = []
        # a program that walks the graph is to see no node that torch does not have
        for index in self.inputs():
            edge = None if index is None else self.edges[index]
            if edge is None or type(edge[0]) is Sink:
                functions.append((None, 0))
            else:
                functions.append(edge)
        return tuple(functions)

    @property
    def metadata(self) -> dict[Any, Any]:
        """Return the dictionary in which users may store what they like, as torch's nodes have
        one. Few nodes need it, so it is created when it is first asked for."""
        try:
            return self.metadata_
        except AttributeError:
            self.metadata_: dict[Any, Any] = {}
            return self.metadata_

    @property
    def requires_grad(self) -> bool:
        """Return True, as every node of torch does."""
        return True

    @property
    def _input_metadata(self) -> tuple[Any, ...]:
        """Return shape and dtype of each output of the forward call, which its cotangent must
        have."""
        return tuple(None if meta is None else InputMetadata(*meta) for meta in self.metas)

    def _sequence_nr(self) -> int:
        return self.seq

    def _set_sequence_nr(self, number: int) -> None:
        self.seq = number

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node has run. It may return
        replacements of ``grad_inputs``."""
        if self.post_hooks is None:
            self.post_hooks = OrderedDict()
        return hooks.register(self.post_hooks, hook)

    def register_prehook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs. It may return replacements."""
        if self.pre_hooks is None:
            self.pre_hooks = OrderedDict()
        return hooks.register(self.pre_hooks, hook)

    def hooks_of(self, index: int) -> Hooks:
        """Return the hooks of output ``index``, a tensor."""
        if self.tensor_hooks is None:
            self.tensor_hooks = {}
        return self.tensor_hooks.setdefault(index, OrderedDict())

    def __call__(self, *grads: object) -> Any:
        """Run this node alone: the cotangents of its inputs from those of its outputs."""
        if len(grads) != len(self.metas):
            raise settled(
                TypeError(f"expected {len(self.metas)} arguments, got {len(grads)} instead")
            )
        # without an engine around it, grad mode alone says whether the call is recorded
        recording = torch.is_grad_enabled()
        cotangents = [hooks.for_engine(self.level, grad, recording) for grad in grads]
        outputs = self.apply(cotangents, None, recording)
        results = tuple(hooks.for_users(self.level, gradient) for gradient in outputs)
        if len(results) == 1:
            return results[0]
        return results

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object at {id(self):#x}>"


def nodes_at(edges: Iterable[Edge | None]) -> Iterator[Node]:
    """Yield the node at the end of each edge; None leads to no node."""
    for edge in edges:
        if edge is not None:
            yield edge[0]


def nodes_after(node: Node) -> Iterator[Node]:
    """Yield the nodes to which the edges of ``node`` lead."""
    return nodes_at(node.edges)


class InputMetadata(NamedTuple):
    """The shape and dtype that a cotangent must have."""

    shape: torch.Size | NestedMeta
    dtype: torch.dtype | None


class AccumulateGrad(Node):
    """The last node of a path to a leaf of level zero. It adds the gradient to the leaf's
    ``.grad``, one backward pass at a time."""

    namespace = "torch::autograd::"
    __slots__ = ("variable",)

    def __init__(self, level: Level, variable: Leaf) -> None:
        Node.__init__(self, level, (), (meta_of(variable._inner, variable.dtype_of_grad()),))
        self.seq = LAST
        self.variable = variable
        # the dictionary of the leaf itself, so that hooks that come later are seen
        if variable._hooks is not None:
            self.tensor_hooks = {0: variable._hooks}

    def unwatched(self) -> bool:
        """Return whether no hook sees the gradient, so that the engine may add it at any time."""
        of_leaf = self.tensor_hooks[0] if self.tensor_hooks else None
        return not (of_leaf or self.pre_hooks or self.post_hooks or self.variable._post_accumulate)


class Input(Node):
    """The last node of a path to an input of a transform. It does nothing: the engine
    returns the cotangent. A program that walks to the leaves of a graph sees what it sees in torch:
    the name ``AccumulateGrad`` and the ``variable``. ``value``: a weak reference to that, as the
    value holds the node."""

    namespace = "torch::autograd::"
    __slots__ = ("value",)

    def __init__(self, level: Level, inner: torch.Tensor) -> None:
        super().__init__(level, (), (meta_of(inner, inner.dtype),))
        self.seq = LAST
        self.value: weakref.ref[Any] | None = None

    @property
    def variable(self) -> Any:
        """Return the leaf, or None if it is gone."""
        if self.value is None:
            return None
        return self.value()


Input.__name__ = Input.__qualname__ = AccumulateGrad.__name__


class Sink(Input):
    """The last node of a path to a view taken under ``no_grad`` of a tensor that requires grad (see
    ``Tensor._follows_base``). It discards the gradient, and users see no node."""

    __slots__ = ()

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        return ()
