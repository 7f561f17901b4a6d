"""What each thread's engine is doing now."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import GraphTask
    from .nodes import Node


class _Running(threading.local):
    task: GraphTask | None = None


RUNNING = _Running()


def current_graph_task_id() -> int:
    """The number of the running backward pass, -1 where there is none."""
    return -1 if RUNNING.task is None else RUNNING.task.id


def current_node() -> Node | None:
    """The node that runs now, if a backward pass does."""
    return None if RUNNING.task is None else RUNNING.task.node
