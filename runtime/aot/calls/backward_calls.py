"""Run the backward graph of a compiled program as a node of the tape.

``backward_graph.py`` has the graph. The node has what one call saves for it, checks that nobody has
written to that since, and fills in the cotangents that a pass lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ...seam import factories
from ...session.leaf import follow_hooks
from ...session.tensor import SESSION, Tensor
from ...tape.nodes import Edge, Node, nodes_at
from ...tape.running import RUNNING
from ...tape.saved import FREED, HOOKS, Pack, Packed, Unpack, modified, pack, restore
from ...tape.values import accumulator_of, edge_of
from ...torch_private.global_settings import is_autocast_enabled, without_autocast
from ...torch_private.mode_stacks import unseen_by_handlers
from ..capture.global_state import mode_of_caller
from .arguments import Target
from .backward_graph import Backward, Meta
from .subclass_calls import Part, zeros_of


class CompiledBackward(Node):
    """Record one call of a compiled program on the tape.

    Leaves get their ``AccumulateGrad`` nodes when somebody asks for ``edges``. A backward pass that
    starts here and has no hooks does not ask.
    """

    __slots__ = (
        "backward",
        "found",
        "known_edges",
        "parts",
        "reads",
        "saved",
        "targets",
        "versions",
        "watched",
        "written",
    )
    known_edges: tuple[Edge | None, ...] | None
    several = True

    def __init__(
        self,
        targets: Sequence[Target | None],
        metas: Sequence[Meta],
        backward: Backward,
        saved: list[torch.Tensor | float],
        versions: list[int],
        written: Sequence[Any],
    ) -> None:
        # per gradient where it goes, an edge or a leaf, or None if it is not wanted
        self.targets = targets
        Node.__init__(self, SESSION, None, metas)  # type: ignore[arg-type]
        self.backward = backward
        self.saved: list[Any] | None = saved
        # of the values that the caller can write to; None if hooks have packed what is saved
        self.versions: list[int] | None = versions
        # the arguments that the backward writes to
        self.written = written
        # by number of the result, its parts, if one is no plain tensor
        self.parts: dict[int, list[Part]] = {}
        # tensors that consist of saved values, with their versions
        self.watched: list[tuple[torch.Tensor, int]] = []
        # what the backward reads of Python's state, and what was there at the call
        self.reads = backward.reads
        self.look()
        if hooks := HOOKS.innermost():
            self._pack(hooks)

    def look(self) -> None:
        """Note what the backward reads of Python's state, now that the call has assigned to it."""
        self.found = [reads.look() for reads in self.reads]

    @property
    def edges(self) -> tuple[Edge | None, ...]:
        """Return the edges to the next nodes. Leaves get their nodes now."""
        if self.known_edges is None:
            # the node of a leaf takes over the hooks that the leaf has when the node is made
            for target in self.targets:
                if isinstance(target, Tensor):
                    follow_hooks(target)
            edges: list[Edge | None] = []
            for target in self.targets:
                if target is None or type(target) is tuple:
                    edges.append(target)
                else:
                    edges.append((accumulator_of(target), 0))
            self.known_edges = tuple(edges)
        return self.known_edges

    @edges.setter
    def edges(self, edges: tuple[Edge | None, ...] | None) -> None:
        """Set the edges; None lets them be computed."""
        self.known_edges = edges

    def leaves(self) -> Sequence[Tensor] | None:
        """Return the leaves that all gradients go to; None if a backward pass needs ``edges``.

        It needs them for hooks, for retained gradients, and for a target that is no plain leaf.
        """
        if (
            self.known_edges is not None
            or self.pre_hooks
            or self.tensor_hooks
            or self.post_hooks
            or self.retained
        ):
            return None
        leaves: list[Tensor] = []
        for target in self.targets:
            # an edge, or no gradient at all
            if not isinstance(target, Tensor):
                return None
            follow_hooks(target)
            if (
                target._edge is not None
                or not target._req
                or target._hooks
                or target._post_accumulate
            ):
                # no leaf, or not as in the forward, or a hook sees its gradient arrive
                return None
            # an earlier graph may have made a node for the leaf, and somebody may watch that
            node = target._accumulator() if target._accumulator is not None else None
            if node is not None and not node.unwatched():
                return None
            leaves.append(target)
        return leaves

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients for the cotangents ``grads``, some of which may be None."""
        mode = mode_of_caller()
        if mode is not None:
            self._require_unseen(mode)
        saved, backward = self._check_saved(create_graph), self.backward
        # which cotangents are there, as bits; None if all are
        present = None
        for grad in grads:
            if grad is None:  # `None in grads` would compare tensors
                present = sum(
                    1 << index for index, gradient in enumerate(grads) if gradient is not None
                )
                break
        if create_graph:
            return self._mask_unreached(self._apply_pullback(saved, grads, present), present)
        n_saved = backward.n_saved
        values = [*saved[:n_saved], *grads]
        task = RUNNING.task
        if task is not None and not task.keep_graph:
            del saved
            # so that the graph can free each tensor after its last use
            self.saved = None
            self.watched = []
        for index, grad in enumerate(grads, n_saved):
            if grad is None:
                values[index] = self._zeros(index - n_saved)
            else:
                values[index] = _as_traced(grad)
        # the graph has the casts of autocast already
        if mode is None and not is_autocast_enabled():
            results = backward.run(values, present)
        else:
            with without_autocast(), _unseen():
                results = backward.run(values, present)
        # what the backward pass writes to arguments comes after the gradients
        if self.written:
            self._write(results[-len(self.written) :])
            results = results[: -len(self.written)]
        return self._mask_unreached(results, present)

    def _require_unseen(self, mode: object) -> None:
        """Refuse a pass in which ``mode`` would see code of the user's, which the graph has
        without the mode."""
        if self.reads:
            raise RuntimeError(
                f"a mode over torch's functions, {type(mode).__name__}, is on while the backward "
                "pass of a captured program runs. It would see a custom Function or a hook there, "
                "of which the graph has the calls without the mode. Leave the mode before the "
                "pass, or enter it before the call of the program: then that runs in eager mode."
                f"{self.backward.line_of_user()}"
            )

    def _mask_unreached(
        self, gradients: Sequence[torch.Tensor | None], present: int | None
    ) -> Sequence[torch.Tensor | None]:
        """Return ``gradients``, with None for those that no present cotangent reaches."""
        if present is None:
            return gradients
        return [
            grad if bits & present else None
            for grad, bits in zip(gradients, self.backward.joint.boundary.reach, strict=True)
        ]

    def _check_saved(self, create_graph: bool) -> list[object]:
        """Return what was saved. Raise if it was freed, or if a needed value was written to since.

        A backward that needs no saved value can run again, as a node that saves nothing.
        """
        saved = self.saved
        for reads, found in zip(self.reads, self.found, strict=True):
            reads.require(found)
        if saved is None:
            if self.backward.n_saved or create_graph:
                raise RuntimeError(FREED)
            return []
        if self.versions is None:  # hooks have packed it
            return list(map(_unpack, saved))
        # the caller can write only to what it can reach; a second derivative needs the primals, too
        backward = self.backward
        exposed = backward.exposed if create_graph else backward.first_exposed
        # `first_exposed` is the beginning of `exposed`, of which these are the versions
        for index, version in zip(exposed, self.versions, strict=False):
            if saved[index]._version != version:
                raise modified(saved[index], version)
        for tensor, version in self.watched:
            if tensor._version != version:
                raise modified(tensor, version)
        return saved

    def _zeros(self, index: int) -> torch.Tensor:
        """Return zeros for cotangent ``index``, which is missing."""
        layouts = self.backward.joint.layouts
        if layouts is not None:
            layout = layouts.tangents[index]
            if layout is not None:
                return zeros_of(layout, self.parts[index])
        shape, dtype = self.metas[index]
        return factories.zeros(shape, dtype=dtype, device=self.backward.devices[index])

    def _write(self, values: Sequence[torch.Tensor]) -> None:
        """Write ``values`` to the arguments that the backward writes to."""
        # in no_grad mode, as there is no second derivative
        for tensor, value in zip(self.written, values, strict=True):
            tensor.copy_(value)

    def _apply_pullback(
        self, saved: list[Any], grads: list[torch.Tensor | None], present: int | None
    ) -> Sequence[torch.Tensor | None]:
        """Return gradients that have a history, by the pullback of the program."""
        backward = self.backward
        if self.written:
            raise RuntimeError(
                "a compiled program whose backward writes to an argument has no second derivative"
            )
        again = backward.differentiable(present)
        # primals by number: as the call stores them, with the history that they had at the call
        values_of_primals = dict(zip(backward.reread, saved[backward.n_kept :], strict=True))
        values_of_primals.update(
            {primal: saved[place] for primal, place in backward.saved_primals.items()}
        )
        targets = dict(zip(backward.joint.boundary.differentiated, self.targets, strict=True))
        primals = [
            _with_history(values_of_primals[index], targets.get(index))
            for index in backward.pullback.primals
        ]
        saved_by_pullback = [saved[index] for index in backward.pullback.saved]
        with torch.enable_grad(), without_autocast(), _unseen():
            cotangents: list[torch.Tensor] = []
            for index, grad in enumerate(grads):
                cotangents.append(self._zeros(index) if grad is None else _as_traced(grad))
            results: Sequence[Any] = again(*primals, *saved_by_pullback, *cotangents)
        # a further pass goes through the code of the program's pass once more
        for node in nodes_at(map(_edge, results)):
            if isinstance(node, CompiledBackward):
                node.reads, node.found = self.reads, self.found
        return results

    def _pack(self, hooks: tuple[Pack, Unpack]) -> None:
        """Replace what is saved by what the pack hooks of this thread return for it."""
        assert self.saved is not None
        backward = self.backward
        targets = dict(zip(backward.joint.boundary.differentiated, self.targets, strict=True))
        # a hook gets a tensor with its history, so primals need their targets
        of_saved: dict[int, Target | None] = {}
        for primal, place in backward.saved_primals.items():
            of_saved[place] = targets.get(primal)
        for place, primal in enumerate(backward.reread, backward.n_kept):
            of_saved[place] = targets.get(primal)
        packed = list(self.saved)
        for place, tensor in enumerate(self.saved):
            if isinstance(tensor, torch.Tensor):
                packed[place] = pack(SESSION, tensor, _edge(of_saved.get(place)), *hooks)
        self.saved = packed
        self.versions = None  # what the hooks give back is not compared

    def release(self) -> None:
        """Free what is saved."""
        self.saved = None
        self.watched = []


def _unseen() -> AbstractContextManager[object]:
    """Return a context in which no mode of the caller over torch's functions sees a call.

    In eager mode formulas are in C++, where none does. One that sets the default device stays: it
    is right for an op of the user's in the graph.
    """
    return nullcontext() if mode_of_caller() is None else unseen_by_handlers()


def _as_traced(cotangent: torch.Tensor) -> torch.Tensor:
    """Return ``cotangent`` as the trace took it.

    The trace took contiguous cotangents, as strides decide which results are views. None of them
    was conjugated or negated lazily.
    """
    if not cotangent.is_contiguous():
        cotangent = cotangent.contiguous()
    if cotangent.is_conj():
        cotangent = cotangent.resolve_conj()
    if cotangent.is_neg():
        cotangent = cotangent.resolve_neg()
    return cotangent


def _unpack(saved: Packed | float) -> object:
    """Return a saved value, by the unpack hook if hooks have packed it."""
    if type(saved) is Packed:
        return restore(SESSION, saved, None)
    return saved


def _edge(target: Target | None) -> Edge | None:
    """Return the edge that a gradient goes along to ``target``, if that is no leaf."""
    if isinstance(target, Tensor):
        return edge_of(target)
    return target


def _with_history(tensor: torch.Tensor, target: Target | None) -> torch.Tensor:
    """Return plain argument ``tensor`` as the tensor of the session that it was at the call."""
    if target is None:
        return tensor
    if isinstance(target, Tensor) and target._inner is tensor:
        return target
    value: torch.Tensor = SESSION.wrap(tensor, _edge(target))
    return value
