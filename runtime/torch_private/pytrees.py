"""The library of torch for nested containers."""

from __future__ import annotations

import torch
import torch.utils._pytree

pytree = torch.utils._pytree
"""Nested containers: take their leaves out, map over them, put them together again."""
