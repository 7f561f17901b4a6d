"""Mark the inputs of a joint graph that are tangents: the cotangents of the forward results, from
which the backward starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from ...torch_private.pytrees import pytree

_MARK = "tangent"


def mark(node: fx.Node) -> None:
    """Say that placeholder ``node`` is a tangent. Copies of the node take the mark along."""
    node.meta[_MARK] = True


def is_marked(node: fx.Node) -> bool:
    """Return whether ``node`` is marked as a tangent."""
    return bool(node.meta.get(_MARK, False))


def marked(graph: fx.Graph) -> list[fx.Node]:
    """Return the placeholders that are marked as tangents."""
    return [node for node in graph.find_nodes(op="placeholder") if is_marked(node)]


def primals_and_tangents(
    module: fx.GraphModule, joint_inputs: object = None
) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the placeholders of a joint graph in two lists.

    A graph of ours carries marks. A graph from elsewhere is a function of ``(primals, tangents)``:
    ``joint_inputs`` or the signature of the module says how many there are of each, or its tangents
    are called ``tangents_1``, and so on.
    """
    inputs = module.graph.find_nodes(op="placeholder")
    tangents = marked(module.graph)
    if not tangents:
        number = _number_of_primals(module, joint_inputs, len(inputs))
        if number is None:
            tangents = [node for node in inputs if str(node.target).startswith("tangents")]
        else:
            tangents = inputs[number:]
    are_tangents = set(tangents)
    return [node for node in inputs if node not in are_tangents], tangents


def _number_of_primals(module: fx.GraphModule, joint_inputs: object, number: int) -> int | None:
    """Return how many of ``number`` placeholders are primals, if the inputs or the signature of the
    module say so."""
    n_leaves = _leaves_of_inputs(joint_inputs)
    if n_leaves is None or sum(n_leaves) != number:
        n_leaves = _leaves_of_signature(module)
    if n_leaves is None or sum(n_leaves) != number:
        return None
    return n_leaves[0]


def _leaves_of_inputs(joint_inputs: object) -> tuple[int, int] | None:
    """Count the leaves of ``(primals, tangents)``; None if ``joint_inputs`` are something else."""
    if not isinstance(joint_inputs, Sequence) or len(joint_inputs) != 2:
        return None
    primals, tangents = joint_inputs
    if not isinstance(primals, (list, tuple)) or not isinstance(tangents, (list, tuple)):
        return None
    return len(pytree.tree_leaves(primals)), len(pytree.tree_leaves(tangents))


def _leaves_of_signature(module: fx.GraphModule) -> tuple[int, int] | None:
    """Count the leaves of the two arguments of a module; None if it does not take two lists."""
    info = getattr(module.graph._codegen, "pytree_info", None)
    if info is None:
        return None
    parts = _children(info.in_spec)
    # of positional arguments and keywords, in a graph of ours
    if [part.type for part in parts] == [tuple, dict]:
        parts = _children(parts[0])
    if len(parts) != 2 or any(part.type not in (list, tuple) for part in parts):
        return None
    return parts[0].num_leaves, parts[1].num_leaves


def _children(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    return list(map(spec.child, range(spec.num_children)))
