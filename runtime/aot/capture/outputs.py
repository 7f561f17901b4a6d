"""Which results of a program its graph computes, and how the others are made of arguments and of
computed results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ...functionalize.functional_value import FunctionalValue
from ...tape.values import GradValue
from ...torch_private.pytrees import pytree
from ...trace.provenance import made_at
from ...trace.symbols import SYMBOLIC
from ..python_state.closed_over import computed_at, holds_values
from .boundary import Made, Output, Size, ViewStep, geometry
from .primals import Primals


class Computed:
    """Which results of a program the graph computes: all but arguments and views of arguments.
    Several views of one intermediate are views of one computed base. ``values``: those results, as
    the program saw them. ``begun``: the numbers of bases that the program has called
    ``requires_grad_()`` of. ``placed``: by the number of a result, the memory that it lies in and
    whose history it does not have."""

    def __init__(self, primals: Primals, whole: bool, outs: Sequence[object]) -> None:
        self.primals = primals
        self.whole = whole
        self.values: list[Any] = []
        self.begun: set[int] = set()
        self.placed: dict[int, Output] = {}
        self._numbers: dict[int, int] = {}  # by id of a value
        self._sharing: dict[int, list[Any]] = {}  # results by id of their memory
        for output in outs:
            found = primals.functional_value(output)
            if found is None or id(found._store.memory) in primals.memories:
                continue
            if not _is_among(output, primals.values):
                shared = self._sharing.setdefault(id(found._store.memory), [])
                if not _is_among(output, shared):
                    shared.append(output)

    def memory_of(self, i: int) -> Output | None:
        """Return how the tensor is made whose memory primal ``i`` was given by ``set_``, if it
        was."""
        primals = self.primals
        found = primals.functional_value(primals.values[i])
        if found is None:
            return None
        replaced = primals.functional.replaced.get(id(found))
        if replaced is None:
            return None
        memory = found._store.memory
        j = primals.memories.get(id(memory), -1)
        if j < 0:
            if id(memory) in self._sharing:
                raise AssertionError(
                    "the program gives an argument the memory of a result by set_(). "
                    "Return the argument instead of it."
                )
            return Output(Made.RESULT, self._number(found))
        if memory is replaced.store.memory:
            return Output(Made.INPUT, j, self._steps_from_whole(found), False)
        source = primals.functional_value(primals.values[j])
        if source is None or id(source) in primals.functional.replaced or primals.is_joined(j):
            raise AssertionError(
                "the program gives an argument by set_() the memory of another one that changes "
                "its own. Return both instead."
            )
        return Output(Made.INPUT, j, self._steps(found, primals.values[j]), False)

    def _steps_from_whole(self, value: FunctionalValue) -> tuple[ViewStep, ...]:
        """Return the views by which ``value`` is taken of its whole memory; none if it is that."""
        whole = self.primals.functional.present(value._store)
        if geometry(whole) == geometry(value):
            return ()
        return tuple(ViewStep(*step) for step in value._chain)

    def output(self, o: object) -> Output:
        found = self.primals.functional_value(o)
        if found is not None and found.released_from is not None:
            return dataclasses.replace(self.output(found.released_from), released=True)
        output = self._output(o)
        if self.primals.is_leaf(o):
            return dataclasses.replace(output, leaf=True)
        return output

    def _output(self, output: object) -> Output:
        if self.whole or isinstance(output, SYMBOLIC):
            return Output(Made.RESULT, self._number(output))
        if not isinstance(output, torch.Tensor):
            return _constant(output)
        for index, v in enumerate(self.primals.values):
            # an op that returns its argument gives a value of the tape
            if output is v or (isinstance(output, GradValue) and output._inner is v):
                return Output(Made.INPUT, index)
        found = self.primals.functional_value(output)
        if found is None:
            return Output(Made.RESULT, self._number(output))
        return self._output_of_value(output, found)

    def _output_of_value(self, output: object, found: FunctionalValue) -> Output:
        """Make ``output`` of an argument or of a result in the same memory, if there is one.
        ``found``: ``output`` at the functionalize level."""
        primals = self.primals
        recorded = primals.edge(output) is not None
        memory = id(found._store.memory)
        i = primals.apart(found)
        if i is None:
            i = primals.memories.get(memory, -1)
        if i >= 0:
            steps = self._steps(found, primals.values[i])
            if self._is_view(output, primals.values[i], steps):
                return self._viewed(Made.INPUT, i, steps, recorded)
            return self._placed(output, Made.INPUT, i, primals.values[i])
        shared = self._sharing[memory]
        if len(shared) > 1 or (isinstance(output, GradValue) and output._follows_base()):
            return self._shared(output, found, shared, recorded)
        return Output(Made.RESULT, self._number(output))

    def _shared(
        self, output: object, found: FunctionalValue, results: Sequence[object], recorded: bool
    ) -> Output:
        """Make ``output`` of the base of ``results``, which all lie in one memory that the graph
        makes. ``found``: ``output`` at the functionalize level. ``recorded``: it has a history."""
        base = self._base(results)
        if output is base or base is None:
            return Output(Made.RESULT, self._number(output))
        steps = self._steps(found, base)
        if self._is_view(output, base, steps):
            if self.primals.is_leaf(base):
                self.begun.add(self._number(base))
            return self._viewed(Made.RESULT, self._number(base), steps, recorded)
        if recorded:
            return self._placed(output, Made.RESULT, self._number(base), base)
        return Output(Made.RESULT, self._number(output))

    def _placed(self, output: object, made: Made, number: int, whole: object) -> Output:
        """Return a result in the memory of ``whole``, which is argument or result ``number``, with
        a history of its own. The ``detach()`` of an argument has one after a write, and a view that
        a user's Function has made."""
        view = getattr(output, "_view", None)
        base = output if view is None or view.creation == "function" else view.base
        found, own = self.primals.functional_value(output), self.primals.functional_value(base)
        if found is None or own is None or own._store.memory is not found._store.memory:
            return Output(Made.RESULT, self._number(output))
        place = self._viewed(made, number, self._steps(own, whole), False)
        self.placed.setdefault(self._number(base), place)
        if self.primals.is_leaf(base) and output is not base:
            self.begun.add(self._number(base))
        if output is base:
            return Output(Made.RESULT, self._number(output))
        return self._viewed(Made.RESULT, self._number(base), self._steps(found, base), True)

    def _viewed(self, made: Made, number: int, steps: Sequence[ViewStep], recorded: bool) -> Output:
        """Return a view. The graph gives the numbers of its steps that depend on sizes."""

        def bound(step: ViewStep) -> ViewStep:
            return dataclasses.replace(
                step,
                rest=pytree.tree_map_only(
                    SYMBOLIC, lambda size: Size(self._number(size)), step.rest
                ),
            )

        known = len(self.values)
        found = tuple(map(bound, steps))
        return Output(made, number, found, recorded, sized=len(self.values) > known)

    def _steps(self, value: FunctionalValue, base: object) -> tuple[ViewStep, ...]:
        """Return the view ops that lead from ``base``, which has this memory, to ``value``."""
        found = self.primals.functional_value(base)
        assert found is not None
        replaced = self.primals.functional.replaced.get(id(found))
        store, chain = found._store, found._chain
        if replaced is not None:
            store, chain = replaced.store, replaced.chain
        own = len(chain)  # what has changed the geometry of the base in place
        if (
            any(a is not b for a, b in zip(value._chain, chain, strict=False))
            or len(value._chain) < own
        ):
            made: Any = value._inner
            raise RuntimeError(
                "the program returns a view of an argument that is older "
                "than a change of the argument's sizes or strides in place. "
                f"Return a copy, or take the view after the change.{made_at(made._node)}"
            )
        steps: list[ViewStep] = []
        if value._store is not store:
            steps.append(ViewStep(torch.ops.aten.detach.default, (), {}, None))
        unrecorded = self.primals.tape.unrecorded
        for step in value._chain[own:]:
            steps.append(ViewStep(*step, recorded=id(step) not in unrecorded))
        return tuple(steps)

    def _number(self, value: object) -> int:
        """Return the number of result ``value``. A tensor is one result however often it is
        returned."""
        if isinstance(value, torch.Tensor) and not self.whole and id(value) in self._numbers:
            return self._numbers[id(value)]
        number = self._numbers[id(value)] = len(self.values)
        self.values.append(value)
        return number

    def _is_view(self, output: object, base: object, steps: Sequence[ViewStep]) -> bool:
        """Return whether the view ops ``steps`` of ``base`` are all the history that ``output``
        has. It may come from a user's Function as well."""
        if self.primals.edge(output) is None:
            return True
        view = getattr(output, "_view", None)
        return view is not None and view.base is base and view.creation != "function"

    def _base(self, shared: Sequence[object]) -> Any:
        """Return the value whose views are all of ``shared``, if there is one."""
        for o in shared:
            view = getattr(o, "_view", None)
            base = o if view is None else view.base
            found = self.primals.functional_value(base)
            if found is not None and not found._chain:
                return base
        return None


def _is_among(output: object, values: Sequence[object]) -> bool:
    """Return whether ``output`` itself is one of ``values``, whose ``==`` may be code of the
    user's."""
    return any(output is v for v in values)


def _constant(output: object) -> Output:
    """Return the output for ``output``, which is no tensor: each call returns the same object.
    Refuse one that holds tensors of the program."""
    if holds_values(output):
        raise RuntimeError(
            f"the program returns a {type(output).__name__} that holds tensors which it has "
            "computed. Return the tensors in a tuple, a dictionary or a data class, "
            "or register the class with torch.utils._pytree.register_pytree_node."
            f"{computed_at(output)}"
        )
    return Output(Made.CONSTANT, constant=output)


def repeated(outs: Sequence[object]) -> tuple[tuple[int, int], ...]:
    """Return the numbers of tensors that stand in ``outs`` before, each with that of the first
    time."""
    first: dict[int, int] = {}
    found = [
        (i, first.setdefault(id(output), i))
        for i, output in enumerate(outs)
        if isinstance(output, torch.Tensor)
    ]
    return tuple((i, j) for i, j in found if i != j)


def released(outs: Sequence[FunctionalValue | None]) -> tuple[tuple[int, int], ...]:
    """Return the numbers of tensors that a Function has returned in place of others in ``outs``,
    each with the number of that one."""
    numbers = {id(output): i for i, output in enumerate(outs) if output is not None}
    found = [(i, numbers.get(id(o.released_from))) for i, o in enumerate(outs) if o is not None]
    return tuple((i, j) for i, j in found if j is not None)


def leaf_of(spec: pytree.TreeSpec, number: int) -> int:
    """Return the number of the first leaf of item ``number``."""
    if spec.is_leaf():
        return 0
    children = spec.children()
    return sum(child.num_leaves for child in children[: number % len(children)])
