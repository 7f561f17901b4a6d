"""Run a graph as it is at the first call, and as generated code at the next ones.

    f = jit(hessian(g))
    f(x)        # captured, and the graph run node by node
    f(x)        # rewritten and generated, and run
    f(x)        # run

To rewrite a graph and to generate its code takes a third of the time of a capture. A program that
is called once does without it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from ...seam.graph_walks import last_users
from ...seam.locks import lock_of
from ...stack_room import with_room
from ...torch_private.dispatcher import below_autograd
from ...torch_private.global_settings import without_autocast
from ..capture.global_state import without_collection
from .replay import as_python

Run = Callable[[list[Any]], Any]


class Settling:
    """A boxed function that another one replaces in the end.

    ``settled``: gets the other one once there is one, so that its owner calls that directly.
    """

    _boxed_call = True
    settled: Callable[[Run], None] | None = None

    def __call__(self, args: list[Any]) -> Any:
        """Return the results of the graph, and empty ``args``."""
        raise NotImplementedError


class Staged(Settling):
    """Run ``module`` as a boxed function.

    :func:`.replay.as_python` can run the module, and its graph writes to no argument. The other
    function is the generated one.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module: fx.GraphModule | None = module
        self._called = False
        self._lock = lock_of(self, "_lock")
        self._run: Run

    def __call__(self, args: list[object]) -> Any:
        """Return the results of the graph, and empty ``args``."""
        module = self._module
        if module is None:
            return self._run(args)
        if self._called:
            return self._generate()(args)
        # without the lock: two first calls at once both run the graph, which is as good
        self._called = True
        return run_graph(module, args)

    def _generate(self) -> Run:
        """Return the generated function. One thread generates it, and others wait."""
        with self._lock:
            if self._module is not None:
                with without_autocast(), without_collection():
                    self._run = with_room(as_python)(self._module)
                # last: a thread without the lock takes `_run` as soon as there is no module
                self._module = None
                if self.settled is not None:
                    self.settled(self._run)
                    self.settled = None
        return self._run


def run_graph(module: fx.GraphModule, args: list[Any]) -> Any:
    """Return the results of the graph of ``module``, computed node by node.

    ``args`` is emptied, and each value freed after its last use.
    """
    nodes = module.graph.nodes
    last_use = last_users(module.graph)
    inputs = module.graph.find_nodes(op="placeholder")
    values: dict[fx.Node, Any] = dict(zip(inputs, args, strict=True))
    # from here on `values` alone has the arguments, and frees each with its entry
    args.clear()
    with below_autograd():
        for node in nodes:
            if node.op == "output":
                return fx.map_arg(node.args[0], values.__getitem__)
            if node.op != "placeholder":
                values[node] = _run_node(module, node, values)
            for used in node.all_input_nodes:
                if last_use[used] is node:
                    del values[used]
            # nobody uses it: a call for its effect
            if node not in last_use:
                del values[node]
    raise AssertionError("a graph has an output")


def _run_node(module: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Any]) -> object:
    """Return the value of an attribute or a call. ``values``: of its arguments."""
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(module)
    func: Any = node.target
    kwargs = node.kwargs and fx.map_arg(node.kwargs, values.__getitem__)
    return func(*fx.map_arg(node.args, values.__getitem__), **kwargs)
