"""Describe what a program does at its boundary: to each argument, and for each result.

    def f(x):
        x.add_(1)
        return x.view(-1), x * 2

The graph of ``f`` is free of writes. It returns the new value of ``x`` and ``x * 2``. The
record says the rest: ``x`` takes the new value. The first result is ``x.view(-1)`` of the caller's
own ``x``, so it shares memory and history with ``x``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from ...seam.keys import uncounted
from ...session.leaf import plain_of
from ...session.tensor import SESSION, Tensor, unwrap, wrap
from ...tape.values import edge_of
from ...tape.view_history import View
from ...torch_private.dispatcher import OpOverload
from ...torch_private.native_autograd import increment_version
from ...torch_private.native_functions import copy_each
from ...torch_private.pytrees import pytree
from ...trace.provenance import Line, happened_at
from ...trace.random_states import Seeding


@dataclass(frozen=True)
class Size:
    """Refer to a number that depends on sizes of arguments: result ``number`` of the graph."""

    number: int


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


@dataclass(frozen=True)
class ViewStep:
    """Take one view: ``func(t, *rest, **kwargs)``, or item ``which`` of it."""

    func: OpOverload
    # a :class:`Size` may stand for a number
    rest: tuple[object, ...]
    kwargs: dict[str, object]
    which: int | None
    # the grad mode in which the program took the view
    recorded: bool = True

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the view of ``tensor``."""
        result = self.func(tensor, *self.rest, **self.kwargs)
        if self.which is not None:
            result = result[self.which]
        view: torch.Tensor = result
        return view

    def sized(self, results: Sequence[object]) -> ViewStep:
        """Return the same view op, with numbers among ``results`` of the graph for its sizes."""
        return dataclasses.replace(
            self, rest=pytree.tree_map_only(Size, lambda size: results[size.number], self.rest)
        )

    def in_place(self) -> OpOverload | None:
        """Return the in-place form of the op, such as ``t_`` for ``t``; None if there is none."""
        packet = getattr(torch.ops.aten, f"{self.func._schema.name.split('::')[1]}_", None)
        if packet is None:
            return None
        # names of overloads may differ: `transpose.int` and `transpose_`
        wanted = _types_of_arguments(self.func)
        for name in packet.overloads():
            overload: OpOverload = getattr(packet, name)
            if _types_of_arguments(overload) == wanted:
                return overload
        return None


def _types_of_arguments(func: OpOverload) -> list[str]:
    return [str(argument.type) for argument in func._schema.arguments]


@dataclass(frozen=True)
class Input:
    """Describe what the program does to one argument."""

    # Whether its gradient is among the graph's results.
    differentiated: bool
    # Whether its new value is among the graph's results.
    written: bool = False
    # The number of the new value's cotangent. None if autograd does not see the write: under
    # `no_grad`, through `detach()`, or of a tensor without history.
    tangent: int | None = None
    # By how much the program advances its version.
    counted: int = 0
    # The changes of its geometry, in order.
    reshaped: tuple[ViewStep, ...] = ()
    # Whether one of these changes happens under `no_grad`.
    reshaped_unseen: bool = False
    # The output whose memory it has after the call, by `set_`.
    replaced: Output | None = None
    # Whether writes to other arguments change its elements.
    overwritten: bool = False
    # The hooks that the program has registered for its gradient.
    hooks: tuple[Callable[[torch.Tensor], object], ...] = ()
    # Whether the program has called `requires_grad_()` on it. Then its gradient is wanted.
    begins: bool = False
    # The user's line of the last write.
    written_at: Line | None = field(default=None, compare=False)

    def write(self, target: torch.Tensor, new: torch.Tensor, recorded: bool) -> None:
        """Carry the write out on the caller's tensor. ``recorded``: ``new`` has a history."""
        if not self.written:
            return
        if recorded:
            with torch.enable_grad():
                _copy_into(target, new)
        else:
            with torch.no_grad():
                # through .data the write advances no version
                seen = target if self.counted else target.data
                _copy_into(seen, new)
        # the copy itself has advanced the version by one
        for _ in range(self.counted - 1):
            increment_version([target])

    def reshape(self, target: torch.Tensor) -> None:
        """Carry out the changes of geometry on the caller's tensor."""
        recording = torch.is_grad_enabled()
        if self.reshaped_unseen and recording:
            self._refuse_unseen_reshape(target)
        with torch.set_grad_enabled(recording and not self.reshaped_unseen):
            for step in self.reshaped:
                func = step.in_place()
                assert func is not None, (
                    "a change of geometry that has no in-place op is refused by the trace"
                )
                func(target, *step.rest, **step.kwargs)

    def _refuse_unseen_reshape(self, target: torch.Tensor) -> None:
        """Refuse a change of geometry under ``no_grad`` that the gradient of a leaf would not
        follow."""
        if not target.requires_grad or not target.is_leaf or self.keeps_geometry(target):
            return
        raise RuntimeError(
            "the program changes sizes or strides of an argument in place under no_grad, "
            "and the argument is a leaf. Its gradient would have those from before. "
            "Do that before the call, or let the program use the op that returns a view."
        )

    def keeps_geometry(self, value: torch.Tensor) -> bool:
        """Return whether argument ``value`` has the same sizes and strides after all changes of its
        geometry: ``unsqueeze_`` and ``squeeze_``, say."""
        after = value
        for step in self.reshaped:
            after = step(after.detach())
        return after is value or geometry(after) == geometry(value)

    def replace(self, target: Any, source: torch.Tensor) -> None:
        """Give the caller's tensor the memory of ``source``; its own if that is ``target``."""
        if isinstance(target, Tensor) and target._deliver is not None:
            raise RuntimeError(
                "the program calls set_() on an argument that is a leaf of torch's own autograd, "
                "whose memory this package does not replace. "
                "Make it with runtime.wrap(x, requires_grad=True)."
                f"{happened_at(self.written_at)}"
            )
        # set_ itself advances the version by one
        if source is not target:
            with torch.no_grad():
                target.set_(source.detach())
        for _ in range(self.counted - (source is not target)):
            increment_version([target])


def geometry(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], int | torch.SymInt]:
    """Return sizes, strides and offset of ``tensor`` in its memory, with symbols as they are."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def write(writes: Sequence[tuple[Input, torch.Tensor, torch.Tensor, bool]]) -> None:
    """Carry out :meth:`Input.write` for each ``(input, target, new, recorded)``.

    Writes to plain tensors take two calls together: one for the writes that advance a version, and
    one for the others.
    """
    seen: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    hidden: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for record, target, new, recorded in writes:
        # a subclass may have its own copy_, and a list advances each version by one
        alone = recorded or record.counted > 1 or type(target) not in _PLAIN
        if alone or not _can_copy_in_list(target):
            record.write(target, new, recorded)
            continue
        targets, news = hidden
        if record.counted:
            targets, news = seen
        targets.append(target)
        news.append(new)
    if seen[0]:
        with torch.no_grad():
            copy_each(*seen)
    if hidden[0]:
        uncounted(copy_each, *hidden)


def _can_copy_in_list(target: torch.Tensor) -> bool:
    """Return whether ``_foreach_copy_`` may write to ``target``."""
    if target.layout is not torch.strided or 0 in target.stride():
        return False
    # it refuses what is conjugated or negated lazily
    return not target.is_conj() and not target.is_neg()


def refuse_hooked_view(target: Tensor, hooked: bool) -> None:
    """Refuse a recorded write to ``target``, a view, if a hook sees its gradient.

    ``hooked``: whether the program registers a hook. The write gives the view another history. The
    gradient of what the program computes after the write does not reach the hook.
    """
    if _is_hooked_before_base(target) or hooked:
        raise RuntimeError(
            "the program registers a hook on an argument that is a view, or there is one, "
            "and writes to the argument. The write gives the view another history, which the hook "
            "does not see. Pass a clone, or register the hook on the tensor that it is a view of."
        )


def _is_hooked_before_base(view: Tensor) -> bool:
    """Return whether a hook sees the gradient of ``view`` on its way to the base of the view."""
    edge, end = edge_of(view), edge_of(view._view.base)
    while edge is not None and edge != end:
        node, number = edge
        if node.pre_hooks or node.post_hooks or (node.tensor_hooks or {}).get(number):
            return True
        # a view op has one operand: any other node is not on the way to the base
        edge = node.edges[0] if len(node.edges) == 1 else None
    return False


def _copy_into(target: torch.Tensor, new: torch.Tensor) -> None:
    """Copy ``new`` into ``target``, along an expanded dimension once.

    ``RuntimeError`` if elements of ``new`` along that dimension differ.
    """
    if target.layout is torch.strided and 0 in target.stride():
        # along such a dimension all elements of the target are one, so all new ones must be equal
        for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
            if size > 1 and stride == 0:
                first = new.narrow(dim, 0, 1)
                if not torch.equal(first.expand(new.shape), new):
                    raise RuntimeError(
                        "the program writes to a part of an expanded argument. "
                        "Let it write to a clone of it."
                    )
                target, new = target.narrow(dim, 0, 1), first
    target.copy_(new)


def _as_leaf(tensor: torch.Tensor) -> Tensor:
    """Return ``tensor`` as a leaf that requires grad. A tensor of torch is wrapped."""
    if isinstance(tensor, Tensor):
        return tensor.requires_grad_()
    return wrap(tensor, requires_grad=True)


class Made(Enum):
    """Say where a result of a program comes from."""

    RESULT = "a result of the graph"
    INPUT = "an argument"
    CONSTANT = "no tensor"


@dataclass(frozen=True)
class Output:
    """Build one result of the program by view ops.

    They start from result ``number`` of the graph, or from argument ``number``.
    """

    made: Made
    number: int = 0
    steps: tuple[ViewStep, ...] = ()
    # Whether views have a history.
    recorded: bool = True
    # The result, if it is no tensor.
    constant: object = None
    # Whether the program has called `requires_grad_()` on it.
    leaf: bool = False
    # Whether numbers of the view ops are results of the graph.
    sized: bool = False
    # Whether a Function has written to it without grad mode. It is a detached alias then, if it
    # requires grad.
    released: bool = False

    @property
    def is_result(self) -> bool:
        """Return whether it is a result of the graph without a view or another change."""
        return self.made is Made.RESULT and not (self.steps or self.leaf or self.released)

    def of(self, arguments: Sequence[object], results: Sequence[object]) -> Any:
        """Return the result.

        ``arguments``: the caller's, after all writes. ``results``: of the graph, with history.
        """
        tensor = self._of(arguments, results)
        if self.released and tensor.requires_grad:
            return tensor.detach()
        if self.leaf:
            return _as_leaf(tensor)
        return tensor

    def returned(self, arguments: Sequence[object], results: Sequence[object]) -> Any:
        """Return the result as the caller gets it. An argument is the caller's own object."""
        tensor = self.of(arguments, results)
        if self.made is Made.INPUT and not self.steps and not self.leaf:
            return plain_of(tensor)
        return tensor

    def _of(self, arguments: Sequence[object], results: Sequence[object]) -> Any:
        """Take the views, each in the grad mode of the program."""
        if self.made is Made.CONSTANT:
            return self.constant
        source = arguments if self.made is Made.INPUT else results
        tensor: Any = source[self.number]
        if not self.steps:
            return tensor
        steps: Sequence[ViewStep] = self.steps
        if self.sized:
            steps = [step.sized(results) for step in steps]
        for step in steps:
            # the grad mode is that of the program at this step, not that of the call
            recorded = self.recorded and step.recorded
            if recorded is torch.is_grad_enabled():
                tensor = step(tensor)
            else:
                with torch.set_grad_enabled(recorded):
                    tensor = step(tensor)
        return tensor


@dataclass(frozen=True)
class Alias:
    """Put a result of the graph into memory that the caller has. It keeps the history of the
    result.
    """

    # the number of the result
    number: int
    # shows the memory
    place: Output
    # why the caller may not write to it, as of :class:`~...tape.view_history.View`
    creation: str = ""

    def of(self, arguments: Sequence[object], results: Sequence[object]) -> Any:
        """Return the tensor in that memory. Arguments are as :meth:`Output.of` takes them."""
        shown, result = self.place.of(arguments, results), results[self.number]
        edge = edge_of(result) if isinstance(result, Tensor) else None
        # the memory of the place, and the history of the result
        alias = shown.detach()
        if edge is None:
            return alias
        alias = SESSION.wrap(unwrap(alias), edge)
        if self.creation and isinstance(shown, Tensor):
            base, chain = shown, ()
            if shown._view is not None:
                base, chain = shown._view.base, shown._view.chain
            alias._view = View(base, chain, self.creation)
        return alias


@dataclass(frozen=True)
class Boundary:
    """Describe what a program does at its boundary.

    The graph returns new values of written inputs, computed results, gradients of differentiated
    inputs, then new values of what the backward pass writes to.
    """

    # One record for each placeholder of a primal.
    inputs: tuple[Input, ...]
    # One record for each leaf of the results of the program.
    outputs: tuple[Output, ...]
    # For each computed result of the graph the number of its cotangent, or None.
    tangents: tuple[int | None, ...]
    # Pairs of a leaf of the results, and an earlier one that is the same object.
    repeated: tuple[tuple[int, int], ...] = ()
    # Pairs of a leaf that a Function has returned in place of another one, and that one. Both are
    # one object if the latter does not require grad after the call.
    released: tuple[tuple[int, int], ...] = ()
    # Numbers of the inputs that the backward pass writes to.
    backward_written: tuple[int, ...] = ()
    # Computed results for which the program has called `requires_grad_()`, and returns views.
    begun: tuple[int, ...] = ()
    # Computed results in the memory of an argument or of another result, without its history.
    placed: tuple[Alias, ...] = ()
    # Why the program has no second derivative. Empty if it has one.
    once: str = ""
    # For each gradient the cotangents that it depends on, as the bits of a number.
    reach: tuple[int, ...] = ()
    # See :meth:`.program.Reach.asking`.
    asking: Mapping[str, Set[frozenset[int]]] = field(default_factory=dict)
    # The effects of a call on the states of random generators, besides the draws of the graph.
    seedings: tuple[Seeding, ...] = ()
    # Numbers of the graph's results that the program computes in inference mode, although it is
    # called outside of it, or the reverse. `grad` and similar transforms leave that mode.
    other_mode: tuple[int, ...] = ()

    def finish(self, arguments: Sequence[object], results: list[torch.Tensor]) -> None:
        """Replace computed results, in place, by leaves and by aliases of other memory.

        That comes before views of them are taken.
        """
        for alias in self.placed:
            results[alias.number] = alias.of(arguments, results)
        for number in self.begun:
            results[number] = _as_leaf(results[number])

    @property
    def direct(self) -> tuple[int, ...] | None:
        """Return the numbers of the results of the graph that the program returns; None if it does
        anything else than to draw random numbers and return results."""
        effects = (self.repeated, self.released, self.begun, self.placed, self.other_mode)
        if any(effects) or self.changes_inputs:
            return None
        # a view whose geometry changes in place advances the version of its base
        if any(record.hooks or record.counted for record in self.inputs):
            return None
        if not all(output.is_result for output in self.outputs):
            return None
        return tuple(output.number for output in self.outputs)

    @property
    def written(self) -> tuple[int, ...]:
        """Return the numbers of the inputs whose new values the graph returns."""
        return tuple(index for index, record in enumerate(self.inputs) if record.written)

    @property
    def differentiated(self) -> tuple[int, ...]:
        """Return the numbers of the inputs whose gradients the graph returns."""
        return tuple(index for index, record in enumerate(self.inputs) if record.differentiated)

    @property
    def changes_inputs(self) -> bool:
        """Return whether the program changes an argument so that one which shares its memory shows
        it."""
        return any(
            record.written or record.reshaped or record.replaced or record.begins
            for record in self.inputs
        )

    @property
    def n_forward(self) -> int:
        """Count the results of the graph that are not gradients."""
        return len(self.written) + len(self.tangents)

    @property
    def n_tangents(self) -> int:
        """Count the cotangents that the graph takes."""
        of_writes = sum(record.tangent is not None for record in self.inputs)
        of_results = sum(number is not None for number in self.tangents)
        return of_writes + of_results
