"""Turn the results of a graph into what a call of a compiled program returns.

:class:`CallHistory` gives them one node of the tape, :class:`CallResults` makes views, leaves and
the tree of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...session.tensor import SESSION
from ...tape.saved import refuse_inference
from ...torch_private.pytrees import pytree
from ..capture.boundary import Boundary
from .arguments import Target
from .backward_calls import Backward, CompiledBackward
from .subclass_calls import parts_of


class CallHistory:
    """Stores what the backward of a program needs of a call, and records the call.

    ``tangents``: the numbers of the results of the graph that get a history, each with the number
    of its cotangent.
    """

    __slots__ = ("backward", "boundary", "tangents")

    def __init__(self, boundary: Boundary, backward: Backward) -> None:
        self.boundary = boundary
        self.backward = backward
        # the graph returns the new values of arguments first, then the results of the program
        written = [boundary.inputs[i].tangent for i in boundary.written]
        of_results = [*written, *boundary.tangents]
        self.tangents = [(index, t) for index, t in enumerate(of_results) if t is not None]

    def reread(self, plain: Sequence[object]) -> list[Any]:
        """Return the arguments that only a second derivative needs. ``plain``: all of them."""
        return [plain[i] for i in self.backward.reread]

    def wanted(self, targets: Sequence[Target | None]) -> bool:
        """Return whether a call is recorded. ``targets``: where its gradients go, if anywhere."""
        return bool(targets or not self.boundary.differentiated)

    def versions(self, saved: Sequence[Any]) -> list[int]:
        """Return the versions of the saved tensors that a write from outside can reach."""
        exposed = self.backward.exposed
        try:
            return [saved[i]._version for i in exposed]
        except RuntimeError:
            # a tensor of inference mode has no version: raise the error that names it
            for i in exposed:
                refuse_inference(saved[i])
            raise

    def record(
        self,
        targets: Sequence[Target | None],
        outs: list[Any],
        saved: list[Any],
        versions: list[int],
        leaves: Sequence[object],
    ) -> None:
        """Give the results among ``outs`` the history of this call, in place.

        ``saved`` and ``versions``: the values that the backward needs, and their versions.
        ``leaves``: of the call.
        """
        # without symbols the shapes of results are known before the call
        backward, tangents = self.backward, self.tangents
        metas = backward.metas or tuple([(outs[i].shape, outs[i].dtype) for i, _ in tangents])
        changed = [leaves[i] for i in self.boundary.backward_written]
        node = CompiledBackward(targets, metas, backward, saved, versions, changed)
        if backward.watch is not None:
            node.watched = backward.watch.of(leaves, outs)
            node.parts = {t: parts_of(outs[i]) for i, t in tangents}
        for i, t in tangents:
            outs[i] = SESSION.wrap(outs[i], (node, t))


class CallResults:
    """Build what one program returns: ``boundary.outputs``, as a tree of the structure ``spec``.

    ``n_forward``: how many results of the graph come before what it saves.
    """

    __slots__ = ("_is_one_leaf", "_others", "_results", "boundary", "n_forward", "spec")

    def __init__(self, boundary: Boundary, spec: pytree.TreeSpec) -> None:
        self.boundary = boundary
        self.n_forward = boundary.n_forward
        self.spec = spec
        self._is_one_leaf = spec.is_leaf()
        # most outputs are results of the graph as they stand: the number of each
        outputs = list(enumerate(boundary.outputs))
        self._results = [(i, output.number) for i, output in outputs if output.is_result]
        self._others = [(i, output) for i, output in outputs if not output.is_result]

    def without_inference(self, results: Sequence[Any]) -> Sequence[torch.Tensor | float | None]:
        """Return the results of the graph, none of which is wrongly a tensor of inference mode.

        The graph runs in inference mode. So the results that the program computes outside of it are
        copied outside.
        """
        if not self.boundary.ordinary:
            return results
        copies = list(results)
        with torch.inference_mode(False), torch.no_grad():
            for i in self.boundary.ordinary:
                copies[i] = copies[i].clone()
        return copies

    def leaves(self, arguments: Sequence[object], made: list[Any]) -> list[Any]:
        """Return the leaves of what the program returns.

        ``arguments``: of the call, after all writes. ``made``: the results of the graph, with their
        history.
        """
        boundary = self.boundary
        # before any view is taken of these results
        if boundary.begun or boundary.placed:
            boundary.finish(arguments, made)
        returned: list[Any] = [None] * len(boundary.outputs)
        for i, number in self._results:
            returned[i] = made[number]
        for i, output in self._others:
            returned[i] = output.returned(arguments, made)
        # one object may be returned at several places
        for again, first in boundary.repeated:
            returned[again] = returned[first]
        for again, first in boundary.released:
            if not returned[first].requires_grad:
                returned[again] = returned[first]
        return returned

    def assembled(self, leaves: list[Any]) -> object:
        """Return the result with these leaves."""
        return leaves[0] if self._is_one_leaf else pytree.tree_unflatten(leaves, self.spec)
