"""The backward of a compiled program: a node of the tape that runs the backward graph.

With ``create_graph`` it runs the gradients of the joint graph as a compiled function of arguments and cotangents instead. So the result
has a history of its own, to any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
