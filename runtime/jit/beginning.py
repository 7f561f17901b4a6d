"""What a call does before the graph of its program runs.

    begin = Beginning(leaves, arguments, donates, require_alone).of(joint)
    begin(call)                         # [".grad is None of 2 tensors"], if the graph fails

It takes the memory that is donated, and drops the gradients of leaves, which it assigns afterwards.
So the memory of the old ones is free for the new ones, as in eager mode. Before a graph that may
refuse the call, as it is for another side of a branch, nothing is taken or dropped.

Random numbers that a graph draws before it fails are drawn again: see :data:`.sides.DRAWS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch

from ..aot.calls.arguments import Call
from ..aot.capture.joint import Joint
from ..aot.capture.leaf_gradients import HOOKS, has_tensor_hooks, hooked
from ..aot.compilers.graph_effects import draws, generators_of
from ..aot.python_state.reads import Read, Slots
from ..native.noted import Noted, Question
from ..seam.generator_states import GeneratorStates
from ..session.tensor import Tensor
from ..torch_private.mode_stacks import unseen_by_classes
from ..trace.graph_edits import refuses
from .donation import take
from .outcome import NO_LEAF
from .sides import DRAWS

_BACKWARD_HOOKS, _POST_HOOKS = (
    attrgetter("_backward_hooks"),
    attrgetter("_post_accumulate_grad_hooks"),
)


class Leaves:
    """Leaves to whose gradients a program adds."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self._plain = [value for value in leaves if not isinstance(value, Tensor)]
        self._others = [value for value in leaves if isinstance(value, Tensor)]
        question = Question("tensors without hooks", self._plain)
        self._noted = Noted.of(question, lambda: self._without_hooks)

    @property
    def hooked(self) -> bool:
        """Return whether one of them has hooks, which the graph would not call."""
        without = self._without_hooks if self._noted is None else self._noted.holds
        return not without() or any(map(hooked, self._others))

    def _without_hooks(self) -> bool:
        plain = self._plain  # asked at each call, of each parameter
        return not any(map(_BACKWARD_HOOKS, plain)) and not any(map(_POST_HOOKS, plain))


def without_hooks(leaves: Sequence[torch.Tensor]) -> list[Read]:
    """Return the question whether ``leaves`` have no hooks, which a graph would not call."""
    return [Read(Slots(Leaves(leaves)), "hooked", False)] if leaves else []


@dataclass(frozen=True)
class Beginning:
    """``leaves``: those whose gradients the call assigns. ``arguments``: the numbers of those that
    get gradients, so that they must be leaves without hooks. ``differentiated``: the numbers of
    those whose gradients the program computes, so that they must have no hooks. ``donates``:
    whether the call takes the memory of arguments. ``require_alone``: raises an error where the
    call assigns and others may run beside it; None if it assigns nothing. ``added_at``,
    ``differentiated_at``: the user's lines of the backward pass that reaches the arguments, and of
    the call that asks for their gradients, as the ends of errors."""

    leaves: Sequence[torch.Tensor]
    arguments: Sequence[int]
    differentiated: Sequence[int]
    donates: bool
    require_alone: Callable[[], None] | None
    added_at: str = ""
    differentiated_at: str = ""

    def of(self, joint: Joint) -> Callable[[Call], Sequence[str]] | None:
        """Return what a call of this program does, which returns what an error of the graph does
        not undo. None if that is nothing."""
        module = joint.traced
        may_refuse = any(map(refuses, module.graph.nodes))
        # a call that is refused runs by another program, which needs both
        takes = self.donates and not may_refuse
        dropped = () if may_refuse else self.leaves
        lost = ["the donated tensors are empty"] if takes else []
        if dropped:
            count = len(dropped)
            lost.append(f".grad is None of {count} tensor{'s' * (count != 1)}")
        # Where something is lost the call cannot run once more, so nothing is drawn again.
        draws_again = draws(module) and not lost
        own = generators_of(module)
        asks = bool(self.arguments or self.differentiated)
        if not (draws_again or may_refuse or lost or asks):
            return None if self.require_alone is None else self._alone

        # What refuses the call comes first, before anything is taken or dropped.
        def begin(call: Call) -> Sequence[str]:
            self._alone(call)
            self._refuse(call)
            DRAWS.before = GeneratorStates(own) if draws_again else None
            if takes:
                take(call, joint)
            with unseen_by_classes():
                for leaf in dropped:
                    leaf.grad = None
            return lost

        return begin

    def _alone(self, call: Call) -> Sequence[str]:
        # another thread may have captured this program since the call was found to assign nothing
        if self.require_alone is not None:
            self.require_alone()
        return ()

    def _refuse(self, call: Call) -> None:
        """Raise ``RuntimeError`` if an argument that gets a gradient has hooks, or is no leaf."""
        for number in self.arguments:
            leaf = call.leaves[number]
            if hooked(leaf):
                raise RuntimeError(
                    f"backward() in a jitted function reaches an argument with hooks, {HOOKS}"
                    f"{self.added_at}"
                )
            if not leaf.is_leaf:
                raise RuntimeError(f"{NO_LEAF}{self.added_at}")
        for number in self.differentiated:
            if has_tensor_hooks(call.leaves[number]):
                raise RuntimeError(
                    "torch.autograd.grad in a jitted function asks for the gradient of an argument "
                    f"with hooks, {HOOKS}{self.differentiated_at}"
                )
