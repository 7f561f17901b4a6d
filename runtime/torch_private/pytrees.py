"""The library of torch for nested containers."""

from __future__ import annotations

import torch
import torch.utils._pytree

pytree = torch.utils._pytree
"""Nested containers: take their leaves out, map over them, put them together again."""
broadcast_and_flatten = torch.utils._pytree._broadcast_to_and_flatten
"""The leaves of a tree that is a prefix of another one: one for each leaf of that."""
