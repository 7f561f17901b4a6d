"""Decide which results of a program its graph computes, and build the others of arguments and of
computed results.

    def f(x):
        y = x * 2
        return x[0], y[0], y[1]     # a view of x; the graph computes y, and two views of it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ...functionalize.functional_value import FunctionalValue
from ...seam.graph_walks import walk
from ...tape.nodes import Node, nodes_after, nodes_at
from ...tape.values import GradValue
from ...torch_private.pytrees import pytree
from ...trace.provenance import made_at
from ...trace.symbols import SYMBOLIC
from ..python_state.closed_over import computed_at, holds_values
from .boundary import Alias, Made, Output, Size, ViewStep, geometry
from .primals import Primals


class Computed:
    """Collect the results of a program that the graph computes: all but arguments and their views.

    Several views of one intermediate are views of one computed base.
    """

    def __init__(self, primals: Primals, whole: bool, outs: Sequence[object]) -> None:
        self.primals = primals
        self.whole = whole
        # the results of the graph, as the program saw them
        self.values: list[object] = []
        # the numbers of bases of which the program has called ``requires_grad_()``
        self.begun: set[int] = set()
        # by the number of a result, the memory in which it lies and whose history it lacks
        self.placed: dict[int, Alias] = {}
        self._numbers: dict[int, int] = {}  # by id of a value
        # the first place of each primal, by its id
        numbered = reversed(list(enumerate(primals.values)))
        self._places = {id(value): index for index, value in numbered}
        self._sharing: dict[int, list[object]] = {}  # results by id of their memory
        for output in outs:
            value = primals.functional_value(output)
            if value is None or id(value._store.memory) in primals.memories:
                continue
            if id(output) not in self._places:
                shared = self._sharing.setdefault(id(value._store.memory), [])
                if not _is_among(output, shared):
                    shared.append(output)

    def memory_of(self, i: int) -> Output | None:
        """Return the output whose memory primal ``i`` has since ``set_``; None without ``set_``."""
        primals = self.primals
        value = primals.functional_value(primals.values[i])
        if value is None:
            return None
        replaced = primals.functional.replaced.get(id(value))
        if replaced is None:
            return None
        memory = value._store.memory
        j = primals.memories.get(id(memory), -1)
        # memory that the program made: the graph returns it as a further result
        if j < 0:
            if id(memory) in self._sharing:
                raise AssertionError(
                    "the program gives an argument the memory of a result by set_(). "
                    "Return the argument instead of it."
                )
            return Output(Made.RESULT, self._number(value))
        # its own memory, which set_ shows from another place
        if memory is replaced.store.memory:
            return Output(Made.INPUT, j, self._steps_from_whole(value), False)
        source = primals.functional_value(primals.values[j])
        if source is None or id(source) in primals.functional.replaced or primals.is_joined(j):
            raise AssertionError(
                "the program gives an argument by set_() the memory of another one that changes "
                "its own. Return both instead."
            )
        return Output(Made.INPUT, j, self._steps(value, primals.values[j]), False)

    def _steps_from_whole(self, value: FunctionalValue) -> tuple[ViewStep, ...]:
        """Return the views that lead from the whole memory of ``value`` to ``value``."""
        whole = self.primals.functional.present(value._store)
        if geometry(whole) == geometry(value):
            return ()
        return tuple(ViewStep(*step) for step in value._chain)

    def output(self, result: object) -> Output:
        """Return the record of a result of the program."""
        value = self.primals.functional_value(result)
        if value is not None and value.released_from is not None:
            return dataclasses.replace(self.output(value.released_from), released=True)
        output = self._output(result)
        if self.primals.is_leaf(result):
            return dataclasses.replace(output, leaf=True)
        return output

    def _output(self, output: object) -> Output:
        """Return the record of ``output`` without what a Function or a leaf adds to it."""
        if self.whole or isinstance(output, SYMBOLIC):
            return Output(Made.RESULT, self._number(output))
        if not isinstance(output, torch.Tensor):
            return _constant(output)
        index = self._place_among_primals(output)
        if index is not None:
            return Output(Made.INPUT, index)
        value = self.primals.functional_value(output)
        if value is None:
            return Output(Made.RESULT, self._number(output))
        return self._output_of_value(output, value)

    def _place_among_primals(self, output: torch.Tensor) -> int | None:
        """Return the number of the primal that ``output`` is, or None."""
        places = [self._places.get(id(output))]
        # an op that returns its argument gives a value of the tape
        if isinstance(output, GradValue):
            places.append(self._places.get(id(output._inner)))
        return min((place for place in places if place is not None), default=None)

    def _output_of_value(self, output: object, value: FunctionalValue) -> Output:
        """Return ``output`` as a view of an argument or of a result in the same memory, if any.

        ``value``: ``output`` at the functionalize level.
        """
        primals = self.primals
        recorded = primals.edge(output) is not None
        memory = id(value._store.memory)
        # a primal in the same memory
        number = primals.apart(value)
        if number is None:
            number = primals.memories.get(memory, -1)
        if number >= 0:
            primal = primals.values[number]
            steps = self._steps(value, primal)
            if self._is_view(output, primal, steps):
                return self._view_of(Made.INPUT, number, steps, recorded)
            return self._output_in_memory(output, Made.INPUT, number, primal)
        # other results in the same memory, or a base that the program does not return
        shared = self._sharing[memory]
        if len(shared) > 1 or (isinstance(output, GradValue) and output._follows_base()):
            return self._output_of_base(output, value, shared, recorded)
        return Output(Made.RESULT, self._number(output))

    def _output_of_base(
        self, output: object, value: FunctionalValue, results: Sequence[object], recorded: bool
    ) -> Output:
        """Return ``output`` as a view of the base of ``results``.

        All of ``results`` lie in one memory of the graph. ``value``: ``output`` at the
        functionalize level. ``recorded``: it has a history.
        """
        base = self._base(results)
        if output is base or base is None:
            return Output(Made.RESULT, self._number(output))
        steps = self._steps(value, base)
        # for autograd it is a view, shares the memory alone, or is computed by itself
        if self._is_view(output, base, steps):
            if self.primals.is_leaf(base):
                self.begun.add(self._number(base))
            return self._view_of(Made.RESULT, self._number(base), steps, recorded)
        if recorded:
            return self._output_in_memory(output, Made.RESULT, self._number(base), base)
        return Output(Made.RESULT, self._number(output))

    def _output_in_memory(self, output: object, made: Made, number: int, whole: object) -> Output:
        """Return a result in the memory of ``whole``, with a history of its own.

        ``whole`` is argument or result ``number``. The ``detach()`` of an argument has a history of
        its own after a write, and so does a view that a user's Function returns.
        """
        view = getattr(output, "_view", None)
        base = output if view is None or self._has_own_history(output) else view.base
        value, own = self.primals.functional_value(output), self.primals.functional_value(base)
        # without a store in common there is no view to rebuild
        if value is None or own is None or own._store.memory is not value._store.memory:
            return Output(Made.RESULT, self._number(output))
        # the graph computes the base, and the call puts it into the memory of ``whole``
        place = self._view_of(made, number, self._steps(own, whole), False)
        alias = Alias(self._number(base), place, self._creation(base))
        self.placed.setdefault(alias.number, alias)
        if self.primals.is_leaf(base) and output is not base:
            self.begun.add(self._number(base))
        if output is base:
            return Output(Made.RESULT, self._number(output))
        # the caller gets a view of the base, so that autograd knows the base, too
        return self._view_of(Made.RESULT, self._number(base), self._steps(value, base), True)

    def _view_of(
        self, made: Made, number: int, steps: Sequence[ViewStep], recorded: bool
    ) -> Output:
        """Return a view. Numbers of its steps that depend on sizes become results of the graph."""

        def bound(step: ViewStep) -> ViewStep:
            """Return ``step`` with a number of a result in place of each symbol."""
            return dataclasses.replace(
                step,
                rest=pytree.tree_map_only(
                    SYMBOLIC, lambda size: Size(self._number(size)), step.rest
                ),
            )

        n_before = len(self.values)
        bound_steps = tuple(map(bound, steps))
        return Output(made, number, bound_steps, recorded, sized=len(self.values) > n_before)

    def _steps(self, value: FunctionalValue, base: object) -> tuple[ViewStep, ...]:
        """Return the view ops that lead from ``base``, which has this memory, to ``value``."""
        base_value = self.primals.functional_value(base)
        assert base_value is not None
        replaced = self.primals.functional.replaced.get(id(base_value))
        store, chain = base_value._store, base_value._chain
        if replaced is not None:
            store, chain = replaced.store, replaced.chain
        # the chain of the base has the ops that have changed its geometry in place; the view has
        # the same ones at first, if it is younger than these
        own = len(chain)
        differs = any(step is not other for step, other in zip(value._chain, chain, strict=False))
        if differs or len(value._chain) < own:
            inner: Any = value._inner
            raise RuntimeError(
                "the program returns a view of an argument that is older "
                "than a change of the argument's sizes or strides in place. "
                f"Return a copy, or take the view after the change.{made_at(inner._node)}"
            )
        steps: list[ViewStep] = []
        # detach() starts another store in the same memory
        if value._store is not store:
            steps.append(ViewStep(torch.ops.aten.detach.default, (), {}, None))
        unrecorded = self.primals.tape.unrecorded
        for step in value._chain[own:]:
            steps.append(ViewStep(*step, recorded=id(step) not in unrecorded))
        return tuple(steps)

    def _number(self, value: object) -> int:
        """Return the number of result ``value``. A tensor that is returned twice is one result."""
        if isinstance(value, torch.Tensor) and not self.whole and id(value) in self._numbers:
            return self._numbers[id(value)]
        number = self._numbers[id(value)] = len(self.values)
        self.values.append(value)
        return number

    def _is_view(self, output: object, base: object, steps: Sequence[ViewStep]) -> bool:
        """Return whether the view ops ``steps`` of ``base`` are the whole history of ``output``.

        They are not if a user's Function returns it, or if a view on the way has a hook.
        """
        if self.primals.edge(output) is None:
            return True
        view = getattr(output, "_view", None)
        return view is not None and view.base is base and not self._has_own_history(output)

    def _has_own_history(self, output: object) -> bool:
        """Return whether ``output``, a view, has a history that its view ops do not tell."""
        return self._creation(output) in ("function", "hook")

    def _creation(self, output: object) -> str:
        """Return how ``output`` was created, if it is a view: ``"function"``, ``"hook"`` if it or
        a view on the way has one, or an empty text."""
        view: Any = getattr(output, "_view", None)
        if view is None:
            return ""
        if view.creation == "function":
            return "function"
        before = set(nodes_at([self.primals.edge(view.base)]))

        def nodes_of_views(node: Node) -> list[Node]:
            return [one for one in nodes_after(node) if one not in before]

        starts = set(nodes_at([self.primals.edge(output)])) - before
        if any(node.tensor_hooks for node in walk(starts, nodes_of_views)):
            return "hook"
        return ""

    def _base(self, shared: Sequence[object]) -> Any:
        """Return the value whose views are all of ``shared``, if there is one."""
        for result in shared:
            view = getattr(result, "_view", None)
            base = result
            if view is not None:
                base = view.base
            value = self.primals.functional_value(base)
            # without a chain of views it is all of its memory
            if value is not None and not value._chain:
                return base
        return None


def _is_among(output: object, values: Sequence[object]) -> bool:
    """Return whether ``output`` itself is one of ``values``."""
    # not by `in`, as their `==` may be code of the user
    return any(output is value for value in values)


def _constant(output: object) -> Output:
    """Return the record of ``output``, which is no tensor: each call returns the same object.

    Refuse an object that holds tensors of the program.
    """
    if holds_values(output):
        raise RuntimeError(
            f"the program returns a {type(output).__name__} that holds tensors which it has "
            "computed. Return the tensors in a tuple, a dictionary or a data class, "
            "or register the class with torch.utils._pytree.register_pytree_node."
            f"{computed_at(output)}"
        )
    return Output(Made.CONSTANT, constant=output)


def repeated(outs: Sequence[object]) -> tuple[tuple[int, int], ...]:
    """List the tensors that come again in ``outs``: the number of each, and of its first place."""
    first: dict[int, int] = {}
    firsts = [
        (index, first.setdefault(id(output), index))
        for index, output in enumerate(outs)
        if isinstance(output, torch.Tensor)
    ]
    return tuple((index, earlier) for index, earlier in firsts if index != earlier)


def released(outs: Sequence[FunctionalValue | None]) -> tuple[tuple[int, int], ...]:
    """List the tensors that a Function has returned in place of others in ``outs``.

    Each is the number of the tensor, and the number of the other one.
    """
    numbers = {id(output): index for index, output in enumerate(outs) if output is not None}
    sources = [
        (index, numbers.get(id(output.released_from)))
        for index, output in enumerate(outs)
        if output is not None
    ]
    return tuple((index, other) for index, other in sources if other is not None)


def leaf_of(spec: pytree.TreeSpec, number: int) -> int:
    """Return the number of the first leaf of item ``number``."""
    if spec.is_leaf():
        return 0
    children = spec.children()
    return sum(child.num_leaves for child in children[: number % len(children)])
