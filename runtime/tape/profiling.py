"""What torch's profiler is told of a backward pass: two events per node, one inside the other, with the names that torch's engine gives.

Their sequence numbers are -1: nothing that Python may call starts an event with a number of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

enabled = torch._C._autograd._profiler_enabled
_Event: Any = torch._C._profiler._RecordFunctionFast


@contextmanager
def reported(node: Any) -> Generator[None]:
    """The events of one node, around what it computes."""
    name = node.name()
    with _Event(f"autograd::engine::evaluate_function: {name}"), _Event(name):
        yield
