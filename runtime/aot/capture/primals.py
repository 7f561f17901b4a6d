"""Run a program on the primals of a joint graph, and record what it does to each input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...functionalize.functional_value import FunctionalValue
from ...functionalize.stores import Chain, Memory, Replaced, Store
from ...rules.ops import DIFFERENTIABLE
from ...seam.levels import Value
from ...session.tensor import unwrap
from ...tape.nodes import Edge
from ...tape.nodes import Input as Leaf
from ...tape.values import edge_of
from ...torch_private.mode_stacks import without_modes
from ...torch_private.native_autograd import set_version_counters
from ...trace.provenance import happened_at, here
from ...trace.trace_level import Trace
from ..python_state.closed_over import holds_values
from .aliasing import Group
from .boundary import Input, ViewStep
from .joint_level import JointLevel
from .shown import WholeTensorsLevel, registered
from .subclass_parts import (
    Layout,
    composed,
    count,
    flattened,
    key_of,
    layout_of,
    rebuilt,
    refuse_opaque,
)

_as_strided = torch.ops.aten.as_strided.default


class Primals:
    """Hold the inputs of one run of a program under trace ⊃ functionalize ⊃ grad.

    These are arguments, bases of arguments that share memory, then tensors that the program closes
    over.
    """

    def __init__(self, trace: Trace, groups: Sequence[Group], recording: bool) -> None:
        self.trace = trace
        self.groups = groups
        # whether the values may have histories
        self.recording = recording
        self.functional = WholeTensorsLevel()
        self.functional.releases = not recording
        self.tape = JointLevel(trace, self.functional)
        self.flags: list[bool] = []
        # per primal what the program sees
        self.values: list[Any] = []
        # per primal where its gradient goes, as long as nothing writes to it
        self.edges: list[Any] = []
        # per primal its parts, if it is no plain tensor
        self.layouts: list[Layout | None] = []
        self._parts = 0  # how many plain tensors they have
        # by id of a memory, the number of its primal
        self.memories: dict[int, int] = {}
        self.shapes: dict[int, torch.Size] = {}
        # by number of a primal; it holds the memories alive, so no other one gets the id of one
        self.entered: dict[int, FunctionalValue] = {}
        # the tensors that the program closes over
        self.outside: list[torch.Tensor] = []
        # the classes of tensors that the program itself composes of others, and their memories with
        # the generations at that time
        self.made: list[tuple[str, list[tuple[Memory, int]]]] = []
        # the bases of arguments that share memory and no history
        self.bases_apart: set[int] = set()
        # versions of tensors from outside, to restore, as the dispatcher counts the trace's writes
        self.versions: list[tuple[torch.Tensor, int]] = []

    def enter(self, tensor: object, flag: bool, layout: Layout | None = None) -> Any:
        """Add a primal, and return it as the program sees it.

        ``flag``: whether its gradient is wanted. ``layout``: that of ``tensor``.
        """
        self.flags.append(flag)
        self.layouts.append(layout)
        self._parts += count((layout,))
        if not isinstance(tensor, torch.Tensor):
            self.values.append(tensor)
            self.edges.append(None)
            return tensor
        # functionalize inside, the tape around it
        value: Any = self.functional.wrap(tensor)
        self.memories[id(value._store.memory)] = len(self.values)
        self.shapes[len(self.values)] = tensor.shape
        self.entered[len(self.values)] = value
        if flag:
            value = self.tape.input(value)
            self.edges.append(value._edge)
        else:
            value = self._with_room_for_history(value)
            self.edges.append(None)
        self.values.append(value)
        return value

    def join(self, bases: Sequence[torch.Tensor]) -> None:
        """Exchange arguments that share memory for views of one base, which becomes a primal."""
        left = iter(bases)
        for group in self.groups:
            # one tensor needs no base: it is its own
            if group.identical:
                for index in group.members[1:]:
                    self.values[index] = self.values[group.members[0]]
                continue
            with without_modes():
                base = self._add_primal(next(left), group.differentiated)
            if group.histories:
                self.bases_apart.add(len(self.values) - 1)
                self._join_apart(group, len(self.values) - 1)
                continue
            with torch.set_grad_enabled(self.recording):
                for index in group.members:
                    self._join_one(group, index, base)

    def _join_one(self, group: Group, index: int, base: Any) -> None:
        """Exchange argument ``index`` for a view of ``base``, the primal of its group."""
        if group.first(index) != index:
            self.values[index] = self.values[group.first(index)]
            return
        size, stride, offset = group.place(index)
        if group.differentiated:
            self.values[index] = base.as_strided(size, stride, offset)
            self.edges[index] = edge_of(self.values[index])
            return
        # an offset counts from the start of a storage, and that of the base starts elsewhere after
        # a write
        self.values[index] = base.narrow(0, offset, _length(size, stride)).as_strided(size, stride)

    def _join_apart(self, group: Group, number: int) -> None:
        """Exchange arguments that do not share a history for views of primal ``number``, each with
        a history of its own."""
        whole = self.entered[number]
        # what one of them saves is stale after a write to another one, so the memory counts all
        whole._store.memory.writes = 0
        for index in group.members:
            # it may go now, and another one have its id
            del self.memories[id(self.entered[index]._store.memory)]
            if group.first(index) != index:
                self.entered[index] = self.entered[group.first(index)]
                self.values[index] = self.values[group.first(index)]
                continue
            size, stride, offset = group.place(index)
            view: Any = (
                whole.detach().narrow(0, offset, _length(size, stride)).as_strided(size, stride)
            )
            store: Store = view._store
            store.counter = [0]
            self.entered[index] = view
            if self.flags[index]:
                self.values[index] = self.tape.input(view)
                self.edges[index] = self.values[index]._edge
            else:
                self.values[index] = self._with_room_for_history(view)

    def apart(self, value: FunctionalValue) -> int | None:
        """Return the argument with a history of its own, among others of its memory, to which
        ``value`` belongs."""
        members = [index for group in self.groups if group.histories for index in group.members]
        return next(
            (index for index in members if self.entered[index]._store is value._store), None
        )

    def from_outside(self, tensor: torch.Tensor) -> Any:
        """Return the value that stands for ``tensor``, which the program closes over."""
        refuse_opaque(unwrap(tensor))
        if composed(tensor) and any(map(_is_computed, flattened(tensor))):
            return self._value_for_composed(tensor)
        if not tensor.is_inference():
            self.versions.append((tensor, tensor._version))
        with without_modes():
            plain = unwrap(tensor) if isinstance(tensor, Value) else tensor.detach()
            flag = self.recording and tensor.requires_grad
            self.outside.append(tensor)
            # sizes of parameters as symbols would make traces ten times slower
            return self._add_primal(plain, flag, fixed=True)

    def _value_for_composed(self, tensor: object) -> object:
        """Return a value for ``tensor``, which the program composes of tensors that it computes.

        The value has no history, as a leaf in eager mode.
        """
        kind = type(tensor).__name__
        # a part that the program did not compute, such as a constant, comes from outside
        parts: list[Any] = []
        for part in flattened(tensor):
            parts.append(part if _is_computed(part) else self.from_outside(part))
        if self.recording and any(part.requires_grad for part in parts):
            raise RuntimeError(
                f"the program makes a {kind} of tensors that require grad, and the derivative "
                "ends there. Make it outside of the compiled function and pass it as an argument, "
                f"make it of their detach(), or return the tensors and make it of them.{here()}"
            )
        layout = layout_of(tensor, self.trace.abstraction is not None)
        values_of_parts = list(map(self.functional_value, parts))
        assert layout is not None
        with without_modes():
            value = self.functional.wrap(layout.rebuilt(iter(list(map(self.read, parts)))))
        # a later write to a part would not be seen in the whole: their generations are compared
        memories = [v._store.memory for v in (value, *values_of_parts) if v is not None]
        self.made.append((kind, [(memory, memory.generation) for memory in memories]))
        return self._with_room_for_history(value)

    def _with_room_for_history(self, value: FunctionalValue) -> object:
        """Return ``value`` as a value of the tape, which may get a history by a write, if values of
        this run have histories at all."""
        if self.recording and value.dtype in DIFFERENTIABLE:
            return self.tape.wrap(value)
        return value

    def refuse_writes_to_parts(self) -> None:
        """Refuse a write to a tensor that the program composes of others, or to these.

        They share memory in eager mode, and not in the graph.
        """
        for kind, memories in self.made:
            if any(memory.generation != generation for memory, generation in memories):
                raise RuntimeError(
                    f"the program makes a {kind} of tensors, and then writes to it or to them. "
                    "Write to the tensors before, or to a clone."
                )

    def _add_primal(self, plain: torch.Tensor, flag: bool, fixed: bool = False) -> object:
        """Add a primal for ``plain`` after the others, with its placeholders.

        ``fixed``: its sizes are constants of the graph.
        """
        first = self._parts + 1
        layout = layout_of(plain)
        traced = [
            self.trace.input(part, f"primals_{index}", fixed)
            for index, part in enumerate(flattened(plain), first)
        ]
        [whole] = rebuilt([layout], traced)
        return self.enter(whole, flag, layout)

    def close(self) -> None:
        """End the run: its values may not be used any more."""
        self.tape.close()
        self.functional.close()
        # several tensors may share a counter: the first one that was met has the version to restore
        for tensor, version in reversed(self.versions):
            set_version_counters((tensor,), (version,))

    # what is known of a value

    def functional_value(self, v: object) -> FunctionalValue | None:
        """Return ``v`` at the functionalize level; None if it is no value of that."""
        if isinstance(v, Value) and v._level is self.tape:
            v = v._inner
        if isinstance(v, FunctionalValue) and v._level is self.functional:
            return v
        return None

    def read(self, value: Any) -> Any:
        """Return ``value`` as a traced value; anything else as it is."""
        functional_value = self.functional_value(value)
        if functional_value is None:
            return value
        return self.functional.read(functional_value)

    def edge(self, value: object) -> Any:
        """Return the history of ``value``; None for a leaf of the program itself."""
        if not isinstance(value, Value) or value._level is not self.tape:
            return None
        edge = edge_of(value)
        if edge is None or isinstance(edge[0], Leaf):
            return None
        return edge

    def is_leaf(self, value: object) -> bool:
        """Return whether the program has called ``requires_grad_()`` of ``value``."""
        # `edge_of` raises for a view whose base was written
        own: Any = getattr(value, "_edge", None)
        return own is not None and own[0].level is self.tape and type(own[0]) is Leaf

    # what the program has done to a primal

    def record(self, index: int, add: Callable[[object, Edge | None], int | None]) -> Input:
        """Return the changes that the program has made to primal ``index``.

        ``add(value, history)``: adds the new value to the results of the graph, and returns the
        number of its cotangent.
        """
        v = self.values[index]
        value = self.functional_value(v)
        if value is None or self._follows_another(index):
            return Input(self.flags[index])
        # detach_() gives the value another one inside
        replacements = self.functional.replaced
        replaced = replacements.get(id(value)) or replacements.get(id(self.entered[index]))
        if replaced is not None:
            return self._record_of_replaced(index, value, replaced)
        group = self._group(index)
        seen = self._record_of_flags(index, group)
        memory = value._store.memory
        # its base is written, not this view of it
        if group is not None and not group.histories:
            self._hooks_of(index)
            overwritten = memory.generation > 0
            return replace(seen, overwritten=overwritten, written_at=memory.written_at)
        # the views of this base are written
        if index in self.bases_apart:
            return Input(self.flags[index], overwritten=True)
        edge = self.edge(v)
        _refuse_detached(seen, edge)
        seen = replace(seen, hooks=self._hooks_of(index))
        if not memory.generation:
            # that views of it have another geometry in place counts for all of them
            own = len(seen.reshaped)
            if self.groups:  # the member that is changed counts it
                own = value._store.counter[0]
            return replace(seen, counted=value._store.counter[0] - own)
        self._refuse_write(index, seen.reshaped, memory)
        return self._record_of_write(index, value._store, seen, group, edge, add)

    def _record_of_write(
        self,
        index: int,
        store: Store,
        seen: Input,
        group: Group | None,
        edge: Edge | None,
        add: Callable[[object, Edge | None], int | None],
    ) -> Input:
        """Return ``seen``, the record of primal ``index``, with its new value.

        ``edge``: the history of that value.
        """
        # a write that autograd does not see has no cotangent
        memory = store.memory
        recorded = self._changes_history(index, edge)
        if recorded and group is not None:
            _refuse_shared_history(index, group, memory)
        return replace(
            seen,
            written=True,
            tangent=add(self.values[index], edge if recorded else None),
            counted=store.counter[0] - self._count_of_reshapes(index, store),
            written_at=memory.written_at,
        )

    def _count_of_reshapes(self, index: int, store: Store) -> int:
        """Return how often the program has changed the geometry of primal ``index`` in place, and
        of the arguments that are views of it. A call does that by ops, each of which counts.

        ``store``: that of the primal.
        """
        counted = [index]
        if self.groups:
            values = map(self.functional_value, self.values)
            shared = [
                value is not None and value._store.counter is store.counter for value in values
            ]
            counted = [index for index, is_shared in enumerate(shared) if is_shared]
        once = [position for position in counted if not self._follows_another(position)]
        return sum(len(self._changes_of_geometry(position)) for position in once)

    def _follows_another(self, index: int) -> bool:
        """Return whether primal ``index`` is the same view as an earlier one, whose record is for
        both."""
        return any(index in group.members and group.first(index) != index for group in self.groups)

    def _record_of_flags(self, index: int, group: Group | None) -> Input:
        """Record how the program has changed the geometry of primal ``index``, and whether it has
        called ``requires_grad_()`` of it."""
        value = self.values[index]
        reshaped = tuple(ViewStep(*step) for step in self._changes_of_geometry(index))
        for step in reshaped:
            if step.in_place() is None:
                raise RuntimeError(
                    f"the program changes an argument in place by {step.func}, "
                    "which the caller's tensor cannot follow"
                )
        unseen = any(reshaped_value is value for reshaped_value in self.tape.reshaped)
        begins = self.is_leaf(value)
        # the other one may be its view, and would require grad, too
        if begins and group is not None:
            raise RuntimeError(
                f"the program calls requires_grad_() on argument {index}, which shares memory with "
                "another one that may be a view of it. Do it before the call."
            )
        if begins:
            self.flags[index], self.edges[index] = True, edge_of(value)
        return Input(self.flags[index], reshaped=reshaped, reshaped_unseen=unseen, begins=begins)

    def _refuse_write(self, index: int, reshaped: Sequence[ViewStep], memory: Memory) -> None:
        """Refuse a write to primal ``index`` after which the caller's tensor cannot show what the
        program's value shows."""
        if any(step.func is _as_strided for step in reshaped):
            raise RuntimeError(
                f"the program writes to argument {index}, and calls as_strided_() of it, "
                "after which "
                "it may show other elements of its memory. Take as_strided(), which is a view."
                f"{happened_at(memory.written_at)}"
            )
        layout, new_layout = self.layouts[index], layout_of(self.read(self.values[index]))
        if key_of(layout) != key_of(new_layout):
            raise RuntimeError(
                f"the program writes a {new_layout or 'plain tensor'} to a tensor that "
                f"is a {layout or 'plain tensor'}.{happened_at(memory.written_at)}"
            )

    def _changes_history(self, index: int, edge: Any) -> bool:
        """Return whether ``edge``, the history of primal ``index`` after its writes, is a new one.

        Changes of geometry under ``no_grad`` change no history.
        """
        if edge is None:
            return False
        # nodes of geometry lie between the value and its history
        entered = self.edges[index]
        node = edge[0]
        while node in self.tape.turned:
            node = node.edges[0][0]
        return entered is None or node is not entered[0]

    def _hooks_of(self, i: int) -> tuple[Callable[[torch.Tensor], object], ...]:
        """Return the hooks that the program has registered on primal ``i``.

        They leave the tape of the trace. A call registers them on the caller's tensor, whose
        gradient is complete.
        """
        hooks, refused = registered(self.values[i]), False
        # the hooks of an argument are at the edge that it had before any write
        if self.edges[i] is not None:
            node, index = self.edges[i]
            hooks = tuple((node.tensor_hooks or {}).get(index, {}).values())
            node.tensor_hooks = None
            refused = bool(node.pre_hooks or node.post_hooks or (hooks and not self.flags[i]))
        if refused or any(map(holds_values, hooks)):
            raise RuntimeError(
                "the program registers a hook on an argument or a tensor that it closes over, "
                "and the hook holds values that the program computes, or is one of grad_fn, "
                "or the argument shares memory with another one. Register it before the call."
            )
        return hooks

    def _record_of_replaced(self, index: int, value: FunctionalValue, replaced: Replaced) -> Input:
        """Return what the program has done to primal ``index``, which has other memory by ``set_``.

        :class:`.outputs.Computed` says which.
        """
        what = (
            "the program gives an argument other memory by set_(), "
            "but the input has other mutations that we cannot carry out with that"
        )
        at = happened_at(replaced.set_at)
        if replaced.store.memory.generation != replaced.generation:
            raise RuntimeError(
                "cannot mutate tensors with frozen storage: "
                "the program gives an argument other memory by set_(), "
                "and then writes to a view of the memory that it had. Write to a copy."
                f"{at}"
            )
        if self._group(index) is not None or _has_other_changes(value, replaced):
            raise AssertionError(
                f"{what}: a write, or a change of sizes or strides. "
                f"Let the program return the new tensor instead.{at}"
            )
        if self.layouts[index] is not None or value.shape != self.shapes[index]:
            raise AssertionError(
                f"{what}: other sizes, or a tensor subclass. "
                f"Let the program return the new tensor instead.{at}"
            )
        if value is not self.entered[index] or self._has_other_history(index):
            raise AssertionError(
                f"{what}: another history. Let the program return the new tensor instead.{at}"
            )
        return Input(self.flags[index], counted=replaced.count, written_at=replaced.set_at)

    def _has_other_history(self, index: int) -> bool:
        """Return whether primal ``index`` is a leaf now, or has another history than at first."""
        value = self.values[index]
        if self.is_leaf(value):
            return True
        return self.edges[index] is not None and bool(self.edge(value) != self.edges[index])

    def _changes_of_geometry(self, index: int) -> Chain:
        """Return the view ops that the program has applied to primal ``index`` in place."""
        value = self.functional_value(self.values[index])
        if value is None:
            return ()
        group = self._group(index)
        if group is None:
            return value._chain
        # the ops that take the argument from its base: as_strided, or narrow and as_strided
        n_before = 1 if group.differentiated else 2
        return value._chain[n_before:]

    def is_joined(self, index: int) -> bool:
        """Return whether argument ``index`` shares memory with another one."""
        return any(index in group.members for group in self.groups)

    def _group(self, index: int) -> Group | None:
        """Return the group with a base of which argument ``index`` is a member."""
        return next(
            (group for group in self.groups if index in group.members and not group.identical), None
        )


def _is_computed(part: object) -> bool:
    """Return whether ``part`` is a value that the program has computed."""
    return isinstance(part, Value) and bool(part._level.number)


def _refuse_detached(seen: Input, edge: object) -> None:
    """Refuse an argument that the program has detached in place though its gradient is wanted.

    ``edge``: the history that it has now.
    """
    if seen.differentiated and edge is None and not seen.begins:
        raise RuntimeError(
            "the program detaches an argument in place. Return its detach() instead, "
            "or detach it before the call."
        )


def _has_other_changes(value: FunctionalValue, replaced: Replaced) -> bool:
    """Return whether the program has changed an argument by more than ``set_``."""
    if replaced.generation or replaced.chain:
        return True
    return value._store.counter[0] != replaced.version


def _refuse_shared_history(index: int, group: Group, memory: Memory) -> None:
    """Refuse a write that gives argument ``index`` a history, if another of ``group`` has its base.

    The other argument would need the history, too.
    """
    if not group.alone(index, group.histories):
        raise RuntimeError(
            f"the program writes to argument {index} what requires grad. It shares memory "
            "with an argument that does, and is a view of the same tensor as a third one. "
            f"Pass one tensor and take views inside.{happened_at(memory.written_at)}"
        )


def _length(size: Sequence[int], stride: Sequence[int]) -> int:
    """Count the elements of memory that a tensor spans, from its first to its last one."""
    return 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
