"""The backward pass: iterative, newest node first, each node once and only when all its
cotangents have arrived.

Torch's profiler gets an event for each node that runs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from heapq import heapify, heappop, heappush
from typing import Any

from ..seam.ambient import continued
from ..seam.levels import Level, scope_outside
from ..seam.user_code import unwatched, watched
from ..torch_private.mode_stacks import number_of_function_modes, unseen_by_handlers
from ..torch_private.native_autograd import (
    ProfilerEvent,
    is_multithreading_enabled,
    is_profiler_enabled,
)
from . import accumulate as adding
from . import anomaly, hooks
from .conform import conform
from .leaf_protocol import Leaf
from .node_protocol import TapeNode
from .nodes import AccumulateGrad, Edge, Input, Node, OpNode
from .running import RUNNING
from .saved import Packed

# --- events for torch's profiler ------------------------------------------------------------------
#
# There are two events per node, one inside the other, with the names that torch's engine gives.
# Their sequence numbers are -1, because torch has no Python function that starts an event with
# another number.


@contextmanager
def reported(node: TapeNode) -> Generator[None]:
    """Report the body of the ``with`` block as the events of one node."""
    name = node.name()
    with ProfilerEvent(f"autograd::engine::evaluate_function: {name}"), ProfilerEvent(name):
        yield


# --- the pass -------------------------------------------------------------------------------------

# backward passes inside one another on one thread; Python's stack allows about 1000 frames, a
# pass takes ten
_MAX_DEPTH = 32
_ids = itertools.count()
_NOTHING = nullcontext()


class GraphTask:
    """One call of the engine.

    ``node``: the node that runs. ``sums``: whether it has run, and a level now adds a cotangent of
    it to another one. ``outer``: the call within which this one was made. ``captured``: by node,
    the outputs whose cotangents are results, each with its position among the results; None if the
    pass is for all leaves. ``should_run``: the nodes on a path to captured ones. ``needs_all``:
    these are all reachable nodes.
    """

    __slots__ = (
        "__weakref__",
        "accumulate",
        "callbacks",
        "captured",
        "count",
        "create_graph",
        "depth",
        "id",
        "keep_graph",
        "level",
        "needs_all",
        "node",
        "outer",
        "results",
        "should_run",
        "start",
        "sums",
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
        self.outer: GraphTask | None = None
        self.depth = 0
        self.sums = False
        self.node: Node | None = None
        self.callbacks: list[Callable[[], Any]] = []
        self.start: list[Node] = []
        self.count: dict[Node, int] = {}
        self.should_run: set[Node] | None = None
        self.needs_all = False
        self.captured: dict[Node, list[tuple[int, int]]] | None = None
        self.results: list[Any] = [None] * len(captures or ())
        if captures is not None:
            self.captured = {}
            for position, edge in enumerate(captures):
                if edge is not None:
                    self.captured.setdefault(edge[0], []).append((edge[1], position))

    def plan(self) -> None:
        """Count how many edges lead to each reachable node, and find the nodes from which a
        captured node can be reached."""
        count = self.count = dict.fromkeys(self.start, 0)
        captured = self.captured
        # whether every path stops at a captured node, and no path goes on from one
        only_captured = captured is not None
        stack = list(count)
        while stack:
            node = stack.pop()
            last = True
            for edge in node.edges:
                if edge is not None:
                    last = False
                    following = edge[0]
                    if following in count:
                        count[following] += 1
                    else:
                        count[following] = 1
                        stack.append(following)
            if only_captured and last is not (node in captured):  # type: ignore[operator]
                only_captured = False
        if captured is None:
            return
        if only_captured:  # the case of a transform that differentiates by all inputs
            self.should_run = set(count) if self.accumulate else set(count).difference(captured)
            self.needs_all = True
            return
        users: dict[Node, list[Node]] = {}
        for node in count:
            for edge in node.edges:
                if edge is not None:
                    users.setdefault(edge[0], []).append(node)
        # with accumulate=True the captured nodes run too: leaves, and, as in torch, the
        # nodes of other inputs
        stack = [node for node in captured if node in count]
        self.should_run = set(stack) if self.accumulate else set()
        while stack:
            for node in users.get(stack.pop(), ()):
                if node not in self.should_run:
                    self.should_run.add(node)
                    stack.append(node)

    def run_alone(self, edge: Edge, g: Any, leaves: Sequence[Leaf]) -> None:
        """A pass through one node. Its results are the gradients of ``leaves``."""
        node, index = edge
        meta = node.metas[index]
        if g.shape != meta[0] or g.dtype is not meta[1]:
            g = conform(g, meta, None, 0)
        grads: list[Any] = [None] * len(node.metas)
        grads[index] = g
        self.node = node
        outs = list(node.apply(grads, None, False))
        level = self.level
        if not self.keep_graph:
            node.release()
        if len(outs) != len(leaves):
            raise _wrong_number(node, len(outs), len(leaves))
        for i, leaf in enumerate(leaves):
            g = outs[i]
            if g is not None:
                shape, dtype = leaf._inner.shape, leaf.dtype_of_grad()
                if g.shape != shape or g.dtype is not dtype:
                    outs[i] = conform(g, (shape, dtype), node, i)
                g = None  # no reference here, so that the leaf may take the memory
                adding.into_leaf(level, leaf, outs, i, False)

    def run(self, roots: Sequence[tuple[Edge, Any]]) -> None:
        """Run from the roots to the leaves. One turn of the loop runs one node and adds its
        results to the buffers of the next nodes. The loop is one function, because every node
        would pay for more frames."""
        level, create_graph, keep_graph = self.level, self.create_graph, self.keep_graph
        check_nan = anomaly.STATE.enabled and anomaly.STATE.check_nan
        profiled = is_profiler_enabled()
        surrounded = profiled or bool(number_of_function_modes())
        # whether a leaf may get its gradient without its own turn
        at_once = self.captured is None and self.accumulate and not profiled
        if at_once and len(roots) == 1 and not (check_nan or create_graph):
            leaves = roots[0][0][0].leaves()
            if leaves is not None:
                self.run_alone(*roots[0], leaves)
                return
        self.start = [node for (node, _), _ in roots]
        self.plan()
        count, should_run, asked = self.count, self.should_run, self.captured or ()
        buffers, heap, tickets = self._seed(roots)
        while heap:
            node = heappop(heap)[2]
            grads = buffers.pop(node, None)
            if grads is None:
                self._pass_by(node, heap, tickets)
                continue
            if should_run is not None and node not in should_run:
                self._arrived(node, grads)
                continue
            if node.tensor_hooks or node.retained or node in asked:
                self._arrived(node, grads)
            self.node = node
            if node.pre_hooks:
                grads = hooks.run_prehooks(level, node, grads, create_graph)
            if type(node) is AccumulateGrad:
                self._accumulate(node, grads, profiled)
                continue
            if type(node) is Input:
                continue
            edges = node.edges
            mask = None if should_run is None or self.needs_all else self._mask(edges)
            outs: Any = (
                self._apply(grads, mask)
                if surrounded or grads[0] is None
                else node.apply(grads, mask, create_graph)
            )
            if not keep_graph:
                node.release()
            if check_nan:
                anomaly.refuse_nan(node, outs)
            if len(outs) != len(edges):
                raise _wrong_number(node, len(outs), len(edges))
            if node.post_hooks:
                outs = hooks.run_posthooks(level, node, outs, grads, create_graph)
            del grads
            if type(outs) is not list:
                outs = list(outs)
            for i, edge in enumerate(edges):
                if edge is None or (mask is not None and not mask[i]):
                    continue
                following, index = edge
                waiting = count[following] - 1
                g = outs[i]
                if g is not None:
                    metas = following.metas
                    shape, dtype = metas[index]
                    # dtype first: it differs for nested tensors, whose `shape` raises
                    if (
                        _differs(g, dtype, shape)
                        if surrounded
                        else g.dtype is not dtype or g.shape != shape
                    ):
                        g = outs[i] = conform(g, metas[index], node, i)
                    buffer = buffers.get(following)
                    if buffer is None:
                        if (
                            not waiting
                            and at_once
                            and type(following) is AccumulateGrad
                            and following.unwatched()
                        ):
                            g = None  # no reference here, so that the leaf may take the memory
                            adding.into_leaf(level, following.variable, outs, i, create_graph)
                            continue
                        buffer = buffers[following] = [None] * len(metas)
                    if buffer[index] is None:
                        buffer[index] = g
                    else:
                        with unseen_by_handlers() if surrounded else _NOTHING:
                            adding.add(buffer, index, g, create_graph)
                elif not node.several and following not in buffers:
                    buffers[following] = [None] * len(following.metas)
                if waiting:
                    count[following] = waiting
                else:
                    heappush(heap, (-following.seq, next(tickets), following))
            g = None
            del outs

    def _pass_by(
        self, node: Node, heap: list[tuple[int, int, Node]], tickets: Iterator[int]
    ) -> None:
        """Let the nodes behind ``node`` run, if they wait for it alone. Neither it nor a hook of it
        runs, since no cotangent leads to it: a compiled program is one node where eager mode has
        several, and those between a root and ``node`` are not among them."""
        runs = self.should_run
        if runs is not None and node not in runs:
            return
        for edge in node.edges:
            if edge is None or (
                runs is not None and edge[0] not in runs and edge[0] not in (self.captured or ())
            ):
                continue
            self.count[edge[0]] -= 1
            if not self.count[edge[0]]:
                heappush(heap, (-edge[0].seq, next(tickets), edge[0]))

    def _seed(
        self, roots: Sequence[tuple[Edge, Any]]
    ) -> tuple[dict[Node, list[Any]], list[tuple[int, int, Node]], Iterator[int]]:
        """Three things that the pass starts with: the cotangents of the roots, by node; the heap
        of the nodes that are ready, newest first; tickets, which order nodes with the same
        sequence number."""
        buffers: dict[Node, list[Any]] = {}
        heap: list[tuple[int, int, Node]] = []
        tickets = itertools.count()
        for i, ((node, index), g) in enumerate(roots):
            if g is not None:
                meta = node.metas[index]
                if g.dtype is not meta[1] or g.shape != meta[0]:
                    g = conform(g, meta, None, i)
            if node not in buffers:
                buffers[node] = [None] * len(node.metas)
                if self.count[node] == 0:
                    heappush(heap, (-node.seq, next(tickets), node))
            if g is not None:
                adding.add(buffers[node], index, g, self.create_graph)
        return buffers, heap, tickets

    def _arrived(self, node: Node, grads: list[Any]) -> None:
        """All cotangents of ``node`` have arrived. If it is to run or captured, run the hooks of
        its tensors and store the results."""
        wanted = () if self.captured is None else self.captured.get(node, ())
        if self.should_run is not None and node not in self.should_run and not wanted:
            return
        self.node = node
        if node.tensor_hooks or node.retained:
            hooks.run_tensor_hooks(self.level, node, grads, self.create_graph)
        for index, position in wanted:
            self.results[position] = grads[index]

    def _accumulate(self, node: AccumulateGrad, grads: list[Any], profiled: bool) -> None:
        """Add the gradient to a leaf and run the hooks after its node."""
        watched = bool(node.post_hooks)
        seen = list(grads) if watched else ()
        if grads[0] is not None and self.accumulate:
            with reported(node) if profiled else nullcontext():
                adding.into_leaf(self.level, node.variable, grads, 0, self.create_graph, watched)
        if watched:
            hooks.run_posthooks(self.level, node, (), seen, self.create_graph)

    def _mask(self, edges: Sequence[Edge | None]) -> list[bool] | None:
        """Per edge, whether it leads to a node that is to run or captured. None if
        every edge does."""
        goals: tuple[Any, Any] = self.should_run, self.captured
        mask = [e is not None and (e[0] in goals[0] or e[0] in goals[1]) for e in edges]
        return None if all(e is None or m for e, m in zip(edges, mask, strict=True)) else mask

    def _apply(self, grads: list[Any], mask: list[bool] | None) -> Sequence[Any]:
        """Run the present node under a profiler or a mode over torch's functions, or if its first
        output has no cotangent."""
        node: Any = self.node
        is_op = isinstance(node, OpNode)
        if is_op and all(g is None for g in grads):
            return (None,) * len(node.edges)
        # modes over torch's functions see no call of a formula, as in torch, whose formulas are in
        # C++
        with (
            reported(node) if is_profiler_enabled() else _NOTHING,
            unseen_by_handlers()
            if node.unseen and number_of_function_modes() and not (is_op and _unpacks(node))
            else _NOTHING,
        ):
            return node.apply(grads, mask, self.create_graph)  # type: ignore[no-any-return]


def _differs(g: Any, dtype: Any, shape: Any) -> bool:
    """Whether a cotangent has another dtype or shape. Modes over torch's functions do not
    see the questions."""
    with unseen_by_handlers():
        return g.dtype is not dtype or g.shape != shape


def _unpacks(node: OpNode) -> bool:
    """Whether ``node`` calls an unpack hook, which is a program of the user's."""
    return any(
        type(t) is Packed for s in node.saved or () for t in (s if type(s) is list else (s,))
    )


def _wrong_number(node: Node, got: int, expected: int) -> RuntimeError:
    return RuntimeError(
        f"Function {node.name()} returned an invalid number of gradients - got {got} "
        f"but expected {expected}"
    )


def execute(
    level: Level,
    roots: Sequence[tuple[Edge, Any]],
    captures: Sequence[Edge | None] | None,
    *,
    create_graph: bool,
    keep_graph: bool,
    accumulate: bool,
) -> list[Any]:
    """Run the tape of ``level`` from ``roots`` (edge, cotangent) and return the cotangents
    at ``captures``.

    Cotangents are values of the level with ``create_graph``, else inner tensors. With ``captures``
    only the nodes on a path to them run. ``accumulate`` adds the gradients of leaves to their
    ``.grad``. A pass that a hook or node of another pass starts finishes first."""
    task = GraphTask(level, captures, create_graph, keep_graph, accumulate)
    outer = RUNNING.task
    if outer is not None:
        task.outer = outer
        task.depth = outer.depth + 1
        if task.depth % _MAX_DEPTH == 0:
            return _on_a_fresh_stack(lambda: _execute(task, roots))
    return _execute(task, roots)


def _execute(task: GraphTask, roots: Sequence[tuple[Edge, Any]]) -> list[Any]:
    outer = RUNNING.task
    RUNNING.task = task
    try:
        with scope_outside(task.level):
            unwatched(task.run, roots)
            while task.callbacks:
                watched(task.callbacks.pop(0))
    except Exception:
        if anomaly.STATE.enabled and task.node is not None:
            anomaly.explain(task.node)
        raise
    finally:
        RUNNING.task = outer
    return task.results


def _on_a_fresh_stack(call: Callable[[], list[Any]]) -> list[Any]:
    """``call()`` on another thread, in the state of this one. This thread waits."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.extend(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=continued(work), name="backward on a fresh stack")
    thread.start()
    thread.join()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # else a cycle: the traceback refers to this frame
    return results


def queue_callback(callback: Callable[[], Any]) -> None:
    """Run ``callback()`` after the running backward pass."""
    if RUNNING.task is None:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    RUNNING.task.callbacks.append(callback)


def will_execute(node: Node) -> bool:
    """Whether the running backward pass runs ``node`` at any time."""
    if not isinstance(node, Node):
        raise RuntimeError(
            f"_will_engine_execute_node expects an grad_fn, but got {type(node).__name__}"
        )
    task = RUNNING.task
    if task is None:
        raise RuntimeError(
            "_get_should_execute_nodes should only be called during the backward pass"
        )
    if task.should_run is None or task.captured is None or node not in task.count:
        return node in task.count
    if node in task.captured and not task.accumulate and not node.edges:
        raise RuntimeError(
            "A leaf node was passed to _will_engine_execute_node but we are currently running "
            "autograd.grad(). grad() takes the gradients of leaves without running their nodes."
        )
    return node in task.should_run or node in task.captured


def execution_order() -> list[Node]:
    """The nodes of the running backward pass, in the order in which it runs them if no hook or node
    starts another pass."""
    task = RUNNING.task
    if task is None:
        raise RuntimeError(
            "_current_graph_task_execution_order should only be called during the backward pass"
        )
    if is_multithreading_enabled():
        raise RuntimeError(
            "_current_graph_task_execution_order expects the current backward to be executed with "
            "multithreading disabled. Run it within set_multithreading_enabled(False)."
        )
    waiting = dict.fromkeys(task.start, 0)
    for node in task.count:
        for edge in node.edges:
            if edge is not None:
                waiting[edge[0]] = waiting.get(edge[0], 0) + 1
    tickets = itertools.count()
    heap = [
        (-node.seq, next(tickets), node) for node in dict.fromkeys(task.start) if waiting[node] == 0
    ]
    heapify(heap)
    order = []
    while heap:
        node = heappop(heap)[2]
        if (
            task.should_run is not None
            and node not in task.should_run
            and node not in task.captured
        ):
            continue
        order.append(node)
        for edge in node.edges:
            if edge is not None:
                waiting[edge[0]] -= 1
                if waiting[edge[0]] == 0:
                    heappush(heap, (-edge[0].seq, next(tickets), edge[0]))
    return order
