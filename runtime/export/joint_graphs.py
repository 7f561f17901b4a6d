"""Capture joint graphs without a program around them, and refuse what such a graph cannot say.

Whoever takes the graph calls it himself. So what a compiled program does around its graph becomes
further results, or is refused: ``x.t_()`` of an argument, ``x.requires_grad_()``, a seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from ..aot.calls.simplified import plain
from ..aot.capture.aliasing import sharing
from ..aot.capture.boundary import Boundary, Input
from ..aot.capture.global_state import without_collection
from ..aot.capture.joint import Joint, joint_graph
from ..seam.graph_walks import results_of
from ..seam.user_code import watched
from ..torch_private.pytrees import pytree
from ..trace.provenance import happened_at
from ..trace.symbols import Abstraction
from .frozen_state import FrozenState

Table = Mapping[Any, Callable[..., Any]]

# Without grad mode ATen calls forms of ops that have no derivative. Whoever runs the graph may
# have grad mode on.
_DIFFERENTIABLE: Table = {
    torch.ops.aten._embedding_bag_forward_only.default: torch.ops.aten._embedding_bag.default
}


@dataclass(frozen=True)
class Loss:
    """The number of the result that is differentiated. The others have no history, or it is an
    error."""

    number: int

    def check(self, out: object) -> None:
        """Refuse results that a joint graph cannot have."""
        outputs = out
        if isinstance(out, torch.Tensor):
            outputs = (out,)
        if not isinstance(outputs, (tuple, list)):
            raise RuntimeError(
                "a joint graph is made of a program that returns a tensor, a tuple or a list, "
                f"not {type(out).__name__}"
            )
        if not -len(outputs) <= self.number < len(outputs):
            raise RuntimeError(
                f"output_loss_index is {self.number}, "
                f"and the program returns {len(outputs)} results"
            )
        self._refuse_other_histories(outputs)
        loss = outputs[self.number]
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise RuntimeError(
                f"result {self.number} was marked as the loss, and it does not require grad"
            )
        if loss.numel() != 1:
            raise RuntimeError(
                f"result {self.number} was marked as the loss, so it must have one element. "
                f"Its shape is {list(loss.shape)}"
            )

    def _refuse_other_histories(self, outs: Sequence[object]) -> None:
        """Raise if a result other than the loss requires grad."""
        for index, output in enumerate(outs):
            # a negative number counts from the last result
            if index == self.number % len(outs):
                continue
            if any(needs_gradients(pytree.tree_leaves(output))):
                raise RuntimeError(
                    "Found an output of the forward that requires gradients, that was not "
                    f"the loss. The graph has the gradients of result {self.number} alone. "
                    f"Return {index} as .detach()."
                )


def needs_gradients(leaves: Sequence[object], trace_joint: bool = True) -> list[bool]:
    """Return for each leaf whether a graph has its gradient: for tensors that require grad, if
    there is a backward pass at all."""
    return [
        trace_joint and isinstance(value, torch.Tensor) and value.requires_grad for value in leaves
    ]


@without_collection()  # whose callbacks would be code of the program for the graph of objects
def capture_joint(
    f: Callable[..., object],
    leaves: Sequence[object],
    names: Sequence[str],
    *,
    wanted: Sequence[bool],
    loss: Loss | None = None,
    decompositions: Table | None = None,
    dynamic: bool = False,
    abstraction: Abstraction | None = None,
    program: Callable[..., object],
) -> Joint:
    """Return the joint graph of ``f`` on ``leaves``, free of writes. Refuse what the graph cannot
    say; ``names`` are those of the leaves. ``program``: the module or function that ``f`` calls,
    whose state becomes constants of the graph."""
    state = FrozenState([program])

    def call_and_check(*values: object) -> object:
        """Call ``f``, and refuse results among which the loss is none."""
        out = f(*values)
        if loss is not None:
            loss.check(out)
        return out

    number = None if loss is None else loss.number
    # without a gradient the graph is that of the program under no_grad
    recording = contextlib.nullcontext() if any(wanted) else torch.no_grad()
    examples = list(map(plain, leaves))
    with recording:
        capture = partial(
            joint_graph,
            partial(watched, call_and_check),
            examples,
            wanted,
            dynamic=dynamic,
            decompositions={**_DIFFERENTIABLE, **(decompositions or {})},
            lift=False,
            whole=True,
            abstraction=abstraction,
            loss=number,
            generators=state.generators,
        )
        joint = state.keep(capture)
    refuse_writes(joint, examples, names)
    return joint


def refuse_writes(joint: Joint, examples: Sequence[object], names: Sequence[str]) -> None:
    """Refuse writes that no result of the graph can stand for.

    ``examples`` and ``names``: of the inputs. ``RuntimeError`` for a write to one that requires
    grad or shares memory with another, for a change of its geometry, for a seed, and for a write in
    the backward pass.
    """
    boundary = joint.boundary
    for name, record, x in zip(names, boundary.inputs, examples, strict=True):
        _refuse_changes_of_input(name, record, x)
    if boundary.seedings:
        raise RuntimeError(
            "the program sets the state of a random generator, and an exported graph cannot. "
            f"Do that before the call.{boundary.seedings[0].where}"
        )
    if boundary.backward_written:
        raise RuntimeError(
            f"the backward pass writes to {names[boundary.backward_written[0]]}. "
            "An exported graph cannot."
        )
    _refuse_writes_to_shared_memory(boundary, examples, names)


def _refuse_changes_of_input(name: str, record: Input, value: Any) -> None:
    """Refuse what a program does to the input ``value`` and a graph cannot."""
    if not record.keeps_geometry(value):
        raise RuntimeError(
            f"Found an input that received a metadata mutation: {name} has other sizes "
            f"or strides after the call ({record.reshaped[0].func._schema.name}_). "
            "An exported graph cannot change them. Use the op that returns a view."
            f"{happened_at(record.written_at)}"
        )
    if record.written and record.differentiated:
        raise RuntimeError(
            f"Found a graph input that requires gradients, and received a mutation: {name}. "
            "Write to a copy of it, or export without gradients."
            f"{happened_at(record.written_at)}"
        )
    if record.begins:
        raise RuntimeError(
            f"the program calls requires_grad_() on {name}. An exported graph cannot. "
            "Do that before the export."
        )
    if record.hooks:
        raise RuntimeError(
            f"the program registers a hook on {name}. An exported graph cannot. "
            "Register it on the caller's tensor."
        )


def _refuse_writes_to_shared_memory(
    boundary: Boundary, examples: Sequence[object], names: Sequence[str]
) -> None:
    """Refuse writes to inputs that share memory. The other input would not see the new values."""
    for group in sharing(examples):
        lines = [
            boundary.inputs[index].written_at
            for index in group.members
            if boundary.inputs[index].written
        ]
        if not lines:
            continue
        how = "duplicated" if group.identical else "aliased"
        shared = " and ".join(names[index] for index in group.members)
        raise RuntimeError(
            f"Encountered {how} inputs that are mutated in the graph: {shared} share "
            "memory, and the program writes to it. Pass one of them, or a copy."
            f"{happened_at(lines[0])}"
        )


def refuse_missing_gradients(joint: Joint, names: Sequence[str]) -> None:
    """Raise if the loss does not depend on an input that requires grad."""
    results = results_of(joint.module.graph)
    gradients = results[joint.n_forward :]
    for number, gradient in zip(joint.boundary.differentiated, gradients, strict=True):
        if gradient is None:
            raise RuntimeError(
                f"the loss does not depend on {names[number]}, which requires grad. "
                "Use it, or call requires_grad_(False) on it."
            )


def name_inputs(joint: Joint, n_inputs: int, prefix: str = "arg{}_1") -> list[fx.Node]:
    """Give the placeholders of the inputs the names that torch gives them, and return them.

    ``prefix``: such as ``"arg{}_1"``, in which the number of the input takes the place of the
    braces.
    """
    placeholders = joint.module.graph.find_nodes(op="placeholder")[:n_inputs]
    for index, node in enumerate(placeholders):
        node._rename(prefix.format(index))
        node.target = node.name
    joint.module.recompile()
    return placeholders


def return_tuple(joint: Joint) -> None:
    """Let the graph return a tuple, as graphs of torch do, in place of a list."""
    output = joint.module.graph.output_node()
    results = results_of(joint.module.graph)
    output.args = (tuple(results),)
    joint.module.recompile()
