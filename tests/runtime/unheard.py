"""Ops that nothing has called before: no warning has named one, and no element was tried."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

_NAMES = "runtime_tests_unheard"
_NUMBERS = itertools.count()


def unheard_op(schema: str, kernel: Callable[..., Any], tags: Sequence[torch.Tag] = ()) -> Any:
    """Return a new op with that kernel. It has no record. ``schema``: ``(Tensor x) -> Tensor``; an
    op that writes is made by ``(Tensor(a!) x) -> Tensor(a!)``, and its name ends in ``_``."""
    name = f"op{next(_NUMBERS)}{'_' if '!' in schema else ''}"
    torch.library.define(f"{_NAMES}::{name}", schema, tags=tags)
    torch.library.impl(f"{_NAMES}::{name}", "CompositeExplicitAutograd")(kernel)
    return getattr(getattr(torch.ops, _NAMES), name)
