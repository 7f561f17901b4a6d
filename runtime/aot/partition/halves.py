"""Split a joint graph into what belongs to the forward and to the backward, and extract the two
modules for a choice of saved values.

    Parts(joint, 1).cut([node])     # (forward, backward), between which `node` is saved
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx

from ...seam.graph_walks import inputs_of, nodes_among, results_of, users_of, walk, walk_postorder
from ...torch_private.dispatcher import OpOverload
from ...torch_private.graph_parts import metadata_of
from ...trace.graph_edits import stays_unused
from ...trace.graph_module import LateGraphModule
from ...trace.regions import region_of
from ..capture.origins import ORIGIN
from ..capture.tangents import primals_and_tangents
from .recompute import call_of, is_item, is_size

_NUMBERS = (int, torch.SymInt, float, torch.SymFloat)


class Parts:
    """Split the nodes of a joint graph."""

    def __init__(
        self, module: fx.GraphModule, num_fwd_outputs: int, joint_inputs: object = None
    ) -> None:
        self.module = module
        self.nodes = list(module.graph.nodes)
        for node in self.nodes:
            _complete(node)
        self.results, self.gradients = _results_of(module.graph, num_fwd_outputs)
        self.primals, self.tangents = primals_and_tangents(module, joint_inputs)
        if not self.tangents and nodes_among(self.gradients):
            raise ValueError(
                "no input of the joint graph is known to be a tangent. Give "
                "joint_inputs=(primals, tangents), or call these inputs tangents_1, tangents_2, …"
            )
        # an effect of the backward pass, such as a write in a hook, may need no cotangent
        effects = list(filter(_is_effect, self.nodes))
        self.late_effects = [node for node in effects if ORIGIN in node.meta]
        # what depends on a tangent, or on a draw of the backward pass
        self.after_tangents = set(walk([*self.tangents, *self.late_effects], users_of))
        # draws and checks of the forward, which run even if nothing uses them
        self.effects = [node for node in effects if node not in self.after_tangents]
        # what the forward results need
        self.forward = self._list_forward()
        # what neither half needs is in none of them
        self.goals = [*self.late_effects, *nodes_among(self.gradients)]
        # what the gradients need and the forward does not compute, so that it must run in the
        # backward
        self.backward = set(walk(self.goals, inputs_of)) - set(self.forward)

    def _list_forward(self) -> list[fx.Node]:
        """List what the forward results and effects need, and all primals, in the order of the
        graph.

        ``RuntimeError`` if a result depends on a tangent.
        """
        needed = set(walk([*nodes_among(self.results), *self.effects], inputs_of))
        leaking = needed & self.after_tangents
        if leaking:
            raise RuntimeError(
                f"a forward result depends on a tangent: {sorted(node.name for node in leaking)}"
            )
        needed.update(self.primals)
        return [node for node in self.nodes if node in needed and node.op != "get_attr"]

    @cached_property
    def candidates(self) -> list[fx.Node]:
        """Return the values that can be saved."""
        return [
            node for node in self.nodes if node not in self.after_tangents and node.op != "output"
        ]

    def leaves_region(self, node: fx.Node) -> bool:
        """Return whether a checkpoint region computes ``node``, and the forward uses it outside of
        the region, or returns it."""
        region = region_of(call_of(node))
        if region is None or node not in self.forward_set:
            return False
        for user in node.users:
            if user.op == "output":
                return True
            # an item belongs to no region of its own
            if user in self.forward_set and not is_item(user) and region_of(user) != region:
                return True
        return False

    @cached_property
    def forward_set(self) -> set[fx.Node]:
        """Return the nodes of the forward, for questions whether one is among them."""
        return set(self.forward)

    def saved(self, chosen: Iterable[fx.Node]) -> list[fx.Node]:
        """Return what the forward hands over if ``chosen`` is saved: tensors, then numbers.

        Of a call with several results these are the items that only the backward takes. Values of
        the forward that are gradients themselves are handed over too.
        """
        every: dict[fx.Node, None] = {}
        for node in chosen:
            every.update(dict.fromkeys(self._tensors_of(node)))
        every.update(dict.fromkeys(grad for grad in self.gradients if grad in self.forward_set))
        return sorted(every, key=is_size)

    def _tensors_of(self, node: fx.Node) -> list[fx.Node]:
        """Return ``node``, or of a call with several results those that the backward asks for."""
        if not isinstance(node.meta.get("val"), (list, tuple)):
            return [node]
        return [user for user in node.users if is_item(user) and user in self.backward]

    def forward_order(self, saved: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the calls of the forward if it hands over ``saved``."""
        outputs = nodes_among((*self.results, *saved))
        needed = set(walk([*outputs, *self.effects], inputs_of))
        return [node for node in self.nodes if node in needed and node.op != "placeholder"]

    def backward_order(self, saved: Sequence[fx.Node]) -> list[fx.Node]:
        """Return the calls of the backward from ``saved`` and the tangents.

        A value that is computed again comes right before its first use, so that it does not wait in
        memory. ``RuntimeError`` if a value is missing in ``saved``.
        """
        inputs = {*saved, *self.tangents}

        def missing_inputs(node: fx.Node) -> list[fx.Node]:
            """Return what the backward computes for ``node``, the last one first."""
            missing = [source for source in node.all_input_nodes if source not in inputs]
            # fx compares nodes by their places in the graph
            return sorted(missing, reverse=True)

        goals = [goal for goal in self.goals if goal not in inputs]
        needed = set(walk(goals, missing_inputs))
        # Calls after the tangents in their order, each after what is computed again for it. Then a
        # goal that no tangent leads to, such as a gradient that is a constant.
        starts = [*sorted(needed & self.after_tangents), *goals]
        order = list(walk_postorder(starts, missing_inputs))
        for node in order:
            if node.op == "placeholder":
                raise RuntimeError(f"the backward needs {node.name}, which is not saved")
        return order

    def cut(self, chosen: Iterable[fx.Node]) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the modules of the forward and of the backward."""
        saved = self.saved(chosen)
        forward = self._extract(
            self.primals, self.forward_order(saved), [*self.results, *saved], "Forward"
        )
        backward = self._extract(
            [*saved, *self.tangents], self.backward_order(saved), self.gradients, "Backward"
        )
        return forward, backward

    def _extract(
        self, inputs: Sequence[fx.Node], order: Sequence[fx.Node], outputs: Sequence[Any], name: str
    ) -> fx.GraphModule:
        """Return a module with the calls in ``order``, between ``inputs`` and ``outputs``."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = _copy_facts(node)
        # constants first, as in the joint graph
        for node in sorted(order, key=lambda node: node.op != "get_attr"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = _copy_facts(node)
        graph.output(
            [copies[output] if isinstance(output, fx.Node) else output for output in outputs]
        )
        return LateGraphModule(self.module, graph, name)


def _is_effect(node: fx.Node) -> bool:
    """Return whether ``node`` is a call that runs even if nothing uses it."""
    return node.op == "call_function" and stays_unused(node)


def _results_of(graph: fx.Graph, num_fwd_outputs: int) -> tuple[list[object], list[object]]:
    """Return the forward results and the gradients that a joint graph returns in one list."""
    results = results_of(graph)
    if not isinstance(results, (list, tuple)) or not 0 <= num_fwd_outputs <= len(results):
        raise ValueError(
            f"num_fwd_outputs={num_fwd_outputs}, but the joint graph returns {results}: "
            "forward results, then gradients"
        )
    if any(isinstance(result, (list, tuple)) for result in results):
        raise ValueError(
            "the joint graph returns nested results. A partition takes one flat list: "
            "forward results, then gradients"
        )
    return list(results[:num_fwd_outputs]), list(results[num_fwd_outputs:])


def _complete(node: fx.Node) -> None:
    """Note the value of arithmetic with sizes, where the trace has left it out."""
    if node.op != "call_function" or "val" in node.meta or isinstance(node.target, OpOverload):
        return
    inputs = node.all_input_nodes
    # a partition tells sizes from tensors by their values
    if inputs and all(isinstance(source.meta.get("val"), _NUMBERS) for source in inputs):
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]


def _copy_facts(node: fx.Node) -> dict[str, object]:
    """Return the facts of a node, with ``tensor_meta`` if it can have that.

    Graph passes and compilers of torch ask for it.
    """
    meta = dict(node.meta)
    value = meta.get("val")
    if "tensor_meta" in meta or not isinstance(value, torch.Tensor):
        return meta
    if value.layout is torch.strided and not value.is_nested:
        meta["tensor_meta"] = metadata_of(value)
    return meta
