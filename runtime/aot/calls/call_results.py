"""Turn the results of a graph into what a call of a compiled program returns.

    the graph returns     new values of arguments, results, tensors that its backward graph needs
    CallHistory.record    gives these results one node of the tape
    CallResults.leaves    takes views of them, and puts them where the program returns them
    CallResults.rebuild   makes the tuple or dictionary that the program returns

A *leaf* is a value in a nested structure, such as each tensor of a dictionary of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...session.tensor import SESSION
from ...tape.saved import refuse_inference
from ...torch_private.pytrees import pytree
from ..capture.boundary import Boundary
from .arguments import Target
from .backward_calls import CompiledBackward
from .backward_graph import Backward
from .subclass_calls import parts_of


class CallHistory:
    """Stores what the backward of a program needs of a call, and records the call."""

    __slots__ = ("backward", "boundary", "tangents")

    def __init__(self, boundary: Boundary, backward: Backward) -> None:
        self.boundary = boundary
        self.backward = backward
        # the graph returns the new values of arguments first, then the results of the program
        written = [boundary.inputs[position].tangent for position in boundary.written]
        numbers = [*written, *boundary.tangents]
        # the results that get a history, each with the number of its cotangent
        self.tangents = [
            (index, number) for index, number in enumerate(numbers) if number is not None
        ]

    def arguments_for_pullback(self, plain: Sequence[object]) -> list[Any]:
        """Return the arguments that only a second derivative needs. ``plain``: all of them."""
        return [plain[index] for index in self.backward.reread]

    def must_record(self, targets: Sequence[Target | None]) -> bool:
        """Return whether a call is recorded. ``targets``: where its gradients go, if anywhere.

        A program without arguments to differentiate by is recorded in any case: its gradients go
        to tensors that it closes over.
        """
        return bool(targets or not self.boundary.differentiated)

    def read_versions(self, saved: Sequence[Any]) -> list[int]:
        """Return the versions of the saved tensors that a write from outside can reach."""
        exposed = self.backward.exposed
        try:
            return [saved[index]._version for index in exposed]
        except RuntimeError:
            # a tensor of inference mode has no version: raise the error that names it
            for index in exposed:
                refuse_inference(saved[index])
            raise

    def record(
        self,
        targets: Sequence[Target | None],
        outs: list[Any],
        saved: list[Any],
        versions: list[int],
        leaves: Sequence[object],
    ) -> CompiledBackward:
        """Give the results among ``outs`` the history of this call, in place. Return its node.

        ``saved`` and ``versions``: the values that the backward needs, and their versions.
        ``leaves``: of the call.
        """
        backward, tangents = self.backward, self.tangents
        # shape and dtype of each cotangent; a program without symbols knows them before the call
        metas = backward.metas or tuple(
            [(outs[index].shape, outs[index].dtype) for index, _ in tangents]
        )
        changed = [leaves[index] for index in self.boundary.backward_written]
        node = CompiledBackward(targets, metas, backward, saved, versions, changed)
        if backward.watch is not None:
            node.watched = backward.watch.of(leaves, outs)
            node.parts = {number: parts_of(outs[index]) for index, number in tangents}
        for index, number in tangents:
            outs[index] = SESSION.wrap(outs[index], (node, number))
        return node


class CallResults:
    """Build what one program returns: ``boundary.outputs``, in the structure ``spec``."""

    __slots__ = ("_is_one_leaf", "_others", "_results", "boundary", "n_forward", "spec")

    def __init__(self, boundary: Boundary, spec: pytree.TreeSpec) -> None:
        self.boundary = boundary
        self.n_forward = boundary.n_forward  # results of the graph before those that it saves
        self.spec = spec
        self._is_one_leaf = spec.is_leaf()
        # most outputs are results of the graph as they stand: the number of each
        outputs = list(enumerate(boundary.outputs))
        self._results = [(index, output.number) for index, output in outputs if output.is_result]
        self._others = [(index, output) for index, output in outputs if not output.is_result]

    def in_their_modes(self, results: Sequence[Any]) -> Sequence[torch.Tensor | float | None]:
        """Return the results of the graph as inference tensors where those of the program are.

        Example: ``with torch.inference_mode(): y = x * 2``. The whole graph runs in the mode of the
        caller. So the results that the program computes in the other mode are copied there.
        """
        if not self.boundary.other_mode:
            return results
        copies = list(results)
        with torch.inference_mode(not torch.is_inference_mode_enabled()), torch.no_grad():
            for index in self.boundary.other_mode:
                copies[index] = _copy(copies[index])
        return copies

    def leaves(self, arguments: Sequence[object], results: list[Any]) -> list[Any]:
        """Return the leaves of what the program returns.

        ``arguments``: of the call, after all writes. ``results``: those of the graph, with their
        history.
        """
        boundary = self.boundary
        # before any view is taken of these results: a view has the history of its base
        if boundary.begun or boundary.placed:
            boundary.finish(arguments, results)
        returned: list[Any] = [None] * len(boundary.outputs)
        for index, number in self._results:
            returned[index] = results[number]
        for index, output in self._others:
            returned[index] = output.returned(arguments, results)
        # one object may be returned at several places
        for again, first in boundary.repeated:
            returned[again] = returned[first]
        # a Function wrote to these without grad mode. The first object stands for them unless the
        # history of this call has reached it
        for again, first in boundary.released:
            if not returned[first].requires_grad:
                returned[again] = returned[first]
        return returned

    def rebuild(self, leaves: Sequence[object]) -> object:
        """Return the tuple, dictionary or single value that has these leaves."""
        return leaves[0] if self._is_one_leaf else pytree.tree_unflatten(leaves, self.spec)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``tensor`` with its strides, also those of an expanded dimension."""
    copy = tensor.clone()
    if tensor.layout is not torch.strided or copy.stride() == tensor.stride():
        return copy
    storage = tensor.untyped_storage().clone()
    geometry = (tensor.storage_offset(), tensor.size(), tensor.stride())
    return copy.set_(storage, *geometry)


class LateEffects:
    """What a program returns if its caller has more to assign, after the call is recorded.
    ``recorded``: the node of the call, which then looks at Python's state once more."""

    recorded: CompiledBackward | None = None
