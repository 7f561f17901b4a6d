"""Defines the part of a recording level that values, nodes and writes use."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import refuse_data_write
from ..rules.ops import DIFFERENTIABLE, Op
from ..seam.call_types import Arguments
from ..seam.levels import Level, Value
from ..seam.shells import VALUES, same_shape
from ..torch_private.native_autograd import set_grad_enabled
from ..torch_private.native_tensors import make_subclass
from .nodes import Edge, Input
from .values import GradValue, edge_of

_grad_enabled = torch.is_grad_enabled


class Tape(Level):
    """A level whose values have a history. It makes them, collects the edges of a call's arguments,
    and calls the outer levels.

    ``outer_mode``: the grad mode of the outer levels.
    """

    __slots__ = ("outer_mode",)
    # whether a program may make a leaf of a value, and run a backward pass to the leaves
    starts_leaves = True
    what = "grad, vjp or jacrev"
    keeps_history = shows_strides = True
    # results of these dtypes become values even without a history
    wrapped_dtypes: frozenset[torch.dtype] = DIFFERENTIABLE
    # whether a user's backward gets values of this level also if the pass is not recorded
    shows_values = False
    # whether a custom Function without grad mode returns a detached alias of what it has written
    # to, if that requires grad, as torch does
    releases_written = False
    # whether a custom Function may be written in the old style, ``forward(ctx, …)``
    runs_ctx_forward = False
    # whether the level notes the backward of custom Functions, see `noted_backward`
    notes_backward = False
    # whether a view of a written base takes its history by ``as_strided`` instead of
    # by the view ops
    restrides_views = False

    def __init__(self) -> None:
        super().__init__()
        self.outer_mode = _grad_enabled()

    def wrap(self, inner: Any, edge: Edge | None = None, /) -> Any:
        """Return a value of this level with the inner tensor ``inner`` and the history ``edge``."""
        value: Any
        if type(inner) is torch.Tensor and not inner.is_nested:  # as same_shape, without its frame
            value = make_subclass(GradValue, inner)
            value._inner = inner
        elif type(inner) in VALUES and inner._level is self:
            # a rule that runs in a backward pass made a constant of this level
            return self.wrap(inner._inner, edge)
        else:
            value = same_shape(GradValue, inner)
        value._level = self
        value._edge = edge
        return value

    def shown_to_forward(
        self, node: Any, args: Sequence[object], given: Sequence[object]
    ) -> AbstractContextManager[None]:
        """Return a context in which the ``forward`` of a custom Function runs.

        ``node``: what is put on the tape for it. ``given``: what it gets in place of ``args``,
        whose values are of this level. In a transform these are tensors of the outer levels, as
        they are.
        """
        return nullcontext()

    def noted_backward(self, node: Any, shown: list[Any], create_graph: bool) -> tuple[Any, ...]:
        """Return what ``node``, of a custom Function, computes for the cotangents ``shown``, at a
        level that notes it (``notes_backward``)."""
        raise NotImplementedError

    def retain_grad_of(self, value: Any) -> None:
        """Do ``value.retain_grad()``, where ``value`` is a value of this level. A transform's
        values have no ``.grad``, so here it raises."""
        Value.retain_grad(value)  # which raises

    def after_accumulating(
        self, value: object, hook: Callable[[torch.Tensor], object]
    ) -> RemovableHandle:
        """Do ``value.register_post_accumulate_grad_hook(hook)``, where ``value`` is a value of this
        level. In a transform, raise."""
        raise RuntimeError(
            f"register_post_accumulate_grad_hook() of a tensor inside {self.what}, "
            "where no leaf is told that its gradient is complete. Do after the backward pass what "
            "the hook does, or register_hook() for each gradient that arrives."
        )

    def input(self, outer: torch.Tensor) -> Any:
        """Return an input of the transform: a value that requires grad, with an ``Input`` node."""
        node = Input(self, outer)
        value = self.wrap(outer, (node, 0))
        node.value = weakref.ref(value)
        return value

    def outward(self, op: Op, inner: list[object], kwargs: dict[str, object]) -> Any:
        """Run ``op`` on inner tensors, in the grad mode of the outer levels."""
        # no_grad inside the function applies to the outer levels, too
        if self.outer_mode or not _grad_enabled():
            return op.run(inner, kwargs)
        set_grad_enabled(False)
        try:
            return op.run(inner, kwargs)
        finally:
            set_grad_enabled(True)

    def is_constant(self, value: Value) -> bool:
        """Return whether ``value`` does not require grad."""
        return edge_of(value) is None

    def written_by_function(self, value: object) -> None:
        """Note that a user's Function has written to ``value``, whose new history is its node."""

    def refuse_data(self) -> NoReturn:
        """Refuse an assignment to ``.data`` of a value."""
        refuse_data_write()

    def copy_before_write(self, inner: torch.Tensor) -> torch.Tensor:
        """Return a copy of an inner tensor before a write, for a node whose formula needs the value
        from before the write."""
        return inner.clone()

    def collect(
        self, op: Op, args: Arguments
    ) -> tuple[list[object], tuple[Edge | None, ...], int, dict[int, int] | None]:
        """Return four things of the arguments of a call.

        First, all of them lowered (:meth:`lowered_args`, without its frame). Then, of those that
        require grad: the edges, in order; a bit for the position of each; the length of each that
        is a list. Example: ``mul(x, 2.0)`` with ``x`` of this level has the edge of ``x``, the bits
        0b1, and no list.
        """
        inner = list(args)
        edges: tuple[Edge | None, ...] = ()
        spans: dict[int, int] | None = None
        wanted = 0
        count = len(inner)
        for index in op.tensor_args:
            if index >= count:
                break
            argument: Any = inner[index]
            kind = type(argument)
            if kind in VALUES:
                if argument._level is self:
                    inner[index] = argument._inner
                    edge = argument._edge
                    # leaves have their edge elsewhere, and that of a view may be old
                    if edge is None or argument._view is not None:
                        edge = edge_of(argument)
                    if edge is not None:
                        wanted |= 1 << index
                        edges += (edge,)
            elif kind is list or kind is tuple:
                inner[index], of_list = self._collect_list(argument)
                if of_list is not None:
                    wanted |= 1 << index
                    spans = {**(spans or {}), index: len(of_list)}
                    edges += of_list
        return inner, edges, wanted, spans

    def _collect_list(self, items: Any) -> tuple[object, tuple[Edge | None, ...] | None]:
        """Return a list argument lowered, and the edges of its tensors. None if none of them
        requires grad."""
        if not items:
            return items, None
        mine = [
            index
            for index, item in enumerate(items)
            if type(item) in VALUES and item._level is self
        ]
        if not mine:
            return self.lowered_args(items), None  # only lists of lists are left to lower
        inner = list(items)
        edges: list[Edge | None] = [None] * len(inner)
        for index in mine:
            edges[index] = edge_of(inner[index])
            inner[index] = inner[index]._inner
        if edges.count(None) == len(edges):
            return inner, None
        return inner, tuple(edges)
