"""What the inputs and outputs of an exported graph are: the records that ``aot_export_module``
returns beside the graph."""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils import _pytree as pytree


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

    ``parameters`` and ``buffers``: their names in the module. ``user_inputs`` and ``user_outputs``:
    names of nodes; None for a result that is a constant. ``inputs_to_parameters`` and
    ``inputs_to_buffers``: name in the module by name of the placeholder. ``buffers_to_mutate``,
    ``parameters_to_mutate`` and ``user_inputs_to_mutate``: for each output that is a new value,
    whose it is. ``in_spec``: the tree of (everything that the graph takes by position, keyword
    arguments). ``out_spec``: the tree of the module's results."""

    parameters: list[str]
    buffers: list[str]
    user_inputs: list[str]
    user_outputs: list[str | None]
    inputs_to_parameters: dict[str, str]
    inputs_to_buffers: dict[str, str]
    buffers_to_mutate: dict[str, str]
    parameters_to_mutate: dict[str, str]
    user_inputs_to_mutate: dict[str, str]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    backward_signature: BackwardSignature | None = None
