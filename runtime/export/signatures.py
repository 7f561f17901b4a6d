"""Describe the inputs and outputs of exported graphs.

``aot_export_module`` returns a :class:`GraphSignature` with the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from ..aot.capture.joint import Joint
from ..aot.capture.outputs import leaf_of
from ..seam.graph_walks import results_of
from ..torch_private.pytrees import pytree
from .joint_graphs import Loss


@dataclass(frozen=True)
class BackwardSignature:
    """The gradients that a joint graph returns after the results of the module.

    ``gradients_to_parameters``: name of the parameter by name of the output.
    ``gradients_to_user_inputs``: name of the input by name of the output. ``loss_output``: the
    output whose gradients these are.
    """

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass(frozen=True)
class GraphSignature:
    """An exported graph takes parameters, buffers, then the leaves of the arguments. It returns new
    values of what the module writes to, the leaves of its results, then gradients.

    Of ``torch.nn.BatchNorm1d(2)`` some of the fields are:

        parameters             ["weight", "bias"]
        user_inputs            ["arg5_1"]
        inputs_to_parameters   {"arg0_1": "weight", "arg1_1": "bias"}
        buffers_to_mutate      {"add": "num_batches_tracked", …}
    """

    # their names in the module
    parameters: list[str]
    buffers: list[str]
    # names of nodes; None for a result that is a constant
    user_inputs: list[str]
    user_outputs: list[str | None]
    # by name of the placeholder, the name in the module
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    # by name of an output that is a new value: whose it is
    buffers_to_mutate: dict[str, str]
    parameters_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    # the tree of (everything that the graph takes by position, keyword arguments)
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec  # of the module's results
    backward_signature: BackwardSignature | None = None  # of a joint graph


def output_names(joint: Joint) -> list[str | None]:
    """Return the name of each result of the graph; None for a constant."""
    results = results_of(joint.module.graph)
    return [result.name if isinstance(result, fx.Node) else None for result in results]


def signature_of(
    joint: Joint,
    placeholders: Sequence[fx.Node],
    params: list[str],
    buffers: list[str],
    in_spec: pytree.TreeSpec,
    loss: Loss | None,
) -> GraphSignature:
    """Return the signature of a joint graph.

    ``placeholders``: of its inputs. ``params`` and ``buffers``: the names of the first of these, in
    this order. ``in_spec``: the tree of what the graph takes. ``loss``: None without a backward.
    """
    inputs = [placeholder.name for placeholder in placeholders]
    outputs = output_names(joint)
    n_params, n_state = len(params), len(params) + len(buffers)
    # what is no parameter and no buffer is named by its placeholder
    owners = [*params, *buffers, *inputs[n_state:]]
    written = joint.boundary.written
    # the first outputs are the new values, in the order of the written inputs
    changed = {str(output): number for output, number in zip(outputs, written, strict=False)}
    user = outputs[len(written) : joint.n_forward]
    # gradients come after the results, in the order of the inputs
    backward = None
    if loss is not None:
        differentiated = joint.boundary.differentiated
        pairs = zip(outputs[joint.n_forward :], differentiated, strict=True)
        gradients = {str(output): number for output, number in pairs}
        backward = BackwardSignature(
            gradients_to_parameters=_owners_within(range(n_params), gradients, owners),
            gradients_to_user_inputs=_owners_within(
                range(n_params, len(owners)), gradients, owners
            ),
            loss_output=str(user[leaf_of(joint.out_spec, loss.number)]),
        )
    return GraphSignature(
        parameters=params,
        buffers=buffers,
        user_inputs=inputs[n_state:],
        user_outputs=user,
        inputs_to_parameters=dict(zip(inputs, params, strict=False)),
        inputs_to_buffers=dict(zip(inputs[n_params:], buffers, strict=False)),
        buffers_to_mutate=_owners_within(range(n_params, n_state), changed, owners),
        parameters_to_mutate=_owners_within(range(n_params), changed, owners),
        user_inputs_to_mutate=_owners_within(range(n_state, len(owners)), changed, owners),
        in_spec=in_spec,
        out_spec=joint.out_spec,
        backward_signature=backward,
    )


def _owners_within(
    inputs: range, input_of: Mapping[str, int], owners: Sequence[str]
) -> dict[str, str]:
    """Return whose value each output has, by its name, as far as that is one of ``inputs``.
    ``input_of``: the number of the input. ``owners``: the names of the inputs."""
    return {output: owners[number] for output, number in input_of.items() if number in inputs}
