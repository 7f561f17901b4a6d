"""Types of the parts of an ATen call, for functions that take a call apart.

    torch.add(x, 1, alpha=2)     func aten.add.Tensor, args (x, 1), kwargs {"alpha": 2}

Their items are ``Any``: a schema allows tensors, numbers, lists of these, dtypes, devices and more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Kernel = Callable[..., Any]
"""What runs a call: an ``OpOverload``, or a function that takes its place."""
Arguments = Sequence[Any]
"""Positional arguments, in the order of the schema. Those at the end may be left out."""
Keywords = dict[str, Any]
"""Arguments by name: those that a schema has behind a star, and any that a call names."""
BatchFlags = Sequence[Any]
"""For each of ``args`` whether it is batched: a bool, or for a list a list of such flags."""
