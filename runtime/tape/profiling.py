"""Events of a backward pass for torch's profiler: two per node, one inside the other, with the
names that torch's engine gives.

Their sequence numbers are -1, because torch has no Python function that starts an event
with another number.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from .node_protocol import TapeNode

enabled = torch._C._autograd._profiler_enabled
_Event: Any = torch._C._profiler._RecordFunctionFast


@contextmanager
def reported(node: TapeNode) -> Generator[None]:
    """Report the body of the ``with`` block as the events of one node."""
    name = node.name()
    with _Event(f"autograd::engine::evaluate_function: {name}"), _Event(name):
        yield
