"""Export a module as a flat graph: ``aot_export_module``.

The graph takes all that the module reads, and returns all that it writes to: see
:class:`.signatures.GraphSignature`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx

from ..aot.calls.simplified import fake_mode_of, of_state, plain, refuse_fake_state, state_of
from ..torch_private.pytrees import pytree
from ..trace.error_lines import naming_line
from ..trace.symbols import Abstraction, Given
from .before_dispatch import traced_before_dispatch
from .joint_graphs import (
    Loss,
    Table,
    capture_joint,
    name_inputs,
    needs_gradients,
    refuse_missing_gradients,
    refuse_writes,
    return_tuple,
)
from .signatures import GraphSignature, signature_of


def _abstraction_of(
    mod: torch.nn.Module, leaves: Sequence[object], dynamic: bool | None
) -> tuple[bool, Abstraction | None]:
    """Return whether sizes are symbols, and what makes abstract values."""
    mode = fake_mode_of(leaves)
    # the values of a traced module are of the mode in which it was traced
    if mode is None and isinstance(mod, fx.GraphModule):
        mode = fake_mode_of([node.meta.get("val") for node in mod.graph.nodes])
    if mode is None:
        return bool(dynamic), None
    return False, Given(mode)


def _loss_of(trace_joint: bool, output_loss_index: int | None) -> Loss | None:
    """Return the loss of a joint graph. Another graph has none, whatever the index."""
    if not trace_joint:
        return None
    if output_loss_index is None:
        raise RuntimeError(
            "trace_joint=True needs output_loss_index, the number of the result that is the loss"
        )
    return Loss(output_loss_index)


@naming_line()
def aot_export_module(
    mod: torch.nn.Module,
    args: Sequence[object],
    *,
    decompositions: Table | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    kwargs: Mapping[str, object] | None = None,
) -> tuple[fx.GraphModule, GraphSignature]:
    """Return the graph of ``mod`` on ``args`` and what its inputs and outputs are, as
    ``torch._functorch.aot_autograd.aot_export_module``.

    >>> model = torch.nn.BatchNorm1d(2)
    >>> graph, signature = aot_export_module(model, (torch.ones(3, 2),), trace_joint=False)
    >>> list(signature.buffers_to_mutate.values())
    ['running_mean', 'running_var', 'num_batches_tracked']

    The graph takes parameters, buffers and the leaves of the arguments. It writes to nothing: the
    new values of what ``mod`` writes to are its first results. With ``trace_joint`` the gradients
    of result ``output_loss_index`` come last: of every parameter and argument that requires grad. A
    shared parameter is an input under each of its names, and each has the gradient of its own uses.
    ``pre_dispatch``: a graph to differentiate later, with switches of the grad mode as calls, and
    with convolutions, ``linear``, ``matmul``, normalizations and attention whole.
    ``dynamic_shapes``: whether sizes are symbols. ``mod`` itself stays as it is.

    ``RuntimeError`` for changes of sizes or strides of an input, for a write to an input that
    requires grad or that shares memory with another, for results other than the loss that require
    grad, and for a parameter that the loss does not depend on."""
    if pre_dispatch and trace_joint:
        raise RuntimeError("pre_dispatch is not supported when trace_joint is True.")
    # the leaves: parameters, buffers, and those of the arguments
    loss = _loss_of(trace_joint, output_loss_index)
    params, buffers = state_of(mod)
    state = {**params, **buffers}
    refuse_fake_state(state, args)
    user, in_spec = pytree.tree_flatten((tuple(args), kwargs or {}))
    leaves = [*state.values(), *user]
    lifted, n = of_state(mod, list(state)), len(state)

    def call(*values: object) -> object:
        """Call the module with these leaves as its state and arguments."""
        positional, keywords = pytree.tree_unflatten(list(values[n:]), in_spec)
        return lifted(*values[:n], *positional, **keywords)

    whole_spec = pytree.tree_structure(((*[0] * n, *args), kwargs or {}))
    names = [
        *(f"parameter or buffer {name!r}" for name in state),
        *(f"argument {index}" for index in range(len(user))),
    ]
    dynamic, abstraction = _abstraction_of(mod, leaves, dynamic_shapes)
    if pre_dispatch:
        return _export_before_dispatch(
            call, leaves, names, (list(params), list(buffers)), whole_spec, decompositions, dynamic
        )
    joint = capture_joint(
        call,
        leaves,
        names,
        wanted=needs_gradients(leaves, trace_joint),
        loss=loss,
        decompositions=decompositions,
        dynamic=dynamic,
        abstraction=abstraction,
        program=mod,
    )
    refuse_missing_gradients(joint, names)
    placeholders = name_inputs(joint, len(leaves))
    return_tuple(joint)
    return joint.module, signature_of(
        joint, placeholders, list(params), list(buffers), whole_spec, loss
    )


def _export_before_dispatch(
    call: Callable[..., object],
    leaves: Sequence[object],
    names: Sequence[str],
    state: tuple[list[str], list[str]],
    in_spec: pytree.TreeSpec,
    decompositions: Table | None,
    dynamic: bool,
) -> tuple[fx.GraphModule, GraphSignature]:
    """Return the graph of a trace before dispatch, and its signature."""
    joint = traced_before_dispatch(call, list(map(plain, leaves)), decompositions, dynamic)
    refuse_writes(joint, list(map(plain, leaves)), names)
    placeholders = name_inputs(joint, len(leaves))
    return joint.module, signature_of(joint, placeholders, *state, in_spec, None)
