"""What a call does before the graph of its program runs.

    begin = Beginning(leaves, arguments, donates, require_alone).of(joint)
    begin(call)                         # [".grad is None of 2 tensors"], if the graph fails

It takes the memory that is donated, and drops the gradients of leaves, which it assigns afterwards.
So the memory of the old ones is free for the new ones, as in eager mode. Before a graph that may be
for another side of a branch nothing is taken or dropped, and the random numbers that it draws are
drawn again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..aot.calls.arguments import Call
from ..aot.capture.joint import Joint
from ..aot.capture.leaf_gradients import HOOKS, hooked
from ..seam.generator_states import GeneratorStates
from ..trace.number_reads import on_side
from .donation import take
from .outcome import NO_LEAF
from .sides import DRAWS


@dataclass(frozen=True)
class Beginning:
    """``leaves``: those whose gradients the call assigns. ``arguments``: the numbers of those that
    get gradients, so that they must be leaves without hooks. ``donates``: whether the call takes
    the memory of arguments. ``require_alone``: raises an error where the call assigns and others
    may run beside it; None if it assigns nothing."""

    leaves: Sequence[torch.Tensor]
    arguments: Sequence[int]
    donates: bool
    require_alone: Callable[[], None] | None

    def of(self, joint: Joint) -> Callable[[Call], Sequence[str]] | None:
        """Return what a call of this program does, which returns what an error of the graph does
        not undo. None if that is nothing."""
        targets = [node.target for node in joint.traced.graph.nodes]
        if on_side in targets:
            return self._before_branches(_draws(targets))
        if not (self.leaves or self.donates or self.arguments):
            return None if self.require_alone is None else self._alone
        lost = ["the donated tensors are empty"] if self.donates else []
        if self.leaves:
            count = len(self.leaves)
            lost.append(f".grad is None of {count} tensor{'s' * (count != 1)}")

        def begin(call: Call) -> Sequence[str]:
            self._alone(call)
            self._refuse(call)
            if self.donates:
                take(call, joint)
            for leaf in self.leaves:
                leaf.grad = None
            return lost

        return begin

    def _before_branches(self, draws: bool) -> Callable[[Call], Sequence[str]]:
        """Return what a call does before the graph of a program with branches: it remembers the
        states of random generators, as a graph for another side may run after this one."""

        def begin(call: Call) -> Sequence[str]:
            self._alone(call)
            self._refuse(call)
            DRAWS.before = GeneratorStates() if draws else None
            return ()

        return begin

    def _alone(self, call: Call) -> Sequence[str]:
        # another thread may have captured this program since the call was found to assign nothing
        if self.require_alone is not None:
            self.require_alone()
        return ()

    def _refuse(self, call: Call) -> None:
        """Raise ``RuntimeError`` if an argument that gets a gradient has hooks, or is no leaf."""
        for i in self.arguments:
            if hooked(call.leaves[i]):
                raise RuntimeError(
                    f"backward() in a jitted function reaches an argument with hooks, {HOOKS}"
                )
            if not call.leaves[i].is_leaf:
                raise RuntimeError(NO_LEAF)


def _draws(targets: Sequence[object]) -> bool:
    seeded = torch.Tag.nondeterministic_seeded
    return any(seeded in getattr(target, "tags", ()) for target in targets)
