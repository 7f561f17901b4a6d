"""Start backward passes, one inside another if need be, and answer questions about the running one.

Start with :func:`execute`, which makes a :class:`GraphTask` and runs it as the pass of this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..seam.ambient import continued
from ..seam.levels import Level
from ..seam.scope import SCOPE, levels_outside
from ..seam.user_code import unwatched, watched
from ..torch_private.native_autograd import is_multithreading_enabled
from . import anomaly
from .graph_task import GraphTask
from .nodes import Edge, Node
from .running import RUNNING

# backward passes inside one another on one thread; Python's stack allows about 1000 frames, a
# pass takes ten
_MAX_DEPTH = 32


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
    ``.grad``. ``keep_graph``: nodes do not drop their saved tensors. A pass that a hook or node of
    another pass starts finishes first.
    """
    task = GraphTask(level, captures, create_graph, keep_graph, accumulate)
    outer = RUNNING.task
    if outer is not None:  # a hook or a node of that pass has started this one
        task.outer = outer
        task.depth = outer.depth + 1
        if task.depth % _MAX_DEPTH == 0:
            return _run_on_new_thread(lambda: _execute(task, roots))
    return _execute(task, roots)


def _execute(task: GraphTask, roots: Sequence[tuple[Edge, object]]) -> list[object]:
    """Run ``task`` as the pass of this thread, and then its callbacks, the first of them first."""
    outer, levels = RUNNING.task, SCOPE.levels
    RUNNING.task = task
    SCOPE.levels = levels_outside(task.level)  # `scope_outside`, without its frames
    try:
        unwatched(task.run, roots)
        # a callback may queue another one
        while task.callbacks:
            watched(task.callbacks.pop(0))
    except Exception:
        if anomaly.STATE.enabled and task.node is not None:
            anomaly.explain(task.node)
        raise
    finally:
        SCOPE.levels = levels
        RUNNING.task = outer
    return task.results


def _run_on_new_thread(call: Callable[[], list[object]]) -> list[object]:
    """Return ``call()``, run on another thread in the state of this one, while this one waits. The
    other thread has a whole stack for Python's frames."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        # an error of a thread is lost unless the thread that waits raises it
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


def queue_callback(callback: Callable[[], object]) -> None:
    """Run ``callback()`` after the running backward pass. ``RuntimeError`` if none is running."""
    if RUNNING.task is None:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    RUNNING.task.callbacks.append(callback)


def will_execute(node: Node) -> bool:
    """Return whether the running backward pass runs ``node`` at any time, as torch's
    ``_will_engine_execute_node``. ``RuntimeError`` outside of a pass."""
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
    # torch raises in this case, too, in place of False
    if node in task.captured and not task.accumulate and not node.edges:
        raise RuntimeError(
            "A leaf node was passed to _will_engine_execute_node but we are currently running "
            "autograd.grad(). grad() takes the gradients of leaves without running their nodes."
        )
    return node in task.should_run or node in task.captured


def execution_order() -> list[Node]:
    """Return the nodes of the running backward pass, in the order in which it runs them if no hook
    or node starts another pass, as torch's ``_current_graph_task_execution_order``.

    ``RuntimeError`` outside of a pass, and while multithreading is enabled.
    """
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
    graph_task: GraphTask = task
    return graph_task.order()
