"""Run one backward pass: without recursion, newest node first, each node once and only when all its
cotangents have arrived.

Example: of ``z = x.sin() * x`` the node of the product runs first. It sends a cotangent to that of
the sine and one to the leaf ``x``, which waits for the second one, of the sine. Torch's profiler
gets an event for each node that runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from heapq import heapify, heappop, heappush
from typing import Any

import torch

from ..seam.graph_walks import nodes_before
from ..seam.levels import Level
from ..torch_private.mode_stacks import number_of_function_modes, unseen_by_handlers
from ..torch_private.native_autograd import ProfilerEvent, is_profiler_enabled
from . import accumulate as adding
from . import anomaly, hooks
from .conform import conform
from .leaf_protocol import Leaf
from .node_protocol import TapeNode
from .nodes import AccumulateGrad, Edge, Input, Node, nodes_after
from .op_nodes import OpNode
from .saved import Packed


# There are two events per node, one inside the other, with the names that torch's engine gives.
# Their sequence numbers are -1, because torch has no Python function that starts an event with
# another number.
@contextmanager
def reported(node: TapeNode) -> Generator[None]:
    """Report the body of the ``with`` block as the events of one node."""
    name = node.name()
    with ProfilerEvent(f"autograd::engine::evaluate_function: {name}"), ProfilerEvent(name):
        yield


_ids = itertools.count()  # what torch calls the graph task id
_NOTHING = nullcontext()  # in place of an event or a mode, and cheaper than a new one each time


class GraphTask:
    """One call of the engine."""

    __slots__ = (
        "__weakref__",
        "accumulate",
        "at_once",
        "buffers",
        "callbacks",
        "captured",
        "check_nan",
        "count",
        "create_graph",
        "depth",
        "id",
        "keep_graph",
        "level",
        "needs_all",
        "node",
        "outer",
        "profiled",
        "ready",
        "results",
        "should_run",
        "start",
        "sums",
        "surrounded",
        "tickets",
    )

    def __init__(
        self,
        level: Level,
        captures: Sequence[Edge | None] | None,
        create_graph: bool,
        keep_graph: bool,
        accumulate: bool,
    ) -> None:
        self.id = next(_ids)
        self.level = level
        self.create_graph = create_graph
        self.keep_graph = keep_graph
        self.accumulate = accumulate
        # the call within which this one started
        self.outer: GraphTask | None = None
        self.depth = 0
        # whether the node has run, and a level now adds a cotangent of it to another one
        self.sums = False
        # the node that runs
        self.node: Node | None = None
        self.callbacks: list[Callable[[], Any]] = []
        self.start: list[Node] = []
        # by node, how many cotangents are still to come
        self.count: dict[Node, int] = {}
        # by node, the cotangents that have come
        self.buffers: dict[Node, list[torch.Tensor | None]] = {}
        # the heap of the nodes that wait for none, newest first
        self.ready: list[tuple[int, int, Node]] = []
        # numbers that order nodes with the same sequence number
        self.tickets = itertools.count()
        # the nodes on a path to captured ones
        self.should_run: set[Node] | None = None
        # whether these are all reachable nodes
        self.needs_all = False
        # By node, the outputs whose cotangents are results, each with its position among the
        # results. None if the pass is for all leaves.
        self.captured: dict[Node, list[tuple[int, int]]] | None = None
        self.results: list[Any] = [None] * len(captures or ())
        if captures is not None:
            # one output may be asked for several times
            self.captured = {}
            for position, edge in enumerate(captures):
                if edge is not None:
                    self.captured.setdefault(edge[0], []).append((edge[1], position))

    def plan(self) -> None:
        """Count the edges to each reachable node, and find the nodes from which a captured node can
        be reached."""
        only_captured = self._count_edges()
        if self.captured is None:
            return
        if not only_captured:
            self.should_run = self._nodes_before_captured()
            return
        # The case of a transform that differentiates by all inputs. No second walk is needed, and
        # no edge of a node is left out.
        self.should_run = set(self.count)
        # the ends of the paths run only to accumulate, see `_nodes_before_captured`
        if not self.accumulate:
            self.should_run.difference_update(self.captured)
        self.needs_all = True

    def _count_edges(self) -> bool:
        """Count how many edges lead to each reachable node. Return whether every path stops at a
        captured node, and no path goes on from one.

        It walks with a stack of its own, as a graph may be deeper than Python's.
        """
        count = self.count = dict.fromkeys(self.start, 0)
        captured = self.captured
        only_captured = captured is not None
        stack = list(count)
        while stack:
            node = stack.pop()
            last = True
            for edge in node.edges:
                if edge is None:
                    continue
                last = False
                following = edge[0]
                if following in count:
                    count[following] += 1
                else:
                    count[following] = 1
                    stack.append(following)
            if only_captured and last is not (node in captured):  # type: ignore[operator]
                only_captured = False
        return only_captured

    def _nodes_before_captured(self) -> set[Node]:
        """Find the nodes from which a captured node can be reached, after the edges are counted.

        With ``accumulate`` the captured nodes run too: leaves, and, as in torch, the nodes of other
        inputs."""
        captured = [node for node in self.captured or () if node in self.count]
        before = nodes_before(captured, self.count, nodes_after)
        if self.accumulate:
            before.update(captured)
        return before

    def run_alone(self, edge: Edge, cotangent: Any, leaves: Sequence[Leaf]) -> None:
        """Run a pass through one node, the one of ``edge``, whose results are the gradients of
        ``leaves``. ``cotangent``: that of the root."""
        node, index = edge
        meta = node.metas[index]
        # `conform` asks this as well, in a frame of its own
        if cotangent.shape != meta[0] or cotangent.dtype is not meta[1]:
            cotangent = conform(cotangent, meta, None, 0)
        grads: list[Any] = [None] * len(node.metas)
        grads[index] = cotangent
        self.node = node
        outputs = list(node.apply(grads, None, False))
        level = self.level
        if not self.keep_graph:
            node.release()
        if len(outputs) != len(leaves):
            raise _wrong_number(node, len(outputs), len(leaves))
        for position, leaf in enumerate(leaves):
            cotangent = outputs[position]
            if cotangent is not None:
                shape, dtype = leaf._inner.shape, leaf.dtype_of_grad()
                if cotangent.shape != shape or cotangent.dtype is not dtype:
                    outputs[position] = conform(cotangent, (shape, dtype), node, position)
                cotangent = None  # no reference here, so that the leaf may take the memory
                adding.into_leaf(level, leaf, outputs, position, False)

    def run(self, roots: Sequence[tuple[Edge, object]]) -> None:
        """Run from the roots, each an edge with its cotangent, to the leaves."""
        # These settings belong to the thread. They are asked once, or each node would pay for them.
        # The first one is whether anomaly mode looks for NaN.
        self.check_nan = anomaly.looks_for_nan()
        self.profiled = is_profiler_enabled()
        # whether the profiler or a mode over torch's functions sees what the engine calls
        self.surrounded = self.profiled or bool(number_of_function_modes())
        # Whether a leaf may get its gradient without its own turn. But a profiler has to see an
        # event for each `AccumulateGrad`.
        self.at_once = self.captured is None and self.accumulate and not self.profiled
        # Most steps of a compiled program: the root is its one node, and all inputs are leaves.
        # The heap and the buffers of the general way would cost more than the node's own code.
        if self.at_once and len(roots) == 1 and not (self.check_nan or self.create_graph):
            leaves = roots[0][0][0].leaves()
            if leaves is not None:
                self.run_alone(*roots[0], leaves)
                return
        self.start = [node for (node, _), _ in roots]
        self.plan()
        self._fill_roots(roots)
        self._run_nodes()

    def _fill_roots(self, roots: Sequence[tuple[Edge, Any]]) -> None:
        """Put the cotangents of the roots into their buffers. The roots to which no edge leads are
        ready."""
        for position, ((node, index), cotangent) in enumerate(roots):
            if cotangent is not None:
                meta = node.metas[index]
                # dtype first, as in `_send`
                if cotangent.dtype is not meta[1] or cotangent.shape != meta[0]:
                    cotangent = conform(cotangent, meta, None, position)
            # two roots may be outputs of one node, which then runs once
            if node not in self.buffers:
                self.buffers[node] = [None] * len(node.metas)
                # the smallest comes first out of a heap, and the newest node is to be first
                if self.count[node] == 0:
                    heappush(self.ready, (-node.seq, next(self.tickets), node))
            if cotangent is not None:
                adding.add(self.buffers[node], index, cotangent, self.create_graph)

    def _run_nodes(self) -> None:
        """Run each node that is ready, and send its results to the next nodes.

        No name here refers to a cotangent that is sent, so that its memory may be used again. Each
        node pays for the frames of this loop: there are two."""
        should_run, captured = self.should_run, self.captured or ()
        masked = should_run is not None and not self.needs_all
        ready, buffers = self.ready, self.buffers
        while ready:
            node = heappop(ready)[2]
            grads = buffers.pop(node, None)
            # no cotangent, not even None: a node that stands for several sent nothing
            if grads is None:
                self._pass_by(node)
                continue
            # a captured node may be the end of the pass: its cotangents are results, and it rests
            if should_run is not None and node not in should_run:
                self._finish_cotangents(node, grads)
                continue
            if node.tensor_hooks or node.retained or node in captured:
                self._finish_cotangents(node, grads)
            self.node = node
            if node.pre_hooks:
                grads = hooks.run_prehooks(self.level, node, grads, self.create_graph)
            if type(node) is AccumulateGrad:
                self._accumulate(node, grads)
                continue
            if type(node) is Input:  # the cotangent is a result by now
                continue
            edges, mask = node.edges, None
            if masked:
                edges, mask = self._wanted_edges(node)
            outputs = self._evaluate(node, grads, mask)
            del grads
            self._send(node, edges, outputs)
            del outputs

    def _evaluate(
        self, node: Node, grads: list[torch.Tensor | None], mask: list[bool] | None
    ) -> list[Any]:
        """Run ``node`` and the hooks after it. Return one cotangent for each of its edges."""
        outputs: Sequence[Any]
        # nearly all nodes run without the frame of `_apply`
        if self.surrounded or grads[0] is None:
            outputs = self._apply(grads, mask)
        else:
            outputs = node.apply(grads, mask, self.create_graph)
        # at once, and not after the pass, so that its memory serves the next nodes
        if not self.keep_graph:
            node.release()
        if self.check_nan:
            anomaly.refuse_nan(node, outputs)
        if len(outputs) != len(node.edges):
            raise _wrong_number(node, len(outputs), len(node.edges))
        if node.post_hooks:
            outputs = hooks.run_posthooks(self.level, node, outputs, grads, self.create_graph)
        if type(outputs) is list:
            return outputs
        return list(outputs)

    def _send(self, node: Node, edges: Sequence[Edge | None], outs: list[Any]) -> None:
        """Add the results of ``node`` to the buffers of the nodes to which ``edges`` lead. Those
        that wait for no other are ready."""
        count, buffers = self.count, self.buffers
        at_once, surrounded = self.at_once, self.surrounded
        for position, edge in enumerate(edges):
            if edge is None:
                continue
            following, index = edge
            waiting = count[following] = count[following] - 1
            cotangent = outs[position]
            if cotangent is None:
                self._send_nothing(node, following)
            else:
                shape, dtype = following.metas[index]
                # dtype first: it differs for nested tensors, whose `shape` raises
                if surrounded or cotangent.dtype is not dtype or cotangent.shape != shape:
                    cotangent = outs[position] = self._conform(
                        cotangent, (shape, dtype), node, position
                    )
                buffer = buffers.get(following)
                if buffer is None:
                    if (
                        at_once
                        and not waiting
                        and type(following) is AccumulateGrad
                        and following.unwatched()
                    ):
                        cotangent = None  # no reference here, so that the leaf may take the memory
                        leaf = following.variable
                        adding.into_leaf(self.level, leaf, outs, position, self.create_graph)
                        continue
                    buffer = buffers[following] = [None] * len(following.metas)
                if buffer[index] is None:
                    buffer[index] = cotangent
                elif surrounded:
                    with unseen_by_handlers():
                        adding.add(buffer, index, cotangent, self.create_graph)
                else:
                    adding.add(buffer, index, cotangent, self.create_graph)
            if not waiting:
                heappush(self.ready, (-following.seq, next(self.tickets), following))

    def _send_nothing(self, node: Node, following: Node) -> None:
        """Let ``following`` run although ``node`` has no cotangent for it: None stands for zero,
        except of a node that stands for several."""
        if not node.several and following not in self.buffers:
            self.buffers[following] = [None] * len(following.metas)

    def _conform(self, cotangent: Any, meta: Sequence[object], node: Node, index: int) -> Any:
        """Convert ``cotangent`` to the shape and dtype in ``meta`` if it has others. Modes over
        torch's functions do not see the question."""
        if self.surrounded and not _differs(cotangent, meta[1], meta[0]):
            return cotangent
        return conform(cotangent, meta, node, index)

    def _pass_by(self, node: Node) -> None:
        """Let the nodes behind ``node`` run, if they wait for it alone. Neither it nor a hook of it
        runs, since no cotangent leads to it: a compiled program is one node where eager mode has
        several, and those between a root and ``node`` are not among them."""
        runs, captured = self.should_run, self.captured or ()
        if runs is not None and node not in runs:
            return
        for following in nodes_after(node):
            if runs is not None and following not in runs and following not in captured:
                continue
            self.count[following] -= 1
            if not self.count[following]:
                heappush(self.ready, (-following.seq, next(self.tickets), following))

    def order(self) -> list[Node]:
        """List the nodes in the order in which the pass runs them if no hook or node starts
        another one."""
        # counted anew, because `count` goes down while the pass runs; the rest is `_run_nodes` with
        # no node run
        waiting = dict.fromkeys(self.start, 0)
        for node in self.count:
            for following in nodes_after(node):
                waiting[following] = waiting.get(following, 0) + 1
        tickets = itertools.count()
        free = [node for node in dict.fromkeys(self.start) if not waiting[node]]
        ready = [(-node.seq, next(tickets), node) for node in free]
        heapify(ready)
        order = []
        while ready:
            node = heappop(ready)[2]
            if not self._runs_or_captures(node):
                continue
            order.append(node)
            for following in nodes_after(node):
                waiting[following] -= 1
                if not waiting[following]:
                    heappush(ready, (-following.seq, next(tickets), following))
        return order

    def _runs_or_captures(self, node: Node) -> bool:
        """Tell whether the pass runs ``node``, or returns a cotangent of it."""
        if self.should_run is None or node in self.should_run:
            return True
        return self.captured is not None and node in self.captured

    def _finish_cotangents(self, node: Node, grads: list[torch.Tensor | None]) -> None:
        """Run the hooks of the tensors that ``node`` made and store results of the pass, if it is
        to run or captured. All cotangents of ``node`` have arrived."""
        wanted = () if self.captured is None else self.captured.get(node, ())
        if self.should_run is not None and node not in self.should_run and not wanted:
            return
        self.node = node
        if node.tensor_hooks or node.retained:
            hooks.run_tensor_hooks(self.level, node, grads, self.create_graph)
        for index, position in wanted:
            self.results[position] = grads[index]

    def _accumulate(self, node: AccumulateGrad, grads: list[torch.Tensor | None]) -> None:
        """Add the gradient to a leaf and run the hooks after its node."""
        has_hooks = bool(node.post_hooks)
        # `into_leaf` takes the gradient out of the list, and the hooks are to see it
        before = list(grads) if has_hooks else ()
        if grads[0] is not None and self.accumulate:
            events: Any = reported(node) if self.profiled else _NOTHING
            with events:
                adding.into_leaf(self.level, node.variable, grads, 0, self.create_graph, has_hooks)
        if has_hooks:
            hooks.run_posthooks(self.level, node, (), before, self.create_graph)

    def _wanted_edges(self, node: Node) -> tuple[tuple[Edge | None, ...], list[bool] | None]:
        """Return the edges of ``node``, with None for each that leads to no node that is to run or
        captured, and, per edge, whether it leads to one. None in place of that if every edge
        does."""
        goals: tuple[Any, Any] = self.should_run, self.captured
        edges = node.edges
        wanted: list[Edge | None] = []
        for edge in edges:
            leads = edge is not None and (edge[0] in goals[0] or edge[0] in goals[1])
            wanted.append(edge if leads else None)
        if wanted == list(edges):
            return edges, None
        return tuple(wanted), [edge is not None for edge in wanted]

    def _apply(
        self, grads: list[torch.Tensor | None], mask: list[bool] | None
    ) -> Sequence[torch.Tensor | None]:
        """Run the present node under a profiler or a mode over torch's functions, or if its first
        output has no cotangent."""
        node: Any = self.node
        is_op = isinstance(node, OpNode)
        # formulas are linear; a custom Function is called, as it may have an effect
        if is_op and all(grad is None for grad in grads):
            return (None,) * len(node.edges)
        events: Any = reported(node) if is_profiler_enabled() else _NOTHING
        modes: Any = _NOTHING
        # modes over torch's functions see no call of a formula, as in torch, whose formulas are in
        # C++
        if node.unseen and number_of_function_modes() and not (is_op and _unpacks(node)):
            modes = unseen_by_handlers()
        with events, modes:
            return node.apply(grads, mask, self.create_graph)  # type: ignore[no-any-return]


def _differs(cotangent: Any, dtype: object, shape: object) -> bool:
    """Return whether a cotangent has another dtype or shape. Modes over torch's functions do not
    see the questions."""
    with unseen_by_handlers():
        return cotangent.dtype is not dtype or cotangent.shape != shape


def _unpacks(node: OpNode) -> bool:
    """Return whether ``node`` calls an unpack hook, which is a program of the user's."""
    for stored in node.saved or ():
        parts = stored if type(stored) is list else (stored,)
        if any(type(part) is Packed for part in parts):
            return True
    return False


def _wrong_number(node: Node, got: int, expected: int) -> RuntimeError:
    """Return the error for a node that returns ``got`` cotangents in place of ``expected``."""
    return RuntimeError(
        f"Function {node.name()} returned an invalid number of gradients - got {got} "
        f"but expected {expected}"
    )
